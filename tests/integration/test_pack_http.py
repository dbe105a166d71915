"""Tables of web addresses, and datasets that lie on a web server."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import numpy as np
import pytest
from PIL import Image

import headrace
from headrace.core.errors import (
    BadSampleError,
    CredentialsError,
    NotFoundError,
    TooManyBadSamplesError,
)
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_index import open_index, read_member
from headrace.data.shards.shard_packer import PackOptions, SourceReader
from headrace.data.shards.sources.sample_table import SourceFile, SourceSample
from headrace.data.storage import open_store, safe_url, split_url
from headrace.data.transforms.decode import decode_member
from image_trees import jpeg, png_16bit, png_colour
from packed import pack_images, write_images
from services.object_servers import ObjectServer, StoredObject, WebHandler, object_server

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


class _DeadHandler(WebHandler):
    """Answers with the status that an object's name is."""

    def do_GET(self) -> None:  # noqa: N802  (http.server names it)
        name = self.key.rpartition("/")[2].partition(".")[0]
        if name.isdigit():
            self.answer(int(name))
        else:
            super().do_GET()


DEAD = [f"/{status}.jpg" for status in (400, 401, 402, 403, 404, 405, 406, 409, 410, 418, 422, 451)]
INVALID = [
    "http:///x.jpg", "ftp://host/x.jpg", "http://host:port/x.jpg", "http://{host}/x.jpg",
    "http://[::1/x.jpg", "http://127.0.0.1:1/..", "s3://bucket", "s3:///x.jpg", "/nowhere/x.jpg",
    "file:///nowhere/x.jpg",
]  # fmt: skip


def keyed_table(folder: Path, urls: list[str]) -> str:
    """Write a table of these URLs, whose samples are named 0, 1, ...; return its path."""
    table = folder / "dead.jsonl"
    rows = [{"url": url, "key": str(number)} for number, url in enumerate(urls)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(table)


def test_addresses_that_cannot_be_had_are_bad_files(tmp_path: Path):
    with object_server(_DeadHandler) as server:
        server.objects["here.jpg"] = stored(jpeg(1))
        lost = [*(f"{server.endpoint}{path}" for path in DEAD), *INVALID]
        table = keyed_table(tmp_path, [f"{server.endpoint}/here.jpg", *lost])
        with pytest.raises(TooManyBadSamplesError) as raised:
            pack(table, str(tmp_path / "packed"), PackOptions(max_bad=len(lost) - 1))
        manifest = pack(table, str(tmp_path / "packed"), PackOptions(max_bad=len(lost))).manifest
    assert manifest.num_samples == 1
    assert {bad.file for bad in manifest.bad} == {safe_url(url) for url in lost}
    assert all(f"  {safe_url(url)}: " in str(raised.value) for url in lost)


def test_hosts_that_cannot_be_reached_are_no_failure_of_the_source(tmp_path: Path):
    urls = ["http://no.such.host.invalid/x.jpg", "http://127.0.0.1:1/x.jpg"]
    files = [SourceFile(extension="jpg", path=url, size_bytes=-1, is_mask=False) for url in urls]
    reader = SourceReader(str(tmp_path))
    try:
        samples = [SourceSample(key=file.path, files=(file,), values=()) for file in files]
        for sample, (content,) in reader.read(samples):
            error = content.exception(timeout=100)
            assert isinstance(error, BadSampleError)
            assert sample.key in str(error)
    finally:
        reader.close()


def test_a_user_whom_a_web_server_rejects_ends_the_packing(tmp_path: Path):
    with object_server(_DeadHandler) as server:
        host = server.endpoint.removeprefix("http://")
        table = keyed_table(tmp_path, [f"http://user:wrong-canary@{host}/401.jpg"])
        with pytest.raises(CredentialsError) as raised:
            pack(table, str(tmp_path / "packed"), PackOptions(max_bad=10))
    assert "canary" not in str(raised.value)


def stored(data: bytes) -> StoredObject:
    return StoredObject(data=data, etag=f'"{len(data)}"', modified=formatdate(usegmt=True))


def put_at(server: ObjectServer, path: str, data: bytes) -> str:
    """Store data at a path as it is written in a URL; return the URL."""
    server.objects[unquote(urlsplit(path).path).lstrip("/")] = stored(data)
    return f"{server.endpoint}{path}"


WRITTEN = [
    "/v0/b/x/o/photos%2Fcat.jpg?alt=media&token=1",  # as Firebase names all objects
    "/b%20c.jpg?signature=a%2Fb", "/a%2Bb.jpg", "/a+b(1)'.jpg", "/a%28b%29.jpg", "/100%.jpg",
    "/100%25.jpg", "/a[1]%5B2%5D%5E%7C.jpg", "/caf%C3%A9.jpg", "/caf%c3%a9.jpg", "/caf%E9/x.jpg",
    "/a%2Fb/c.jpg", "/a//b.jpg", "/%7Euser/a.jpg", "/?id=5", "/a%252Fb.jpg",
]  # fmt: skip


@pytest.mark.parametrize("path", WRITTEN)
def test_an_address_is_requested_as_it_is_written(path: str):
    with object_server(WebHandler) as server:
        folder, name = split_url(put_at(server, path, jpeg(1)))
        assert bytes(open_store(folder).get(name)) == jpeg(1)
        assert set(server.requests) == {f"GET {path}"}


def test_a_table_of_escaped_addresses_at_an_escaped_address_is_packed(tmp_path: Path):
    with object_server(WebHandler) as server:
        urls = [put_at(server, f"/o/photos%2F{each}.jpg?alt=media", jpeg(each)) for each in (0, 1)]
        put_at(server, "/o/near.jpg", jpeg(2))
        rows = "".join(f"{url},{number}\n" for number, url in enumerate([*urls, "near.jpg"]))
        table = put_at(server, "/o/lists%2Ftrain.csv?alt=media", f"url,key\n{rows}".encode())
        pack(table, str(tmp_path / "packed"), PackOptions(keep_order=True))
    dataset = headrace.ShardDataset(str(tmp_path / "packed"))
    for number in range(3):
        np.testing.assert_array_equal(dataset[number]["jpg"], decode_member("jpg", jpeg(number)))


def webp() -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (8, 8), (6, 6, 6)).save(sink, "WEBP")
    return sink.getvalue()


def test_an_image_of_an_address_that_ends_otherwise_is_named_by_its_first_bytes(tmp_path: Path):
    """As a server's program, a size, or words with a dot: none of it is a kind of file."""
    files = {
        "/show.php?id=7": ("jpg", jpeg(0)), "/1.jpg:large": ("jpg", jpeg(1)),
        "/2.JPG!w300": ("jpg", jpeg(2)), "/3.jpeg@2x": ("jpg", jpeg(3)),
        "/4.ashx": ("png", png_colour(4)), "/n.5/No.%205%20of%20ten": ("jpg", jpeg(5)),
        "/6.aspx": ("webp", webp()),
        "/7.png": ("png", jpeg(7)),  # a kind of image: decoders go by content
        "/8.depth": ("depth", png_16bit()),  # an extension of one's own, which arrives as bytes
        "/9.txt": ("txt", b"GIF89a is a format"), "/10.txt": ("txt", b"BM was one, too"),
        "/11.dng": ("dng", b"II*\0" + bytes(40)),
        "/12.wav": ("wav", b"RIFF\0\0\0\0WAVE"),
    }  # fmt: skip
    (tmp_path / "own.rgb").write_bytes(jpeg(13))
    with object_server(WebHandler) as server:
        urls = [put_at(server, path, data) for path, (_, data) in files.items()]
        table = keyed_table(tmp_path, [*urls, str(tmp_path / "own.rgb")])
        options = PackOptions(keep_order=True)
        pack(table, str(tmp_path / "packed"), options, check=decode_member)
    index = open_index(str(tmp_path / "packed"))
    names = [index.locate(number).members[0].extension for number in range(len(index))]
    assert names == [*(name for name, _ in files.values()), "rgb"]


def test_what_lies_below_an_escaped_address_is_listed_and_read_there():
    with object_server(WebHandler) as server:
        store = open_store(f"{server.endpoint}/my%2Fdata")
        store.put("a/x y", b"123")
        assert "PUT /my%2Fdata/a/x%20y" in server.requests
        assert [info.path for info in store.list()] == ["a/x y"]
        assert [info.path for info in store.list("a")] == ["a/x y"]
        assert bytes(store.get("a/x y")) == b"123"


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
