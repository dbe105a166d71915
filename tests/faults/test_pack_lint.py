"""A dataset that is damaged afterwards: each fault is named, by lint and when it is opened."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import CorruptError, DatasetError
from headrace.data.shards.in_place_index import index_in_place
from headrace.data.shards.lint import lint
from headrace.data.shards.manifest import DatasetManifest
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_index import open_index, read_member
from headrace.data.shards.shard_packer import PackOptions
from headrace.data.storage import open_store
from image_trees import class_folders, write
from jobs import eventually


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    source = class_folders(folder / "src", each=6)
    pack(str(source), str(folder / "dst"), PackOptions(shard_bytes=8_000))
    return folder / "dst"


@pytest.fixture
def dataset(packed: Path, tmp_path: Path) -> Path:
    shutil.copytree(packed, tmp_path / "dataset")
    return tmp_path / "dataset"


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def faults(dataset: Path) -> list[tuple[str, str]]:
    return [(fault.kind, str(fault)) for fault in lint(str(dataset)).faults]


def test_a_whole_dataset_has_no_faults(dataset):
    report = lint(str(dataset))
    assert report.faults == ()
    assert (report.num_samples, report.num_members, report.num_shards) == (12, 24, 3)
    assert report.read_bytes == sum(file.stat().st_size for file in dataset.glob("*.tar"))


def test_a_flipped_byte_is_found_in_its_member_and_when_it_is_read(dataset):
    index = open_index(str(dataset))
    location = index.locate(1)
    image = next(member for member in location.members if member.extension == "jpg")
    flip(dataset / image.path, image.offset + 100)
    where = f"{location.key}.jpg (bytes {image.offset}-{image.offset + image.size_bytes - 1})"
    assert faults(dataset) == [
        ("checksum", f"{image.path}: {where}: checksum differs from the index.")
    ]
    with pytest.raises(CorruptError, match="checksum differs at sample"):
        read_member(open_store(str(dataset)), index, location, image)


def remove(dataset: Path) -> None:
    (dataset / "000001.tar").unlink()


def cut(dataset: Path) -> None:
    whole = (dataset / "000001.tar").read_bytes()
    (dataset / "000001.tar").write_bytes(whole[: len(whole) // 2])


def damage_header(dataset: Path) -> None:
    flip(dataset / "000001.tar", 3)


def add(dataset: Path) -> None:
    shutil.copy(dataset / "000001.tar", dataset / "000009.tar")


def exchange(dataset: Path) -> None:
    shutil.copy(dataset / "000000.tar", dataset / "000001.tar")


def damage_manifest(dataset: Path) -> None:
    change_manifest(dataset, lambda manifest: manifest["shards"][0].update(num_samples=99))


def change_manifest(dataset: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((dataset / "manifest.json").read_text())
    change(manifest)
    (dataset / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda manifest: manifest.update(num_samples=99), "do not add up"),
        (lambda manifest: manifest["shards"][0].update(num_samples=99), "do not add up"),
        (lambda manifest: manifest["shards"][0].update(digest="0"), "fingerprint is not"),
        (lambda manifest: manifest.update(fingerprint="0"), "fingerprint is not"),
        (lambda manifest: manifest.update(layout="zip"), "layout 'zip'"),
    ],
)
@pytest.mark.parametrize("has_checksum", [True, False])
def test_a_manifest_that_contradicts_itself_is_damaged(
    dataset: Path, change: Callable[[dict[str, Any]], object], message: str, has_checksum: bool
):
    change_manifest(dataset, change)
    if not has_checksum:  # as of earlier versions
        change_manifest(dataset, lambda manifest: manifest.pop("checksum"))
    with pytest.raises(DatasetError, match="checksum differs" if has_checksum else message):
        open_index(str(dataset))


def empty_manifest(dataset: Path) -> None:
    (dataset / "manifest.json").write_bytes(b"")


def damage_index(dataset: Path) -> None:
    entry = open_index(str(dataset)).manifest.shards[1]
    flip(dataset / "index.arrow", entry.index_start + entry.index_bytes - 60)


def cut_index(dataset: Path) -> None:
    data = (dataset / "index.arrow").read_bytes()
    (dataset / "index.arrow").write_bytes(data[:-100])


def remove_index(dataset: Path) -> None:
    (dataset / "index.arrow").unlink()


@pytest.mark.parametrize(
    ("damage", "kinds"),
    [
        (remove, {"missing"}),
        (cut, {"cut", "size", "missing"}),
        (damage_header, {"header", "missing"}),
        (add, {"extra"}),
        (exchange, {"missing", "extra", "size"}),
        (damage_manifest, {"manifest"}),
        (empty_manifest, {"manifest"}),
        (damage_index, {"index", "checksum"}),
        (cut_index, {"index"}),
        (remove_index, {"index"}),
    ],
)
def test_each_damage_is_named(dataset: Path, damage: Callable[[Path], None], kinds: set[str]):
    damage(dataset)
    found = faults(dataset)
    assert {kind for kind, _ in found} <= kinds
    assert found
    assert len(found) <= 4  # summed up, not one line for each member behind the damage


def test_a_newer_format_is_reported(dataset):
    manifest = json.loads((dataset / "manifest.json").read_text())
    (dataset / "manifest.json").write_text(json.dumps(manifest | {"version": 2}))
    with pytest.raises(DatasetError, match="Install a newer Headrace"):
        open_index(str(dataset))


def with_one_wrong(content: Any) -> Iterator[Any]:
    """Yield JSON with one value of another type, at each place; of a list at its first element."""
    for wrong in (None, 5, 1.5, True, "text", [None], {"a": 1}):
        if type(wrong) is not type(content) or isinstance(content, list):
            yield wrong
    if isinstance(content, dict):
        for name, inner in content.items():
            yield from ({**content, name: each} for each in with_one_wrong(inner))
    if isinstance(content, list) and content:
        yield from ([each, *content[1:]] for each in with_one_wrong(content[0]))


def test_a_value_of_another_type_in_a_manifest_is_named_as_damage(packed):
    manifest = json.loads((packed / "manifest.json").read_text())
    manifest["options"] = {}  # compared as a whole
    del manifest["checksum"]  # as of earlier versions
    for changed in with_one_wrong(manifest):
        if changed == manifest:  # the version is True
            continue
        with pytest.raises(DatasetError, match=r"manifest\.json is"):
            DatasetManifest.from_json(json.dumps(changed).encode(), "url")


def test_the_index_of_another_dataset_is_refused(dataset, tmp_path, s3_url):
    source = class_folders(tmp_path / "src", each=6, classes=("eel", "fox"))
    pack(str(source), str(tmp_path / "other"), PackOptions(shard_bytes=8_000))
    shutil.copy(tmp_path / "other/index.arrow", dataset / "index.arrow")
    with pytest.raises(DatasetError, match="belongs to another"):
        open_index(str(dataset))
    assert [kind for kind, _ in faults(dataset)] == ["index"]
    bucket = open_store(s3_url)
    for name in ("index.arrow", "manifest.json"):
        bucket.put(name, (dataset / name).read_bytes())
    with pytest.raises((DatasetError, CorruptError), match=r"index\.arrow"):
        open_index(s3_url, cache_dir=tmp_path / "cache").locate(0)


def test_loose_objects_that_changed_or_went_are_named(tmp_path):
    source = class_folders(tmp_path / "src", each=3)
    index_in_place(str(source))
    flip(source / "cat/cat_000.JPEG", 50)
    (source / "cat/cat_001.JPEG").unlink()
    write(source, {"cat/cat_002.JPEG": b"short"})
    assert [kind for kind, _ in faults(source)] == ["checksum", "missing", "size"]


def test_where_there_is_no_dataset_that_is_said(tmp_path):
    with pytest.raises(DatasetError, match="holds no dataset"):
        lint(str(tmp_path))


def test_a_damaged_copy_of_the_index_is_read_anew_from_the_store(
    s3_url: str, dataset: Path, tmp_path: Path
):
    store = open_store(s3_url)
    for file in dataset.iterdir():
        store.put(file.name, file.read_bytes())
    cache = tmp_path / "cache"
    index = open_index(s3_url, cache_dir=cache)
    whole = [index.locate(sample) for sample in range(len(index))]
    copies = eventually(lambda: list(cache.rglob("*.arrow")), "the copy made in the background")
    intact = copies[0].read_bytes()
    shards = index.manifest.shards
    for place in range(shards[0].index_start, shards[-1].index_start, 97):
        copies[0].unlink(missing_ok=True)  # it may be mapped
        copies[0].write_bytes(intact)
        flip(copies[0], place)
        again = open_index(s3_url, cache_dir=cache)
        assert [again.locate(sample) for sample in range(len(again))] == whole
