"""Packing of every kind of source: class folders, pairs, tables, WebDataset's tars."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import boto3
import pyarrow as pa
import pyarrow.parquet
import pytest
import webdataset
from s3_server import S3Server

from headrace.core.errors import DatasetError, UsageError
from headrace.data.shards.pack import pack
from headrace.data.shards.reports import PackProgress
from headrace.data.shards.shard_index import ShardIndex, open_index, read_member
from headrace.data.shards.shard_packer import PackOptions, SourceReader
from headrace.data.shards.sources.sample_table import SourceFile, SourceSample
from headrace.data.shards.sources.source_kinds import SourceOptions, list_source, read_classes
from headrace.data.storage import open_store
from headrace.data.transforms.decode import decode_member
from headrace.data.transforms.resize import Recode
from image_trees import cityscapes, class_folders, contents, jpeg, png_mask, write


def read_all(index: ShardIndex) -> dict[str, dict[str, bytes]]:
    store = open_store(index.data_url)
    locations = [index.locate(sample) for sample in range(index.num_samples)]
    return {
        location.key: {
            member.extension: read_member(store, index, location, member)
            for member in location.members
        }
        for location in locations
    }


def test_class_folders_arrive_whole_shuffled_and_readable_by_webdataset(tmp_path):
    source = class_folders(tmp_path / "src", each=20)
    write(source, {"README.md": b"hello", "cat/.DS_Store": b"x"})
    options = PackOptions(shard_bytes=30_000)
    report = pack(str(source), str(tmp_path / "dst"), options, check=decode_member)

    index = open_index(str(tmp_path / "dst"))
    assert index.manifest == report.manifest
    assert index.manifest.classes == ("cat", "dog")
    assert (index.manifest.source.num_ignored, index.manifest.source.ignored) == (
        2,
        ("README.md", "cat/.DS_Store"),
    )
    wanted = {
        f"{name}/{name}_{number:03d}": {
            "jpg": (source / name / f"{name}_{number:03d}.JPEG").read_bytes(),
            "cls": str(label).encode(),
        }
        for label, name in enumerate(("cat", "dog"))
        for number in range(20)
    }
    assert read_all(index) == wanted
    keys = [index.locate(sample).key for sample in range(40)]
    assert keys != sorted(keys)

    shards = sorted(str(path) for path in (tmp_path / "dst").glob("*.tar"))
    assert len(shards) == len(index.shard_sizes) > 1
    theirs = list(webdataset.WebDataset(shards, shardshuffle=False).decode("rgb8"))
    assert [sample["__key__"] for sample in theirs] == keys
    assert [sample["cls"] for sample in theirs] == [int(wanted[key]["cls"]) for key in keys]
    assert theirs[0]["jpg"].shape == (32, 48, 3)


def test_the_bytes_are_the_same_whatever_the_workers_and_another_seed_shuffles_otherwise(tmp_path):
    source = class_folders(tmp_path / "src", each=12)
    options = {"shard_bytes": 15_000, "max_bad": 0}
    pack(str(source), str(tmp_path / "one"), PackOptions(workers=1, **options))
    pack(str(source), str(tmp_path / "three"), PackOptions(workers=3, **options))
    pack(str(source), str(tmp_path / "seed"), PackOptions(workers=2, seed=1, **options))
    assert contents(tmp_path / "one") == contents(tmp_path / "three")
    assert contents(tmp_path / "one")["000000.tar"] != contents(tmp_path / "seed")["000000.tar"]


def test_keep_order_keeps_the_order_of_the_paths(tmp_path):
    source = class_folders(tmp_path / "src")
    pack(str(source), str(tmp_path / "dst"), PackOptions(keep_order=True))
    index = open_index(str(tmp_path / "dst"))
    keys = [index.locate(sample).key for sample in range(index.num_samples)]
    assert keys == sorted(keys)


def test_cityscapes_pairs_images_with_masks_of_one_split(tmp_path):
    source = cityscapes(tmp_path / "src")
    options = PackOptions(source=SourceOptions(split="train"))
    report = pack(str(source), str(tmp_path / "dst"), options, check=decode_member)
    samples = read_all(open_index(str(tmp_path / "dst")))
    assert sorted(samples) == [f"aachen/aachen_{number:06d}_000019" for number in range(3)]
    key = "aachen/aachen_000001_000019"
    assert samples[key] == {
        "image.png": (source / f"leftImg8bit/train/{key}_leftImg8bit.png").read_bytes(),
        "png": (source / f"gtFine/train/{key}_gtFine_labelIds.png").read_bytes(),
    }
    assert report.manifest.source.num_ignored == 3  # the polygons


def test_a_jpeg_and_its_mask_have_plain_names_and_are_shrunk_together(tmp_path):
    files = {f"img/{n}.jpg": jpeg(n, width=96, height=64) for n in range(4)}
    files |= {f"ann/{n}_mask.png": png_mask(n, width=96, height=64) for n in range(4)}
    source = write(tmp_path / "src", files)
    options = PackOptions(
        source=SourceOptions(image_glob="img/*.jpg", mask_glob="ann/*_mask.png"),
        recoding={"resize_short": 32, "quality": 90},
    )
    recode = Recode(resize_short=32, quality=90)
    report = pack(str(source), str(tmp_path / "dst"), options, recode=recode, check=decode_member)
    samples = read_all(open_index(str(tmp_path / "dst")))
    for n in range(4):
        image = decode_member("jpg", samples[str(n)]["jpg"])
        mask = decode_member("png", samples[str(n)]["png"])
        assert image.shape == (32, 48, 3)
        assert mask.shape == (32, 48, 1)
        whole = decode_member("png", files[f"ann/{n}_mask.png"])
        assert set(mask.ravel().tolist()) <= set(whole.ravel().tolist())
    assert report.manifest.num_recoded == 8
    assert report.manifest.options["recoding"] == {"resize_short": 32, "quality": 90}


def table(folder: Path, kind: str, rows: list[dict[str, object]]) -> Path:
    path = folder / f"train.{kind}"
    if kind == "csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pa.parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_table_of_urls_and_labels(tmp_path, kind):
    source = class_folders(tmp_path / "src", each=2)
    rows = [
        {"url": str(source / "dog/dog_001.JPEG"), "label": "dog", "lat": 1.5},
        {"url": "src/cat/cat_000.JPEG", "label": "cat", "lat": 2.5},
        {"url": f"file://{source}/dog/dog_000.JPEG", "label": "dog", "lat": 3.5},
    ]
    path = table(tmp_path, kind, rows)
    report = pack(str(path), str(tmp_path / "dst"), PackOptions(keep_order=True))
    index = open_index(str(tmp_path / "dst"))
    samples = list(read_all(index).values())
    assert [sample["cls"] for sample in samples] == [b"1", b"0", b"1"]
    assert [json.loads(sample["json"]) for sample in samples] == [
        {"lat": 1.5}, {"lat": 2.5}, {"lat": 3.5},
    ]  # fmt: skip
    assert samples[1]["jpg"] == (source / "cat/cat_000.JPEG").read_bytes()
    assert report.manifest.classes == ("cat", "dog")


def test_a_table_in_a_bucket_names_objects_beside_it_and_elsewhere(tmp_path, s3_url):
    bucket = open_store(s3_url)
    for path in ("lists/near/a.jpg", "far/b.jpg"):
        bucket.put(path, jpeg(len(path)))
    bucket.put("lists/t.csv", f"url,label\nnear/a.jpg,0\n{s3_url}/far/b.jpg,1\n".encode())
    pack(f"{s3_url}/lists/t.csv", f"{s3_url}/packed", PackOptions(keep_order=True))
    samples = list(read_all(open_index(f"{s3_url}/packed")).values())
    assert samples == [
        {"jpg": jpeg(len("lists/near/a.jpg")), "cls": b"0"},
        {"jpg": jpeg(len("far/b.jpg")), "cls": b"1"},
    ]


def test_a_table_may_name_images_without_extensions(tmp_path):
    write(tmp_path, {"000007": jpeg(7), "1e3": png_mask(1), "notes": b"no image"})
    (tmp_path / "t.csv").write_text("path,label\n000007,01\n1e3,10\nnotes,01\n")
    options = PackOptions(keep_order=True, max_bad=1)
    report = pack(str(tmp_path / "t.csv"), str(tmp_path / "dst"), options)
    assert read_all(open_index(str(tmp_path / "dst"))) == {
        "000007": {"jpg": jpeg(7), "cls": b"0"}, "1e3": {"png": png_mask(1), "cls": b"1"},
    }  # fmt: skip
    assert report.manifest.classes == ("01", "10")
    (left_out,) = report.manifest.bad
    assert "no extension, which would say what it holds, nor is it an image" in left_out.reason


def test_webdataset_reads_every_kind_of_member_and_name(tmp_path):
    source = cityscapes(tmp_path / "src")
    options = PackOptions(source=SourceOptions(split="train"), keep_order=True)
    pack(str(source), str(tmp_path / "pairs"), options)
    long = "x" * 120
    rows = [
        {"url": f"p/{number}.jpg", "key": key, "lat": 0.5, "label": number}
        for number, key in enumerate(("plain", f"{long}/{long}", "straße/v1.2 é"))
    ]
    write(tmp_path, {f"p/{number}.jpg": jpeg(number) for number in range(3)})
    pack(str(table(tmp_path, "jsonl", rows)), str(tmp_path / "rows"), PackOptions(keep_order=True))
    for name in ("pairs", "rows"):
        shards = sorted(str(path) for path in (tmp_path / name).glob("*.tar"))
        theirs = {
            sample.pop("__key__"): {
                member: data for member, data in sample.items() if not member.startswith("__")
            }
            for sample in webdataset.WebDataset(shards, shardshuffle=False)
        }
        assert theirs == read_all(open_index(str(tmp_path / name)))
    assert {"cls", "jpg", "json"} == set(theirs["plain"])
    assert len(theirs) == 3


def test_splits_number_their_classes_alike(tmp_path):
    train = class_folders(tmp_path / "train", each=1, classes=("cat", "dog", "eel"))
    val = class_folders(tmp_path / "val", each=1, classes=("eel",))
    pack(str(train), str(tmp_path / "a"), PackOptions())
    classes = read_classes(str(tmp_path / "a"))
    (tmp_path / "names.txt").write_text("\n".join(classes))
    assert read_classes(str(tmp_path / "names.txt")) == classes == ("cat", "dog", "eel")
    options = PackOptions(source=SourceOptions(classes=classes))
    pack(str(val), str(tmp_path / "b"), options)
    assert read_all(open_index(str(tmp_path / "b")))["eel/eel_000"]["cls"] == b"2"
    few = PackOptions(source=SourceOptions(classes=("cat", "dog")))
    with pytest.raises(DatasetError, match="unknown class 'eel'"):
        pack(str(val), str(tmp_path / "c"), few)


def test_a_finished_packing_is_left_alone_and_another_refused(tmp_path):
    source = class_folders(tmp_path / "src")
    pack(str(source), str(tmp_path / "dst"), PackOptions())
    before = contents(tmp_path / "dst")
    assert pack(str(source), str(tmp_path / "dst"), PackOptions(workers=2)).already
    with pytest.raises(DatasetError, match="holds a dataset already"):
        pack(str(source), str(tmp_path / "dst"), PackOptions(seed=1))
    assert contents(tmp_path / "dst") == before


def test_the_same_table_in_another_folder_is_another_source(tmp_path):
    for folder, data in (("raw", jpeg(1)), ("cleaned", jpeg(2))):
        write(tmp_path / folder, {"0.jpg": data, "t.csv": b"image,label\n0.jpg,a\n"})
    pack(str(tmp_path / "raw" / "t.csv"), str(tmp_path / "dst"), PackOptions())
    with pytest.raises(DatasetError, match="holds a dataset already"):
        pack(str(tmp_path / "cleaned" / "t.csv"), str(tmp_path / "dst"), PackOptions())
    assert pack(str(tmp_path / "raw" / "t.csv"), str(tmp_path / "dst"), PackOptions()).already


def test_what_another_packing_to_the_same_place_took_away_is_missed(tmp_path):
    source = class_folders(tmp_path / "src")

    def take_away(progress: PackProgress) -> None:
        if progress.stage == "packing" and progress.samples:  # as one does that has finished
            for file in (tmp_path / "dst/.packing").glob("*.arrow"):
                file.unlink()

    with pytest.raises(DatasetError, match="another packing"):
        pack(str(source), str(tmp_path / "dst"), PackOptions(shard_bytes=1), progress=take_away)
    assert not (tmp_path / "dst/manifest.json").exists()
    report = pack(str(source), str(tmp_path / "dst"), PackOptions(shard_bytes=1))
    assert report.manifest.num_samples == sum(each.is_file() for each in source.rglob("*"))


class _EnoughError(Exception):
    """Ends a packing that has claimed its destination."""


def _end_when_begun(progress: PackProgress) -> None:
    if progress.stage == "packing":
        raise _EnoughError


@pytest.mark.parametrize("kind", ["class folders", "images", "pairs"])
def test_files_with_other_inodes_are_the_same_source(tmp_path, kind):
    """As a network file system has them after each mount, and a disk that was restored."""
    files = {
        "class folders": {f"{name}/{n}.jpg": jpeg(n) for name in ("cat", "dog") for n in range(2)},
        "images": {f"{n}.jpg": jpeg(n) for n in range(2)},
        "pairs": {f"{side}/{n}.jpg": jpeg(n) for side in ("images", "masks") for n in range(2)},
    }[kind]
    globs = {"image_glob": "images/*.jpg", "mask_glob": "masks/*.jpg"} if kind == "pairs" else {}
    options = PackOptions(source=SourceOptions(**globs))
    source = write(tmp_path / "src", files)
    with pytest.raises(_EnoughError):
        pack(str(source), str(tmp_path / "dst"), options, progress=_end_when_begun)
    source.rename(tmp_path / "old")
    shutil.copytree(tmp_path / "old", source)  # with the times, too
    assert pack(str(source), str(tmp_path / "dst"), options).manifest.source.num_files == len(files)
    assert pack(str(source), str(tmp_path / "dst"), options).already
    os.utime(source / min(files), (1, 1))  # written anew, with as many bytes
    with pytest.raises(DatasetError, match="holds a dataset already"):
        pack(str(source), str(tmp_path / "dst"), options)


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize(
    ("file_bytes", "count", "most"), [(1000, 100, 64), (16 << 20, 12, 4), (40 << 20, 10, 1)]
)
def test_large_files_are_read_ahead_as_memory_allows(tmp_path, is_listed, file_bytes, count, most):
    """Volumes, films, sound: of the rows of a table no size is known before a file is read."""
    with (tmp_path / "x.bin").open("wb") as file:
        file.truncate(file_bytes)
    begun: list[int] = []

    def samples() -> Iterator[SourceSample]:
        size_bytes = file_bytes if is_listed else -1
        one = SourceFile(extension="bin", path="x.bin", size_bytes=size_bytes, is_mask=False)
        for number in range(count):
            begun.append(number)
            yield SourceSample(key=str(number), files=(one,), values=())

    ahead = []
    with closing(SourceReader(str(tmp_path))) as reader:
        for number, (sample, (content,)) in enumerate(reader.read(samples()), start=1):
            assert (sample.key, len(content.result(60))) == (str(number - 1), file_bytes)
            ahead.append(len(begun) - number)
    assert len(ahead) == count
    assert max(ahead[5:]) == most


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_of_two_packings_begun_together_the_later_is_refused(tmp_path, s3_url, where):
    destination = s3_url if where == "bucket" else str(tmp_path / "dst")
    mine = class_folders(tmp_path / "mine", each=1)
    another = class_folders(tmp_path / "another", each=1, classes=("eel", "fox"))

    def begin_another(extension: str, data: bytes) -> bytes:
        # Called to measure the source, when the destination has been seen to be free.
        with pytest.raises(_EnoughError):
            pack(str(another), destination, PackOptions(), progress=_end_when_begun)
        return data

    with pytest.raises(DatasetError, match="unfinished packing of other options"):
        pack(str(mine), destination, PackOptions(), recode=begin_another)
    assert pack(str(another), destination, PackOptions()).manifest.classes == ("eel", "fox")


def test_a_record_of_another_packing_is_refused(tmp_path):
    """As there may be where a server let two claim one destination."""
    record = tmp_path / "dst/.packing/000000.arrow"
    found: list[bytes] = []

    def exchange(progress: PackProgress) -> None:
        if progress.stage == "indexing":
            found.append(record.read_bytes())
            if len(found) == 1:
                raise _EnoughError
            record.write_bytes(found[0])

    source = class_folders(tmp_path / "mine", each=2)
    another = class_folders(tmp_path / "another", each=2, classes=("eel", "fox"))
    with pytest.raises(_EnoughError):
        pack(str(another), str(tmp_path / "dst"), PackOptions(), progress=exchange)
    shutil.rmtree(tmp_path / "dst")
    with pytest.raises(DatasetError, match=r"000000\.arrow is of another packing"):
        pack(str(source), str(tmp_path / "dst"), PackOptions(), progress=exchange)
    assert not (tmp_path / "dst/manifest.json").exists()


def test_a_destination_with_other_things_in_it_is_refused(tmp_path):
    source = class_folders(tmp_path / "src")
    write(tmp_path / "dst", {"notes.txt": b"mine"})
    with pytest.raises(DatasetError, match=r"not empty: it holds notes\.txt"):
        pack(str(source), str(tmp_path / "dst"), PackOptions())
    with pytest.raises(UsageError, match="within the source"):
        pack(str(source), str(source / "dst"), PackOptions())


def show_folder(server: S3Server, url: str) -> None:
    """Write the empty object by which a console shows a new folder."""
    client = boto3.client("s3", endpoint_url=server.endpoint)
    key = url.removeprefix(f"s3://{server.bucket}/")
    client.put_object(Bucket=server.bucket, Key=f"{key}/")


def test_empty_objects_are_files_but_those_that_show_folders(s3_server, s3_url):
    bucket = open_store(f"{s3_url}/src")
    for path in ("cat/1.jpg", "eel/1.jpg"):
        bucket.put(path, jpeg())
    for name in ("src", "src/cat", "src/cat/sub"):
        show_folder(s3_server, f"{s3_url}/{name}")
    for path in ("DONE", "SUCCESS", "_SUCCESS", ".done", "x.txt", "cat/DONE", "cat_$folder$"):
        bucket.put(path, b"")
    table = list_source(bucket.url, SourceOptions())
    assert (table.classes, len(table)) == (("cat", "eel"), 2)


@pytest.mark.parametrize("shown", ["dog/", "dog.v2/", "_dog/", "dog/a/", "dog_$folder$"])
def test_a_class_folder_of_a_bucket_with_nothing_in_it_would_shift_the_labels(
    s3_server, s3_url, shown
):
    bucket = open_store(f"{s3_url}/src")
    for path in ("cat/1.jpg", "eel/1.jpg"):
        bucket.put(path, jpeg())
    bucket.put("DONE", b"")
    if shown.endswith("/"):
        show_folder(s3_server, f"{s3_url}/src/{shown.rstrip('/')}")
    else:
        bucket.put(shown, b"")
    name = re.escape(shown.partition("/")[0].removesuffix("_$folder$"))
    with pytest.raises(DatasetError, match=rf"1 of the folders hold no images.*\n  {name}: "):
        list_source(bucket.url, SourceOptions())
    known = SourceOptions(classes=("cat", "dog", "eel"))
    assert list_source(bucket.url, known).classes == known.classes


def test_from_a_bucket_into_a_bucket(tmp_path, s3_server, s3_url):
    local = class_folders(tmp_path / "src", each=6)
    for name in ("src", "src/cat", "dst"):
        show_folder(s3_server, f"{s3_url}/{name}")
    bucket = open_store(f"{s3_url}/src")
    for path, data in contents(local).items():
        bucket.put(path, data)
    options = PackOptions(shard_bytes=10_000, workers=2)
    remote = pack(f"{s3_url}/src", f"{s3_url}/dst", options, check=decode_member).manifest
    here = pack(str(local), str(tmp_path / "dst"), options).manifest
    assert remote.fingerprint == here.fingerprint
    index = open_index(f"{s3_url}/dst", cache_dir=tmp_path / "cache")
    assert read_all(index) == read_all(open_index(str(tmp_path / "dst")))
    names = {info.path for info in open_store(f"{s3_url}/dst").list()}
    assert names == set(contents(tmp_path / "dst"))
