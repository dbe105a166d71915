"""Folders as sources: with nothing in them, not readable, of one letter in two forms; and files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unicodedata import normalize

import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace import ShardDataset
from headrace.core.errors import DatasetError, TooManyBadSamplesError, UsageError
from headrace.data.shards.data_files import IgnoredFiles, TarsAndImages, is_system_path
from headrace.data.shards.in_place_index import index_in_place
from headrace.data.shards.lint import lint
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_index import find_member, open_index
from headrace.data.shards.shard_packer import PackOptions
from headrace.data.shards.sources.source_kinds import SourceOptions, list_source
from headrace.data.storage import open_store
from image_trees import class_folders, jpeg, png_mask, write


def tar_of(*names: str) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(jpeg())
            archive.addfile(info, io.BytesIO(jpeg()))
    return sink.getvalue()


@pytest.mark.parametrize("folder", ["dog", "dog/a/b", "dog.v2", "_dog"])
def test_a_class_folder_with_nothing_in_it_would_shift_the_labels(tmp_path, folder):
    source = class_folders(tmp_path / "src", each=1, classes=("cat", "eel"))
    (source / folder).mkdir(parents=True)
    name = folder.partition("/")[0]
    with pytest.raises(DatasetError, match=rf"1 of the folders hold no images.*\n  {name}: empty"):
        list_source(str(source), SourceOptions())
    assert list_source(str(source), SourceOptions(classes=("cat", "dog", "eel"))).labels is not None


EMPTY = ["DONE", "SUCCESS", "_SUCCESS", ".done", "x.txt", "cat/DONE", "cat/sub"]
"""Files without a byte, as pipelines leave them."""


def test_an_empty_file_is_no_folder_on_a_disk_nor_in_a_store(tmp_path):
    source = class_folders(tmp_path / "src", each=1)
    write(source, dict.fromkeys(EMPTY, b""))
    store = open_store("memory://empty-files")
    for path in source.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(source).as_posix(), path.read_bytes())
    for url in (str(source), store.url):
        table = list_source(url, SourceOptions())
        assert (table.classes, len(table)) == (("cat", "dog"), 2)
        assert (table.source.num_ignored, table.source.num_system) == (len(EMPTY), 1)


def test_other_empty_folders_are_nothing(tmp_path):
    source = class_folders(tmp_path / "src", each=1)
    for folder in ("cat/empty", ".cache", "@eaDir/x", "cat/x.tar"):
        (source / folder).mkdir(parents=True)
    assert list_source(str(source), SourceOptions()).classes == ("cat", "dog")
    tars = write(tmp_path / "tars", {"a.tar": tar_of("x.jpg")})
    (tars / "empty.tar").mkdir()
    assert index_in_place(str(tars)).manifest.num_samples == 1
    assert lint(str(tars)).faults == ()
    (tmp_path / "none/of/it").mkdir(parents=True)
    for work in (list_source, lambda url, _: index_in_place(url)):
        with pytest.raises(DatasetError, match=r"holds (no images|nothing), or does not exist"):
            work(str(tmp_path / "none"), SourceOptions())


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in which any user may write."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@contextmanager
def without_permission(*folders: Path) -> Iterator[None]:
    """Close these folders to this process: as another user, where it is root, who may all."""
    user = os.geteuid()
    for each in folders:
        each.chmod(0)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        for each in folders:
            each.chmod(0o755)


@pytest.mark.parametrize("name", ["bee", "bee.v2", "n01.bee.jpg", "bee.txt"])
def test_a_folder_that_may_not_be_read_is_bad_and_stays_a_class(folder, name):
    source = class_folders(folder, each=1)
    write(source, {f"{name}/1.jpg": jpeg(), "cat/more.v1/1.jpg": jpeg()})
    with without_permission(source / name, source / "cat/more.v1"):
        table = list_source(str(source), SourceOptions())
    assert [bad.file for bad in table.bad] == sorted([name, "cat/more.v1"])
    assert table.classes == tuple(sorted((name, "cat", "dog")))
    assert [table.classes[label] for label in table.labels.tolist()] == ["cat", "dog"]


@pytest.mark.parametrize("name", ["bee", "cat/more.v1"])
def test_a_folder_of_a_split_that_may_not_be_read_is_bad_too(folder, name):
    source = class_folders(folder / "train", each=1)
    write(source, {f"{name}/1.jpg": jpeg()})
    with without_permission(source / name):
        table = list_source(str(folder), SourceOptions(split="train"))
    assert ([bad.file for bad in table.bad], len(table)) == ([name], 2)


@pytest.mark.parametrize("name", ["bee", "bee.v2", "bee.txt"])
def test_a_link_that_leads_nowhere_may_have_led_to_a_folder(tmp_path, name):
    source = class_folders(tmp_path / "src", each=1)
    pairs = write(tmp_path / "pairs", {"images/1.jpg": jpeg(), "masks/1.png": png_mask()})
    tars = write(tmp_path / "tars", {"a.tar": tar_of("x.jpg")})
    globs = SourceOptions(image_glob="images/**/*.jpg", mask_glob="masks/**/*.png")
    for folder in (source, pairs / "images", tars):
        (folder / name).symlink_to("/nowhere/bee")
    assert [bad.file for bad in list_source(str(source), SourceOptions()).bad] == [name]
    assert [bad.file for bad in list_source(str(pairs), globs).bad] == [f"images/{name}"]
    with pytest.raises(TooManyBadSamplesError, match=f"{name}: A link to /nowhere/bee"):
        index_in_place(str(tars))
    assert index_in_place(str(tars), max_bad=1).manifest.num_samples == 1
    assert lint(str(tars)).faults == ()


def test_a_link_that_leads_nowhere_and_is_not_named_in_utf_8_is_not_passed_over(tmp_path):
    source = class_folders(tmp_path / "src", each=1)
    Path(os.fsdecode(os.fsencode(source) + b"/bee\xe9")).symlink_to("/nowhere/x")
    with pytest.raises(DatasetError, match="is not UTF-8"):
        list_source(str(source), SourceOptions())


def test_a_folder_whose_own_name_is_not_utf_8_is_packed_and_indexed(tmp_path):
    above = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    source = class_folders(above / "src", each=1)
    parquet(tmp_path, "parts/0.parquet", ["cat_000.JPEG"])
    (tmp_path / "parts").rename(above / "parts")
    (above / "t.csv").write_text("path\nsrc/cat/cat_000.JPEG\n")
    for url, count in ((source, 2), (above / "parts", 1), (above / "t.csv", 1)):
        assert len(list_source(str(url), SourceOptions())) == count
    packed = pack(str(above / "t.csv"), str(above / "dst"), PackOptions())
    assert pack(str(above / "t.csv"), str(above / "dst"), PackOptions()).already
    indexed = index_in_place(str(source), destination=str(tmp_path / "index"))
    assert indexed.manifest.data_url == str(source)
    for url in (packed.url, indexed.url):
        assert lint(url).faults == ()
        assert ShardDataset(url)[0]["jpg"].shape == (32, 48, 3)


def test_members_of_files_with_dots_in_their_names_are_found(tmp_path):
    names = ["a", "a.b", "2024.05.01 10.30", "plain"]
    source = write(tmp_path / "src", {f"x/{name}.JPG": jpeg() for name in names})
    index = open_index(index_in_place(str(source)).url)
    for name in names:
        location, extension = find_member(index, f"x/{name}.jpg")
        assert (location.key, extension) == (f"x/{name}", "jpg")
        assert find_member(index, f"x/{name}")[0] == location
    with pytest.raises(DatasetError, match=r"'x/a\.b' .* has no member \.png; it has cls, jpg"):
        find_member(index, "x/a.b.png")
    for name in ("x/none.jpg", ".", "x/.", os.fsdecode(b"x/\xe9.jpg")):
        with pytest.raises(DatasetError, match="has no sample"):
            find_member(index, name)


def test_tars_in_a_folder_that_may_not_be_read_are_not_left_out_silently(folder):
    tars = write(folder, {"a.tar": tar_of("x.jpg"), "more/b.tar": tar_of("y.jpg")})
    words = "more: It cannot be read: Permission denied"
    with without_permission(tars / "more"), pytest.raises(TooManyBadSamplesError, match=words):
        index_in_place(str(tars))


def test_a_class_that_is_named_may_be_hidden(tmp_path):
    source = write(tmp_path / "src", {f"{name}/1.jpg": jpeg() for name in (".NET", "Java")})
    write(source, {".git/1.jpg": b"", ".NET/.git/1.jpg": b"", "Java/._1.jpg": b""})
    assert list_source(str(source), SourceOptions()).classes == ("Java",)
    table = list_source(str(source), SourceOptions(classes=("Java", ".NET")))
    assert (table.stems.to_pylist(), table.labels.tolist()) == ([".NET/1", "Java/1"], [1, 0])
    assert table.source.num_system == 3


@pytest.mark.parametrize("path", ["FOUND.000/x.jpg", "@gmt-1/x.jpg", "TheVolumeSettingsFolder/x"])
def test_more_of_what_systems_leave(path):
    assert is_system_path(path)
    assert not is_system_path("found.0001/x.jpg")


def test_names_that_differ_in_their_unicode_form_alone_are_told(tmp_path):
    composed, apart = (normalize(form, "Löwe") for form in ("NFC", "NFD"))
    both = write(tmp_path / "both", {f"{name}/1.jpg": jpeg() for name in (composed, apart)})
    with pytest.raises(DatasetError, match="differ in their Unicode form alone"):
        list_source(str(both), SourceOptions())
    one = write(tmp_path / "one", {f"{apart}/1.jpg": jpeg()})
    assert list_source(str(one), SourceOptions(classes=(apart,))).classes == (apart,)
    with pytest.raises(DatasetError, match=r"unknown class .*differ in their Unicode form"):
        list_source(str(one), SourceOptions(classes=(composed,)))
    pairs = write(tmp_path / "pairs", {f"a/{apart}.jpg": b"", f"b/{composed}.png": b""})
    with pytest.raises(DatasetError, match="1 of these names differ in their Unicode form"):
        list_source(str(pairs), SourceOptions(image_glob="a/*.jpg", mask_glob="b/*.png"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train-000.tar", r"is one tar\. .* `headrace data index .*/src`"),
        ("x.arrow", r"none of the kinds that are read: .*\.csv, \.tsv, .*\.parquet"),
        ("x.zip", "Unpack an archive first"),
        ("x.csv.gz", "none of the kinds"),
        ("cat.jpg", "none of the kinds"),
    ],
)
def test_a_file_in_place_of_a_folder_is_told(tmp_path, name, words):
    source = write(tmp_path / "src", {name: b"?"})
    for work in (index_in_place, lambda url: pack(url, str(tmp_path / "dst"), PackOptions())):
        with pytest.raises(DatasetError, match=words):
            work(str(source / name))


COMPRESSED = [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]


@pytest.mark.parametrize("name", ["b.tar", "b.tar.{}", "b.TAR.{}"])
@pytest.mark.parametrize(("kind", "compress"), COMPRESSED)
def test_a_compressed_tar_among_others_is_bad(tmp_path, kind, compress, name):
    name = name.format(kind)
    files = {"a.tar": tar_of("x.jpg"), name: compress(tar_of("y.jpg")), "._c.tar.gz": b"?"}
    source = write(tmp_path / "src", files)
    with pytest.raises(TooManyBadSamplesError, match=rf"{name}: it is compressed by .*decompress"):
        index_in_place(str(source))
    manifest = index_in_place(str(source), max_bad=1).manifest
    assert (manifest.num_samples, [bad.file for bad in manifest.bad]) == (1, [name])
    assert lint(str(source)).faults == ()


def test_a_tar_whose_first_member_is_named_like_a_compressed_file_is_read(tmp_path):
    source = write(tmp_path / "src", {"a.tar": tar_of("BZh9.jpg"), "b.tar": tar_of("PK\3\4.jpg")})
    assert index_in_place(str(source)).manifest.num_samples == 2


def test_tars_within_a_tar_are_no_samples(tmp_path):
    source = write(tmp_path / "src", {"train.tar": tar_of("n01440764.tar", "n01443537.tar")})
    with pytest.raises(DatasetError, match="the tars hold tars and no other files"):
        index_in_place(str(source))


def test_many_pictures_in_the_folder_of_a_tar_may_be_the_data():
    found = TarsAndImages()
    found.add("a.tar")
    for number in range(10):
        found.add(f"{number}.jpg")
    assert found.tars_are_data() is True
    found.add("10.jpg")
    assert found.tars_are_data() is None


def test_the_first_file_of_a_folder_is_the_example_though_it_was_empty_before():
    ignored = IgnoredFiles()
    ignored.add_empty_folder("dog/a")
    ignored.add_empty_folder(".git/a")
    assert ignored.folders == {"dog": (0, "dog/a")}
    ignored.add("dog/x.txt", system=False)
    ignored.add("dog/y.txt", system=False)
    assert ignored.folders == {"dog": (2, "dog/x.txt")}


def parquet(folder: Path, name: str, paths: list[str]) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    columns = {"path": paths, "label": list(range(len(paths))), "text": ["x" * 4000] * len(paths)}
    pyarrow.parquet.write_table(pa.table(columns), folder / name, compression="none")


def test_a_picture_beside_parquet_files_does_not_make_them_vanish(tmp_path):
    source = tmp_path / "src"
    for number in range(2):
        parquet(source, f"data/train-0000{number}-of-00002.parquet", [f"{number}.jpg"])
    parquet(source, "data/.cache/train-00000-of-00001.parquet", ["hidden.jpg"])
    write(source, {"README.md": b"", "assets/logo.png": png_mask(), ".DS_Store": b""})
    for split in (None, "train"):
        table = list_source(str(source), SourceOptions(split=split))
        assert table.images.paths.to_pylist() == ["0.jpg", "1.jpg"]
        assert table.source.kind == "table"
    listed = list_source(str(source), SourceOptions()).source
    assert set(listed.ignored) == {
        ".DS_Store",
        "README.md",
        "assets/logo.png",
        "data/.cache/train-00000-of-00001.parquet",
    }
    assert (listed.num_ignored, listed.num_system) == (4, 2)
    with pytest.raises(UsageError, match=r"is a table\. Pack it"):
        index_in_place(str(source))


def test_tars_of_a_split_beside_its_tables_are_the_data(tmp_path):
    source = tmp_path / "src"
    parquet(source, "data/train-00000.parquet", ["1.jpg"])
    split = SourceOptions(split="train")
    write(source, {"data/val-00000.tar": tar_of("x.jpg")})
    assert len(list_source(str(source), split)) == 1
    write(source, {"data/train-00000.tar": tar_of("x.jpg")})
    with pytest.raises(DatasetError, match=r"index \S+/src --split train`; .*train-00000\.parquet"):
        list_source(str(source), split)
    index_in_place(str(source), source=split, destination=str(tmp_path / "index"))


def test_images_beside_a_smaller_table_are_the_data(tmp_path):
    source = write(class_folders(tmp_path / "src", each=2), {"x.csv": b"path\n1.jpg\n"})
    parquet(source, "metadata.parquet", ["1.jpg"])
    write(source, {"cat/large.jpg": jpeg(width=900, height=900)})
    table = list_source(str(source), SourceOptions())
    assert (len(table), table.classes) == (5, ("cat", "dog"))
    assert table.source.ignored == ("metadata.parquet", "x.csv")


def test_a_part_of_a_table_that_cannot_be_read_is_bad(tmp_path):
    parquet(tmp_path / "src", "data/train-0.parquet", ["1.jpg"])
    (tmp_path / "src/data/train-1.parquet").symlink_to("/nowhere/x")
    os.mkfifo(tmp_path / "src/data/train-2.parquet")
    write(tmp_path / "src/data", {"1.jpg": jpeg()})
    for split in (None, "train"):
        table = list_source(str(tmp_path / "src"), SourceOptions(split=split))
        assert [bad.file[-9:] for bad in table.bad] == ["1.parquet", "2.parquet"]
    options = SourceOptions(split="train")
    with pytest.raises(TooManyBadSamplesError, match=r"train-1\.parquet: A link to /nowhere/x"):
        pack(str(tmp_path / "src"), str(tmp_path / "dst"), PackOptions(source=options))


def test_a_folder_of_class_folders_is_no_class_itself(tmp_path):
    """As an archive unpacks: what is wanted lies in a folder, beside __MACOSX."""
    files = {f"data/{name}/1.jpg": jpeg() for name in ("cat", "dog")}
    source = write(tmp_path / "src", files | {"__MACOSX/data/cat/._1.jpg": b""})
    with pytest.raises(DatasetError, match=r"data would be the only class, .* cat, dog\. .*/data;"):
        list_source(str(source), SourceOptions())
    assert list_source(str(source / "data"), SourceOptions()).classes == ("cat", "dog")
    assert list_source(str(source), SourceOptions(classes=("data",))).labels.tolist() == [0, 0]
    write(source, {"data/2.jpg": jpeg()})
    assert list_source(str(source), SourceOptions()).classes == ("data",)
    for files in ({"a/b/1.jpg": b"", "a/b/c/2.jpg": b""}, {"a/b/1.jpg": b"", "c/d/2.jpg": b""}):
        assert list_source(str(write(tmp_path / min(files)[-5:], files)), SourceOptions()).classes


@pytest.mark.parametrize("ending", ["jfif", "JFIF", "jpe"])
def test_other_names_of_jpegs(tmp_path, ending):
    source = write(tmp_path / "src", {f"cat/1.{ending}": jpeg(), "cat/2.jpg": jpeg()})
    dataset = ShardDataset(index_in_place(str(source)).url)
    assert [sample["jpg"].shape for sample in (dataset[0], dataset[1])] == [(32, 48, 3)] * 2


def test_patterns_match_extensions_of_images_in_any_case(tmp_path):
    files = {"images/1.JPG": jpeg(), "images/2.jpg": jpeg(), "images/3.txt": b""}
    source = write(tmp_path / "src", files | {f"masks/{n}.Png": png_mask() for n in (1, 2)})
    options = SourceOptions(image_glob="images/*.jpg", mask_glob="masks/*.PNG")
    table = list_source(str(source), options)
    assert (table.images.paths.to_pylist(), table.stems.to_pylist()) == (
        ["images/1.JPG", "images/2.jpg"],
        ["1", "2"],
    )
    index = ShardDataset(index_in_place(str(source), source=options).url).index
    paths = {member.path for sample in range(2) for member in index.locate(sample).members}
    assert paths == {"images/1.JPG", "images/2.jpg", "masks/1.Png", "masks/2.Png"}
    write(source, {"images/2.JPG": jpeg()})
    with pytest.raises(DatasetError, match="two files with one key"):
        list_source(str(source), options)
    with pytest.raises(DatasetError, match="as '\\?', brackets and braces do"):
        list_source(str(source), SourceOptions(image_glob="i/*.{jpg}", mask_glob="masks/*.png"))


def test_empty_folders_of_a_store(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "loop").symlink_to(".")
    entries = list(open_store(str(tmp_path)).list_entries())
    assert [(each.path, each.is_folder, each.unreadable) for each in entries] == [("a/b", True, "")]
    assert list(open_store(str(tmp_path)).list()) == []
    assert list(open_store(str(tmp_path / "a/b")).list_entries()) == []


@pytest.mark.parametrize(
    ("image", "mask"), [("*/*.tif", "*/*_mask.tif"), ("*/*_image.TIF", "*/*.*")]
)
def test_of_two_patterns_that_match_a_file_the_longer_one_has_it(tmp_path, image, mask):
    names = {"*/*.tif": "a/x{}.tif", "*/*_mask.tif": "a/x{}_mask.tif"}
    names |= {"*/*_image.TIF": "a/x{}_image.tif", "*/*.*": "a/x{}.png"}
    files = [names[pattern].format(number) for pattern in (image, mask) for number in (1, 2)]
    source = write(tmp_path / "src", dict.fromkeys(files, b"?"))
    table = list_source(str(source), SourceOptions(image_glob=image, mask_glob=mask))
    assert table.images.paths.to_pylist() + table.masks.paths.to_pylist() == files
    (source / files[-1]).unlink()
    with pytest.raises(DatasetError, match="1 images without a mask"):
        list_source(str(source), SourceOptions(image_glob=image, mask_glob=mask))
    both = list_source(str(source), SourceOptions(image_glob="a/*.*", mask_glob="a/*.*"))
    assert both.images.paths == both.masks.paths
