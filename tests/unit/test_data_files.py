"""What is data in a source: hidden files, kinds of images, what cannot be read, tars."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headrace import ShardDataset
from headrace.core.errors import DatasetError, TooManyBadSamplesError
from headrace.data.shards.data_files import TarsAndImages, is_system_path
from headrace.data.shards.in_place_index import index_in_place
from headrace.data.shards.lint import lint
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_index import open_index
from headrace.data.shards.shard_packer import PackOptions
from headrace.data.shards.sources.source_kinds import SourceOptions, list_source
from headrace.data.storage import open_store
from image_trees import cityscapes, class_folders, jpeg, png_mask, write

HIDDEN = [
    ".ipynb_checkpoints/x-checkpoint.jpg",
    ".git/objects/x.png",
    ".Trash-1000/files/x.jpg",
    "@eaDir/x.jpg/SYNOPHOTO_THUMB_M.jpg",
    "@EADIR/x.jpg",
    "__MACOSX/._x.jpg",
    "$RECYCLE.BIN/x.jpg",
    "System Volume Information/x.jpg",
    "#recycle/x.jpg",
    "@Recently-Snapshot/x.jpg",
    "@GMT-2026.01.01-00.00.00/x.jpg",
    "lost+found/x.jpg",
    "._x.jpg",
    ".DS_Store",
    "Thumbs.db",
    "desktop.ini",
]


@pytest.mark.parametrize("path", HIDDEN)
def test_hidden_and_system_files_are_none_at_any_depth(path):
    assert is_system_path(path)
    assert is_system_path(f"cat/{path}")
    assert is_system_path(f"./a/b/{path}")


@pytest.mark.parametrize(
    "path",
    ["./cat/x.jpg", "cat/../x.jpg", "cat/x.jpg", "a.b/x", "eaDir/x.jpg", "MACOSX/x.jpg", "git"],
)
def test_other_names_are_data(path):
    assert not is_system_path(path)


def test_what_a_pattern_names_itself_is_not_hidden():
    assert not is_system_path(".cache/x.jpg", ".cache/*.jpg")
    assert not is_system_path("a/.cache/x.jpg", "*/.c*/**/*.jpg")
    assert is_system_path(".cache/.git/x.jpg", ".cache/**/*.jpg")
    assert is_system_path("images/.git/x.jpg", "images/**/*.jpg")


def listed(source: Path, **options: str) -> tuple[list[str], list[int] | None, tuple[str, ...]]:
    table = list_source(str(source), SourceOptions(**options))
    labels = None if table.labels is None else table.labels.tolist()
    return table.stems.to_pylist(), labels, table.classes


GLOBS = {"image_glob": "images/**/*.*", "mask_glob": "masks/**/*.*"}


@pytest.mark.parametrize(("kind", "options"), [("classes", {}), ("images", {}), ("pairs", GLOBS)])
def test_hidden_files_change_no_kind_of_source_and_are_told(tmp_path, kind, options):
    files = {
        "classes": {f"{name}/{n}.jpg": jpeg(n) for name in ("cat", "dog") for n in range(2)},
        "images": {f"{n}.jpg": jpeg(n) for n in range(2)},
        "pairs": {f"{side}/{n}.jpg": jpeg(n) for side in ("images", "masks") for n in range(2)},
    }[kind]
    source = write(tmp_path / "src", files)
    before = listed(source, **options)
    top = {"classes": ["", "cat/"], "images": [""], "pairs": ["images/", "masks/a/"]}[kind]
    write(source, {f"{folder}{path}": jpeg(9) for folder in top for path in HIDDEN})
    assert listed(source, **options) == before
    told = list_source(str(source), SourceOptions(**options)).source
    assert (told.num_system, told.num_ignored) == (len(top) * len(HIDDEN),) * 2
    assert set(told.system) <= set(told.ignored)
    report = index_in_place(str(source), source=SourceOptions(**options))
    assert report.manifest.num_samples == len(before[0])


def test_a_hidden_folder_that_is_named_is_the_source(tmp_path):
    source = class_folders(tmp_path / ".cache/train", each=2)
    assert listed(source)[2] == ("cat", "dog")


EXTENSIONS = "jpg JPG jpeg JPEG png Png bmp BMP webp WebP tif TIF tiff TIFF gif GIF ppm pgm".split()  # noqa: SIM905


def picture(extension: str) -> bytes:
    kinds = {"jpg": "JPEG", "tif": "TIFF", "pgm": "PPM"}
    sink = io.BytesIO()
    Image.new("L" if extension == "pgm" else "RGB", (6, 4), 99).save(
        sink, kinds.get(extension.lower(), extension)
    )
    return sink.getvalue()


def test_every_kind_of_image_in_any_case_is_read(tmp_path):
    files = {f"cat/{n}.{extension}": picture(extension) for n, extension in enumerate(EXTENSIONS)}
    index_in_place(str(write(tmp_path / "src", files)))
    dataset = ShardDataset(str(tmp_path / "src"))
    assert len(dataset) == len(EXTENSIONS)
    for sample in (dataset[number] for number in range(len(dataset))):
        (image,) = [value for value in sample.values() if isinstance(value, np.ndarray)]
        assert (image.shape, image.dtype) == ((4, 6, 3), np.uint8)
    names = {extension.name for extension in dataset.index.manifest.extensions}
    assert names == {"bmp", "cls", "gif", "jpg", "pgm", "png", "ppm", "tif", "webp"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"x.heic": b"1", "a/y.HEIC": b"1"}, "2 other files (a/y.HEIC, x.heic)"),
        ({".a/x.jpg": b"1"}, "1 hidden or system files, which are ignored (.a/x.jpg)"),
        (
            {"cat/1.jpg": b"1", "dog/1.heic": b"1", "dog/2.heic": b"1"},
            "dog: 2 files, such as dog/1",
        ),
        ({"cat/1.jpg": b"1", "dog/.DS_Store": b"1"}, "dog: 1 files, such as dog/.DS_Store"),
        ({"cat/1.jpg": b"1", "dog/.a/x.jpg": b"1"}, "dog: 1 files, such as dog/.a/x.jpg"),
    ],
)
def test_a_folder_of_which_nothing_would_be_left_is_an_error_that_says_why(tmp_path, files, words):
    source = write(tmp_path / "src", files)
    with pytest.raises(DatasetError) as caught:
        list_source(str(source), SourceOptions())
    assert words in str(caught.value)
    assert "jpg, pgm, png, ppm, tif" in str(caught.value)


def test_patterns_that_match_what_is_hidden_alone_say_so(tmp_path):
    source = write(tmp_path / "src", {"images/.a/1.jpg": b"1", "masks/1.png": b"1"})
    options = SourceOptions(image_glob="images/**/*.jpg", mask_glob="masks/**/*.png")
    with pytest.raises(DatasetError, match=r"1 hidden or system files are ignored: images/\.a/1"):
        list_source(str(source), options)
    dangling(source / "images/1.jpg")
    with pytest.raises(DatasetError, match="but 1 that cannot be read"):
        list_source(str(source), options)


def test_names_that_are_not_utf_8_are_refused_for_data_and_told_for_others(tmp_path):
    source = class_folders(tmp_path / "src", each=1)
    os.close(os.open(os.fsencode(source) + b"/caf\xe9.txt", os.O_CREAT))
    os.close(os.open(os.fsencode(source) + b"/cat/._\xe9.jpg", os.O_CREAT))
    manifest = index_in_place(str(source)).manifest
    assert manifest.source.num_ignored == 2
    assert set(manifest.source.ignored) == {"caf?.txt", "cat/._?.jpg"}
    os.close(os.open(os.fsencode(source) + b"/cat/\xe9.jpg", os.O_CREAT))
    with pytest.raises(DatasetError, match="is not UTF-8"):
        list_source(str(source), SourceOptions())


def test_named_classes_are_not_numbered_by_folders_and_loose_images_have_none(tmp_path):
    source = write(tmp_path / "src", {"cat/1.jpg": b"1", "dog/.DS_Store": b"1", "notes/x.txt": b""})
    assert listed(source, classes=("cat", "dog"))[1:] == ([0], ("cat", "dog"))
    loose = write(tmp_path / "loose", {"1.jpg": b"1", "labels/1.txt": b"1"})
    assert listed(loose) == (["1"], None, ())


def dangling(path: Path) -> None:
    path.symlink_to("/nowhere/x")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def named_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)  # a socket's whole path has 107 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


UNREADABLE = [
    (dangling, "A link to /nowhere/x, which does not exist"),
    (loop, "It cannot be read: Too many levels of symbolic links"),
    (os.mkfifo, "A named pipe, no file"),
    (named_socket, "A socket, no file"),
    (device, "A device, no file"),
]


@pytest.mark.parametrize(("make", "words"), UNREADABLE)
def test_an_entry_that_cannot_be_read_is_bad_in_every_kind_of_source(
    tmp_path: Path, make: Callable[[Path], None], words: str
):
    source = class_folders(tmp_path / "src", each=2)
    make(source / "cat/bad.jpg")
    pairs = write(
        tmp_path / "pairs",
        {f"images/{n}.jpg": jpeg(n) for n in (0, 1)} | {"masks/0.png": png_mask()},
    )
    make(pairs / "masks/1.png")
    globs = SourceOptions(image_glob="images/*.jpg", mask_glob="masks/*.png")
    tars = write(tmp_path / "tars", {"a.tar": tar_of({"x.jpg": jpeg()})})
    make(tars / "b.tar")
    for url, options, path, left in (
        (source, SourceOptions(), "cat/bad.jpg", 4),
        (pairs, globs, "masks/1.png", 1),
        (tars, SourceOptions(), "b.tar", 1),
    ):
        with pytest.raises(TooManyBadSamplesError) as caught:
            index_in_place(str(url), source=options)
        assert f"{path}: {words}" in str(caught.value)
        manifest = index_in_place(str(url), source=options, max_bad=1).manifest
        assert ([bad.file for bad in manifest.bad], manifest.num_samples) == ([path], left)
        assert lint(str(url)).faults == ()


@pytest.mark.parametrize(("make", "words"), UNREADABLE)
def test_an_entry_of_a_split_that_cannot_be_read_is_bad_too(
    tmp_path: Path, make: Callable[[Path], None], words: str
):
    source = tmp_path / "src"
    class_folders(source / "train", each=2)
    make(source / "train/cat/bad.jpg")
    table = list_source(str(source), SourceOptions(split="train"))
    assert [bad.file for bad in table.bad] == ["cat/bad.jpg"]
    assert table.bad[0].reason.startswith(words)
    assert len(table) == 4


def test_packing_counts_unreadable_entries_and_keeps_their_class(tmp_path):
    source = class_folders(tmp_path / "src", each=2)
    (source / "ant").mkdir()
    dangling(source / "ant/1.jpg")
    os.mkfifo(source / "cat/pipe.jpg")
    dangling(source / "bee")  # a whole class, perhaps
    (tmp_path / "t.csv").write_text(f"url\nsrc/cat/pipe.jpg\n{source}/cat/cat_000.JPEG\n")
    with pytest.raises(TooManyBadSamplesError, match="3 files cannot be used"):
        pack(str(source), str(tmp_path / "dst"), PackOptions())
    manifest = pack(str(source), str(tmp_path / "dst"), PackOptions(max_bad=3)).manifest
    assert [bad.file for bad in manifest.bad] == ["ant/1.jpg", "bee", "cat/pipe.jpg"]
    assert (manifest.num_samples, manifest.classes) == (4, ("ant", "cat", "dog"))
    table = pack(str(tmp_path / "t.csv"), str(tmp_path / "table"), PackOptions(max_bad=1)).manifest
    assert ([bad.file for bad in table.bad], table.num_samples) == (["src/cat/pipe.jpg"], 1)


def test_folders_of_a_bucket_are_no_files():
    bucket = open_store("memory://markers")
    files = ["cat/1.jpg", "cat/big.png-2.jpg", "cat/big.png/1.jpg", "dog/1.jpg"]
    for name in ("cat", "cat/big.png", *files):
        bucket.put(name, jpeg() if name.endswith(".jpg") else b"")
    table = list_source("memory://markers", SourceOptions())
    assert table.images.paths.to_pylist() == files
    assert table.source.ignored == ("cat", "cat/big.png")


def tar_of(members: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


@pytest.mark.parametrize("picture", ["a.jpg", "sub/z.PNG", "assets/logo.gif"])
def test_a_picture_beside_tars_is_told_and_the_tars_are_the_data(tmp_path, picture):
    files = {"sub/p.tar": tar_of({"x.jpg": jpeg()}), picture: jpeg()}
    source = write(tmp_path / "src", files | {"._p.tar": b"AppleDouble", ".git/q.tar": b""})
    with pytest.raises(DatasetError, match="shards already"):
        list_source(str(source), SourceOptions())
    manifest = index_in_place(str(source)).manifest
    assert ([shard.num_samples for shard in manifest.shards], manifest.source.kind) == ([1], "tars")
    assert picture in manifest.source.ignored
    assert (manifest.source.num_ignored, manifest.source.num_system) == (3, 2)
    assert lint(str(source)).faults == ()


@pytest.mark.parametrize("tar", ["00000.tar", "00000.tar.gz"])
@pytest.mark.parametrize(
    "tables",
    [["00000.parquet", "00001.parquet"], ["labels.csv"], ["b.jsonl", "meta/a.tsv"], ["a.ndjson"]],
)
def test_tables_beside_tars_are_not_the_data(tmp_path, tables, tar):
    """As img2dataset writes both: the table has the URLs that the tars' images came from."""
    files = {tar: tar_of({"x.jpg": jpeg()}), "00000_stats.json": b"{}", "logo.png": png_mask()}
    source = write(tmp_path / "src", files | dict.fromkeys(tables, b"url\nhttp://host/x.jpg\n"))
    what = f"beside {len(tables)} tables (such as {tables[0]})"
    advice = "decompress the tars" if tar.endswith(".gz") else f"`headrace data index {source}`"
    with pytest.raises(DatasetError) as caught:
        pack(str(source), str(tmp_path / "dst"), PackOptions())
    assert what in str(caught.value)
    assert advice in str(caught.value)
    assert f"To pack the rows of a table, name it, such as {source}/{tables[0]}." in str(
        caught.value
    )
    if tar.endswith(".gz"):
        with pytest.raises(DatasetError, match="decompress the tars"):
            index_in_place(str(source))
    else:
        assert index_in_place(str(source)).manifest.source.kind == "tars"


def test_tars_and_images_in_other_folders_are_not_guessed_at(tmp_path):
    source = class_folders(tmp_path / "src", each=2)
    write(source, {"backup.tar": tar_of({"x.jpg": jpeg()})})
    with pytest.raises(
        DatasetError, match=r"\(such as backup\.tar\) and 4 images, of which 4 are no"
    ):
        index_in_place(str(source))
    assert list_source(str(source), SourceOptions()).source.ignored == ("backup.tar",)
    found = TarsAndImages()
    for path in ("a/x.tgz", "a/1.jpg", "b/2.jpg", "b/3.jpg"):
        found.add(path)
    assert (found.num_tars, found.num_archives, found.apart()) == (0, 1, (2, "b/2.jpg"))
    assert found.tars_are_data() is None
    found.add("a/y.TAR")
    assert found.tars_are_data() is True  # a logo or two beside shards


TARS = [["old.tar"], ["images.tar", "masks.TAR"], [f"{n}.tar" for n in range(9)],
        ["old/a.tar", "old.tar.gz"], ["images/a.tar.d/0.tar"]]  # fmt: skip


@pytest.mark.parametrize("tars", TARS)
@pytest.mark.parametrize("kind", ["globs", "cityscapes", "cityscapes of a split"])
def test_tars_beside_pairs_are_ignored_by_index_and_pack_alike(tmp_path, kind, tars):
    if kind == "globs":
        files = {f"images/{n}.jpg": jpeg(n) for n in range(2)}
        source = write(tmp_path / "src", files | {f"masks/{n}.png": png_mask(n) for n in range(2)})
        options = SourceOptions(image_glob="images/*.jpg", mask_glob="masks/*.png")
    else:
        source = cityscapes(tmp_path / "src", each=1)
        options = SourceOptions(split="val" if "split" in kind else None)
    expected = listed(source, **asdict(options))[0]
    write(source, dict.fromkeys(tars, b"no tar"))
    indexed = index_in_place(str(source), source=options, destination=str(tmp_path / "index"))
    packed = pack(str(source), str(tmp_path / "dst"), PackOptions(source=options))
    assert indexed.manifest.num_samples == packed.manifest.num_samples == len(expected)
    assert indexed.manifest.source == packed.manifest.source
    assert lint(indexed.url).faults == ()


def test_shards_in_folders_named_as_cityscapes_trees_are_the_data(tmp_path):
    tar = tar_of({"x.jpg": jpeg()})
    files = {"leftImg8bit/0.tar": tar, "gtFine/0.tar": tar, "logo.png": jpeg()}
    source = write(tmp_path / "src", files)
    assert index_in_place(str(source)).manifest.source.kind == "tars"


def test_hidden_members_of_tars_are_ignored_unless_an_older_index_has_them(tmp_path):
    members = {
        "a/x.jpg": jpeg(),
        "a/.ipynb_checkpoints/x-checkpoint.jpg": jpeg(),
        "a/._x.jpg": b"?",
    }
    source = write(tmp_path / "src", {"p.tar": tar_of(members)})
    told = index_in_place(str(source)).manifest
    assert (told.num_samples, told.source.num_system) == (1, 2)
    assert told.source.system[0] == "p.tar:a/.ipynb_checkpoints/x-checkpoint.jpg"
    assert lint(str(source)).faults == ()
    # A table may name what is hidden; its shards hold it, and are whole.
    (tmp_path / "t.csv").write_text("url\n.cache/1.jpg\n")
    write(tmp_path, {".cache/1.jpg": jpeg()})
    pack(str(tmp_path / "t.csv"), str(tmp_path / "dst"), PackOptions())
    assert open_index(str(tmp_path / "dst")).find(".cache/1") >= 0
    assert lint(str(tmp_path / "dst")).faults == ()


def test_max_bad_leaves_samples_with_faults_out_of_tars(tmp_path):
    whole = tar_of({f"{n}.{kind}": jpeg(n) for n in range(4) for kind in ("jpg", "json")})
    empty = tar_of({"e.jpg": b"", "e.cls": b"1", "f.jpg": jpeg()})
    twice = tar_of({"g.jpg": jpeg(), "g.JPG": jpeg(), "h.jpg": jpeg(), "i.jpg": b"1"})
    apart = tar_of({"j.jpg": jpeg(), "k.jpg": jpeg(), "j.cls": b"1"})
    files = {"a.tar": whole[: len(whole) // 2], "b.tar": empty, "c.tar": twice, "d.tar": apart}
    source = write(tmp_path / "src", files)
    with pytest.raises(TooManyBadSamplesError) as caught:
        index_in_place(str(source), max_bad=3)
    assert "4 files cannot be used, 3 may be left out" in str(caught.value)
    manifest = index_in_place(str(source), max_bad=4).manifest
    index = open_index(str(source))
    keys = [index.locate(sample).key for sample in range(index.num_samples)]
    assert keys[-4:] == ["f", "h", "i", "k"]
    assert set(keys[:-4]) < set("0123")
    assert [bad.file for bad in manifest.bad] == ["a.tar", "b.tar", "c.tar", "d.tar"]
    assert lint(str(source)).faults == ()
    assert [len(index.locate(sample).members) for sample in range(len(keys) - 4)] == [2] * (
        len(keys) - 4
    )
