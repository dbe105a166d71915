"""The bad inputs that must give one clear error or a named entry; see also test_pack_lint.py."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.core.errors import (
    CredentialsError,
    DatasetError,
    DeniedError,
    NoSpaceError,
    NotFoundError,
    TooManyBadSamplesError,
)
from headrace.data.shards.in_place_index import index_in_place
from headrace.data.shards.lint import lint
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_index import open_index
from headrace.data.shards.shard_packer import PackOptions
from headrace.data.shards.sources.source_kinds import SourceOptions, read_classes
from headrace.data.storage import open_store
from headrace.data.transforms.decode import decode_member
from image_trees import (
    cityscapes,
    class_folders,
    contents,
    jpeg,
    jpeg_cmyk,
    png_16bit,
    png_colour,
    png_mask,
    write,
)
from services.object_servers import GoogleHandler, object_server
from small_disks import mounted_disk


def fails(
    error: type[Exception], source: Path, tmp_path: Path, options: PackOptions | None = None
) -> str:
    destination = tmp_path / "dst"
    with pytest.raises(error) as caught:
        pack(str(source), str(destination), options or PackOptions(), check=decode_member)
    assert not (destination / "manifest.json").exists()
    return str(caught.value)


def test_an_empty_folder_and_one_without_images(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "holds no images, or does not exist" in fails(DatasetError, tmp_path / "empty", tmp_path)
    assert "or does not exist" in fails(DatasetError, tmp_path / "nowhere", tmp_path)
    write(tmp_path / "text", {"a/readme.txt": b"x"})
    assert "1 other files (a/readme.txt)" in fails(DatasetError, tmp_path / "text", tmp_path)


def test_tars_are_sent_to_be_indexed(tmp_path):
    write(tmp_path / "src", {"a.tar": b"x"})
    assert "headrace data index" in fails(DatasetError, tmp_path / "src", tmp_path)


def test_compressed_tars_are_distinguished(tmp_path):
    write(tmp_path / "src", {"a.tar.gz": b"x"})
    assert "decompress the tars" in fails(DatasetError, tmp_path / "src", tmp_path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("train", "val"), "look like splits. Pack each by itself"),
        (("Images", "Masks"), "look like images and their masks"),
        (("JPEGImages", "SegmentationClass"), "look like images and their masks"),
        (("image", "mask"), "look like images and their masks"),
    ],
)
def test_folders_that_are_no_classes_are_refused_unless_they_are_named(tmp_path, names, words):
    source = class_folders(tmp_path / "src", each=2, classes=names)
    assert words in fails(DatasetError, source, tmp_path)
    options = PackOptions(source=SourceOptions(classes=names))
    assert pack(str(source), str(tmp_path / "dst"), options).manifest.classes == names


def test_mismatched_pairs_are_listed_and_counted(tmp_path):
    source = cityscapes(tmp_path / "src")
    (source / "gtFine/train/aachen/aachen_000001_000019_gtFine_labelIds.png").unlink()
    (source / "leftImg8bit/train/aachen/aachen_000002_000019_leftImg8bit.png").unlink()
    message = fails(
        DatasetError, source, tmp_path, PackOptions(source=SourceOptions(split="train"))
    )
    assert "2 images and 2 masks do not pair up" in message
    assert "1 images without a mask:\n    leftImg8bit/train/aachen/aachen_000001" in message
    assert "1 masks without an image:\n    gtFine/train/aachen/aachen_000002" in message


def test_two_files_with_one_key(tmp_path):
    source = class_folders(tmp_path / "src", each=1)
    write(source, {"cat/cat_000.png": png_colour()})
    message = fails(DatasetError, source, tmp_path)
    assert "two files with one key, 1 times" in message
    assert "cat/cat_000.JPEG" in message
    assert "cat/cat_000.png" in message


def test_images_beside_class_folders(tmp_path):
    source = class_folders(tmp_path / "src", each=1)
    write(source, {"loose.jpg": jpeg()})
    assert "1 images lie beside the class folders, such as loose.jpg" in fails(
        DatasetError, source, tmp_path
    )


def test_names_that_are_no_text(tmp_path):
    source = class_folders(tmp_path / "src", each=1)
    (Path(os.fsdecode(os.fsencode(source) + b"/cat/\xff.jpg"))).write_bytes(jpeg())
    assert "is not UTF-8. Rename it." in fails(DatasetError, source, tmp_path)


def test_a_name_that_is_no_text_and_of_no_pair_is_ignored(tmp_path):
    source = write(tmp_path / "src", {"0_i.png": png_mask(), "0_m.png": png_mask()})
    Path(os.fsdecode(os.fsencode(source) + b"/notes\xe9.txt")).write_bytes(b"")
    globs = {"image_glob": "**/*_i.png", "mask_glob": "**/*_m.png"}
    report = pack(str(source), str(tmp_path / "to"), PackOptions(source=SourceOptions(**globs)))
    assert report.manifest.num_samples == 1
    Path(os.fsdecode(os.fsencode(source) + b"/1\xe9_i.npy")).write_bytes(b"")
    named = SourceOptions(image_glob="**/*_i.npy", mask_glob="**/*_m.npy")
    assert "is not UTF-8" in fails(DatasetError, source, tmp_path, PackOptions(source=named))


@pytest.mark.parametrize("name", ["recycled", "Recycler"])
def test_classes_may_be_called_as_windows_once_called_its_bin(tmp_path, name):
    source = write(tmp_path / "src", {"paper/0.jpg": jpeg(), f"{name}/1.jpg": jpeg()})
    report = pack(str(source), str(tmp_path / "dst"), PackOptions())
    assert sorted(report.manifest.classes) == sorted(["paper", name])


def test_a_part_of_a_table_that_cannot_be_read_counts_as_a_bad_file(tmp_path):
    source = write(tmp_path / "src", {"0.jpg": jpeg()})
    rows = pa.Table.from_pylist([{"image": "0.jpg", "label": "a"}])
    pa.parquet.write_table(rows, source / "train-00000-of-00002.parquet")
    (source / "train-00001-of-00002.parquet").symlink_to(tmp_path / "purged")
    split = SourceOptions(split="train")
    assert "train-00001-of-00002.parquet" in fails(
        TooManyBadSamplesError, source, tmp_path, PackOptions(source=split)
    )
    report = pack(str(source), str(tmp_path / "to"), PackOptions(source=split, max_bad=1))
    assert report.manifest.num_samples == 1
    assert [bad.file for bad in report.manifest.bad] == ["train-00001-of-00002.parquet"]


@pytest.mark.parametrize("names", ["", "cat\ndog\ncat\n"])
def test_class_lists_that_are_none(tmp_path, names):
    (tmp_path / "names.txt").write_text(names)
    with pytest.raises(DatasetError, match=r"names no classes|names the class 'cat' twice"):
        read_classes(str(tmp_path / "names.txt"))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("name,label\na.jpg,1\n", "one of url, image"),
        ("url,label\n", "no rows"),
        ("url,label\na.jpg,cat\nb.jpg,\n", "column 'label' is empty in row 2 (of 2)"),
        ("url,label\na.jpg,-1\n", "unknown class (not 0 to"),
        ("url,label\na.jpg,0.5\n", "column 'label' holds numbers with decimals"),
        ("url,label\nx/a.jpg,1\nx/a.jpg,2\n", "two files with one key"),
        ("url,label\na.jpg,1,2\n", "cannot be read as its name says"),
        ("url,label\na.jpg,1\n../b.jpg,1\n", "column 'url' leads out of the table's folder"),
        ("url,mask\na.jpg,../a.png\n", "column 'mask' leads out of the table's folder"),
        ("url,key\na.jpg,a\nb.jpg,../b\n", "'key' would name a sample with '..' or a leading '/'"),
        ("url,key\na.jpg,/etc/a\n", "a sample with '..' or a leading '/' in row 1 (of 1)"),
        ("url\nhttp://host/x/../a.jpg\n", "'url' would name a sample with '..'"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, rows, words):
    (tmp_path / "t.csv").write_text(rows)
    assert words in fails(DatasetError, tmp_path / "t.csv", tmp_path)


def test_a_table_that_is_not_there(tmp_path):
    assert "t.csv" in fails(NotFoundError, tmp_path / "t.csv", tmp_path)


BAD_IMAGES = {
    "cat/zero.jpg": b"",
    "cat/cut.png": png_colour()[:300],
    "cat/short.jpg": jpeg()[:-200],
    "cat/deep.png": png_16bit(),
    "dog/text.jpg": b"<html>not found</html>",
}


def test_bad_images_are_all_named_and_fail_above_the_budget(tmp_path):
    source = class_folders(tmp_path / "src", each=6)
    write(source, BAD_IMAGES | {"dog/inks.jpg": jpeg_cmyk()})
    message = fails(TooManyBadSamplesError, source, tmp_path, PackOptions(shard_bytes=8000))
    assert "5 files cannot be used, 0 may be left out (--max-bad)" in message
    for path in BAD_IMAGES:
        assert f"  {path}: " in message
    assert "16 bits" in message
    assert "--max-bad 5" in message

    options = PackOptions(shard_bytes=8000, max_bad=5)
    report = pack(str(source), str(tmp_path / "dst"), options, check=decode_member)
    assert {bad.file for bad in report.manifest.bad} == BAD_IMAGES.keys()
    index = open_index(str(tmp_path / "dst"))
    assert index.num_samples == 13
    assert index.find("dog/inks") >= 0  # printing inks are converted when decoded
    assert sum(index.shard_sizes) == 13


def test_where_nothing_is_left_there_is_no_dataset(tmp_path):
    source = write(tmp_path / "src", {"cat/zero.jpg": b""})
    assert "no sample is left" in fails(DatasetError, source, tmp_path, PackOptions(max_bad=1))


def test_a_file_that_may_not_be_read_is_a_bad_file(tmp_path):
    source = class_folders(tmp_path / "src", each=2)
    (source / "cat/cat_001.JPEG").unlink()
    (source / "cat/cat_001.JPEG").symlink_to("/proc/self/mem")
    assert "1 files cannot be used" in fails(TooManyBadSamplesError, source, tmp_path)


def test_a_bucket_without_permission(tmp_path, s3_url, monkeypatch):
    source = class_folders(tmp_path / "src", each=2)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-canary")
    for ends in ((f"{s3_url}/src", str(tmp_path / "dst")), (str(source), f"{s3_url}/dst")):
        with pytest.raises(DeniedError) as caught:
            pack(*ends, PackOptions())
        assert "s3://" in str(caught.value)
        assert "canary" not in str(caught.value)


class _RefusingHandler(GoogleHandler):
    """Lists everything, and answers as given where one of some objects is read."""

    refused: ClassVar[dict[str, tuple[int, str]]] = {}

    def do_GET(self) -> None:  # noqa: N802  (http.server names it)
        answer = self.refused.get(self.key.rpartition("/")[2])
        if answer is None:
            super().do_GET()
        else:
            self.answer(*answer)


@pytest.fixture
def refusing_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of class folders on a server; see _RefusingHandler."""
    source = class_folders(tmp_path / "src", each=4)
    with object_server(_RefusingHandler) as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", server.endpoint)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token")
        for path, data in contents(source).items():
            open_store("gs://bucket/src").put(path, data)
        yield "gs://bucket/src"
        _RefusingHandler.refused.clear()


_EXPIRED = (400, "<Error><Code>ExpiredToken</Code></Error>")


@pytest.mark.parametrize("refusal", [(401, ""), _EXPIRED])
def test_refused_credentials_end_the_work_and_make_no_file_bad(tmp_path, refusing_bucket, refusal):
    options = PackOptions(shard_bytes=4000, keep_order=True)
    _RefusingHandler.refused |= {f"dog_{number:03d}.JPEG": refusal for number in range(4)}
    with pytest.raises(CredentialsError, match="run the same command again to go on"):
        pack(refusing_bucket, str(tmp_path / "dst"), options)
    with pytest.raises(CredentialsError):
        index_in_place(refusing_bucket, destination=str(tmp_path / "index"), max_bad=100)
    _RefusingHandler.refused.clear()
    pack(refusing_bucket, str(tmp_path / "dst"), options)
    pack(str(tmp_path / "src"), str(tmp_path / "whole"), options)
    index, whole = open_index(str(tmp_path / "dst")), open_index(str(tmp_path / "whole"))
    assert index.manifest.bad == ()
    assert index.fingerprint == whole.fingerprint


def test_what_a_first_look_reads_is_refused_too(tmp_path, refusing_bucket):
    """Sizes that no listing gives are measured beforehand."""
    (tmp_path / "t.csv").write_text(f"url\n{refusing_bucket}/dog/dog_000.JPEG\n")
    _RefusingHandler.refused["dog_000.JPEG"] = (401, "")
    fails(CredentialsError, tmp_path / "t.csv", tmp_path)


def test_bad_files_are_read_anew_by_the_same_command(tmp_path, refusing_bucket):
    options = PackOptions(shard_bytes=4000, keep_order=True)
    _RefusingHandler.refused["dog_001.JPEG"] = (403, "<Error><Code>AccessDenied</Code></Error>")
    with pytest.raises(TooManyBadSamplesError, match="reads them anew"):
        pack(refusing_bucket, str(tmp_path / "dst"), options)
    finished = {file.stem for file in (tmp_path / "dst/.packing").glob("*.arrow")}
    assert finished  # those without it are kept
    _RefusingHandler.refused.clear()
    manifest = pack(refusing_bucket, str(tmp_path / "dst"), options).manifest
    assert (manifest.num_samples, manifest.bad) == (8, ())


class _KeepingHandler(GoogleHandler):
    """Takes what is written, and lets nobody delete it."""

    def do_DELETE(self) -> None:  # noqa: N802  (http.server names it)
        self.answer(403, "<Error><Code>AccessDenied</Code></Error>")


@pytest.fixture
def keeping_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with object_server(_KeepingHandler) as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", server.endpoint)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token")
        yield "gs://bucket"


def test_who_may_write_and_not_delete_can_pack_and_index(tmp_path, keeping_bucket):
    source = class_folders(tmp_path / "src", each=2)
    packed = pack(str(source), f"{keeping_bucket}/packed", PackOptions())
    assert (packed.already, packed.manifest.num_samples) == (False, 4)
    assert pack(str(source), packed.url, PackOptions()).already
    assert lint(packed.url).faults == ()
    indexed = index_in_place(str(source), destination=f"{keeping_bucket}/index")
    assert indexed.manifest.num_samples == 4


def test_bad_files_are_named_where_nothing_can_be_deleted(tmp_path, keeping_bucket):
    source = write(class_folders(tmp_path / "src", each=2), {"cat/zero.jpg": b""})
    with pytest.raises(TooManyBadSamplesError) as caught:
        pack(str(source), f"{keeping_bucket}/packed", PackOptions(), check=decode_member)
    assert "  cat/zero.jpg: " in str(caught.value)
    assert "Corrected files need an empty destination" in str(caught.value)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", "48k") as disk:
        yield disk


def test_no_space_while_packing_and_going_on_with_more(tmp_path, small_disk):
    source = class_folders(tmp_path / "src", each=20)
    options = PackOptions(shard_bytes=16_000)
    with pytest.raises(NoSpaceError) as caught:
        pack(str(source), str(small_disk / "dst"), options)
    assert "Free some space" in str(caught.value)
    assert "000001.tar" in str(caught.value)
    assert "000000.tar" in contents(small_disk / "dst")

    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    pack(str(source), str(small_disk / "dst"), options)
    pack(str(source), str(tmp_path / "roomy"), options)
    assert contents(small_disk / "dst") == contents(tmp_path / "roomy")
