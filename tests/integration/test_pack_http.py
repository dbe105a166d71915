"""Tables of web addresses, and datasets that lie on a web server."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

import headrace
from headrace.core.errors import NotFoundError, TooManyBadSamplesError
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_index import open_index, read_member
from headrace.data.shards.shard_packer import PackOptions
from headrace.data.storage import open_store
from headrace.data.transforms.decode import decode_member
from image_trees import jpeg
from packed import pack_images, write_images
from services.object_servers import WebHandler, object_server

NAMES = ["summer/beach 1.jpg", "summer/b#2.jpg", "winter/ski.jpg"]


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    with object_server(WebHandler) as server:
        yield server.endpoint


def table_of(folder: Path, urls: list[str]) -> str:
    """Write a table of these URLs, labelled 0, 1, ...; return its path."""
    rows = [{"url": url, "label": label} for label, url in enumerate(urls)]
    table = folder / "photos.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(table)


def test_a_table_of_web_addresses_is_packed(web: str, tmp_path: Path):
    photos = open_store(f"{web}/photos")
    for number, name in enumerate(NAMES):
        photos.put(name, jpeg(number))
    table = table_of(tmp_path, [f"{web}/photos/{quote(name)}" for name in NAMES])
    pack(table, str(tmp_path / "packed"), PackOptions(keep_order=True))
    index = open_index(str(tmp_path / "packed"))
    store = open_store(str(tmp_path / "packed"))
    for number in range(len(NAMES)):
        location = index.locate(number)
        found = {
            member.extension: bytes(read_member(store, index, location, member))
            for member in location.members
        }
        assert found == {"jpg": jpeg(number), "cls": str(number).encode()}


def test_a_table_on_a_web_server_is_packed_with_paths_relative_to_it(web: str, tmp_path: Path):
    server = open_store(f"{web}/lists")
    server.put("photos/a 1.jpg", jpeg(1))
    server.put("b.jpg", jpeg(2))
    server.put("train.csv", f"url,label\nphotos/a 1.jpg,dog\n{web}/lists/b.jpg,cat\n".encode())
    # The query is what a presigned address has; it goes with the table's request and no further.
    report = pack(
        f"{web}/lists/train.csv?signature=secret-canary", str(tmp_path / "packed"),
        PackOptions(keep_order=True),
    )  # fmt: skip
    dataset = headrace.ShardDataset(str(tmp_path / "packed"))
    assert [(each["__key__"], each["cls"]) for each in (dataset[0], dataset[1])] == [
        ("photos/a 1", 1),
        ("lists/b", 0),
    ]
    np.testing.assert_array_equal(dataset[0]["jpg"], decode_member("jpg", jpeg(1)))
    assert report.manifest.source.url == f"{web}/lists/train.csv"
    assert b"canary" not in (tmp_path / "packed/manifest.json").read_bytes()


def test_an_address_that_leads_nowhere_is_named(web: str, tmp_path: Path):
    open_store(f"{web}/photos").put("there.jpg", jpeg(0))
    table = table_of(tmp_path, [f"{web}/photos/there.jpg", f"{web}/photos/gone.jpg"])
    with pytest.raises((TooManyBadSamplesError, NotFoundError), match=r"gone\.jpg"):
        pack(table, str(tmp_path / "packed"), PackOptions())


def test_a_dataset_on_a_web_server_is_read_there(web: str, tmp_path: Path):
    count = 40
    local = tmp_path / "packed"
    pack_images(tmp_path / "images", str(local), count)
    server = open_store(f"{web}/dataset")
    for file in local.iterdir():
        server.put(file.name, file.read_bytes())
    keys = {
        url: [
            key
            for batch in headrace.DataLoader(
                headrace.ShardDataset(url), 8, shuffle=True, num_workers=2
            )
            for key in batch["__key__"]
        ]
        for url in (f"{web}/dataset", str(local))
    }
    assert keys[f"{web}/dataset"] == keys[str(local)]
    assert len(set(keys[str(local)])) == count


@pytest.mark.parametrize("damage", [b"", bytes(5000)])
def test_a_damaged_copy_of_an_index_is_removed_and_the_index_itself_read(
    web: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes
):
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    url = f"{web}/damaged{len(damage)}"
    pack_images(tmp_path / "photos", url, 8)
    located = open_index(url).locate(3)
    (copy,) = (tmp_path / "cache").rglob("*.arrow")
    whole = copy.read_bytes()
    copy.write_bytes((damage + whole[len(damage) :]) if damage else b"")
    assert open_index(url).locate(3) == located
    assert open_index(url).locate(3) == located  # copied anew
    assert copy.read_bytes() == whole


def test_workers_open_a_remote_index_from_the_copies_of_this_host(
    web: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also where the same members were packed before with other options: another manifest."""
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    write_images(tmp_path / "photos", 8)
    urls = [f"{web}/plain", f"{web}/decoded"]
    for url, check in zip(urls, (None, decode_member), strict=True):
        pack(str(tmp_path / "photos"), url, PackOptions(), check=check)
    pickled = pickle.dumps([open_index(url) for url in urls])
    for url in urls:
        open_store(url).delete("manifest.json")  # what were fetched now would be missing
    plain, decoded = pickle.loads(pickled)
    assert plain.fingerprint == decoded.fingerprint
    assert (plain.manifest.decoded, decoded.manifest.decoded) == (False, True)
    assert plain.locate(3) == decoded.locate(3)
