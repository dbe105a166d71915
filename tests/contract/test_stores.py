"""One suite over every store: local, memory, S3 (a real server), Cloud Storage, Blob Storage, http.

Remote stores are used as a training process uses them, through the helper process, which makes
its requests as every worker does.
"""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from headrace.core.errors import CorruptError, NotFoundError, UsageError
from headrace.data.storage import CachedStore, Store, open_store
from headrace.data.storage.store import CacheableStore
from services.object_servers import (
    AzureHandler,
    GoogleHandler,
    ObjectServer,
    WebHandler,
    object_server,
)

_NAMES = ["a b/c%20d #?é&+.txt", "a/x", "a.b", "ab", "a/y/z", "empty"]


@pytest.fixture(scope="session")
def google() -> Iterator[ObjectServer]:
    with object_server(GoogleHandler) as server:
        yield server


@pytest.fixture(scope="session")
def azure() -> Iterator[ObjectServer]:
    with object_server(AzureHandler) as server:
        yield server


@pytest.fixture(scope="session")
def web() -> Iterator[ObjectServer]:
    with object_server(WebHandler) as server:
        yield server


# Of the module, so that the tests of one store follow one another and share a helper process.
@pytest.fixture(scope="module", params=["local", "file", "memory", "s3", "gs", "az", "http"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    fresh = uuid4().hex
    if kind == "s3":
        return request.getfixturevalue("s3_url")
    if kind == "gs":
        monkeypatch.setenv("GOOGLE_BASE_URL", request.getfixturevalue("google").endpoint)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token")
    if kind == "az":
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", request.getfixturevalue("azure").endpoint)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    if kind == "http":
        return f"{request.getfixturevalue('web').endpoint}/{fresh}/with%20space"
    return {
        "local": str(tmp_path / "with space" / fresh),
        "file": f"file://{tmp_path}/with%20space/{fresh}",
        "memory": f"memory://{fresh}/folder",
        "gs": f"gs://bucket/{fresh}",
        "az": f"az://container/{fresh}",
    }[kind]


@pytest.fixture
def store(url: str) -> CacheableStore:
    return open_store(url)


@pytest.fixture
def big(store: Store) -> bytes:
    data = random.Random(7).randbytes(9 * 2**20 + 17)
    store.put("big", data)
    return data


def test_what_is_put_reads_back(store: Store) -> None:
    for name in _NAMES:
        store.put(name, name.encode() * 100 if name != "empty" else b"")
    for name in _NAMES:
        wanted = name.encode() * 100 if name != "empty" else b""
        assert bytes(store.get(name)) == wanted
        assert store.head(name).size_bytes == len(wanted)


def test_reads_are_read_only_views_of_bytes(store: Store, big: bytes) -> None:
    for buffer in (store.get("big"), store.get_range("big", 3, 5), store.get_range("big", 3, 0)):
        assert isinstance(buffer, memoryview)
        assert buffer.readonly
        assert buffer.format == "B"


def test_list_is_sorted_recursive_and_relative(store: Store) -> None:
    for name in _NAMES:
        store.put(name, b"12345")
    infos = list(store.list())
    assert [info.path for info in infos] == sorted(_NAMES)
    assert {info.size_bytes for info in infos} == {5}
    assert all(info.modified_s > 0 and info.etag for info in infos)
    assert [info.path for info in store.list("a")] == ["a/x", "a/y/z"]
    assert [info.path for info in store.list("a/")] == ["a/x", "a/y/z"]


def test_a_folder_that_does_not_exist_is_empty(store: Store) -> None:
    assert list(store.list()) == []
    assert list(store.list("nothing/here")) == []


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_an_empty_object_that_shows_the_folder_itself_is_not_in_it(
    kind: str, url: str, store: Store, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue({"gs": "google", "az": "azure"}[kind])
    store.put("a/x", b"1")
    (key,) = [key for key in server.objects if key.endswith(f"{url.rpartition('/')[2]}/a/x")]
    for folder in (key.removesuffix("a/x"), key.removesuffix("x")):
        server.objects[folder] = replace(server.objects[key], data=b"")
    assert [info.path for info in store.list("a")] == ["a/x"]
    assert "" not in [info.path for info in store.list()]


def test_head_returns_what_list_returns(store: Store) -> None:
    store.put("a/x", b"123")
    (listed,) = store.list()
    head = store.head("a/x")
    assert (head.path, head.size_bytes, head.etag) == ("a/x", 3, listed.etag)


def test_the_etag_changes_with_the_bytes(store: Store) -> None:
    store.put("x", b"one")
    before = store.head("x").etag
    store.put("x", b"two")
    assert store.head("x").etag != before
    assert bytes(store.get("x")) == b"two"


def test_ranges_of_every_kind(store: Store, big: bytes) -> None:
    ranges = [
        (0, 10), (100, 20), (9 * 2**20, 17), (5, 9 * 2**20), (3, 0), (0, len(big)), (100, 20),
        (2**20, 1), (len(big) - 1, 1),
    ]  # fmt: skip
    assert [bytes(buffer) for buffer in store.get_ranges("big", ranges)] == [
        big[start : start + length] for start, length in ranges
    ]
    for start, length in ranges:
        assert bytes(store.get_range("big", start, length)) == big[start : start + length]


def test_many_ranges_in_flight(store: Store, big: bytes) -> None:
    starts = random.Random(3).sample(range(len(big) - 5000), 100)
    futures = {start: store.submit_range("big", start, 5000) for start in starts}
    assert not wait(futures.values(), timeout=60).not_done
    for start, future in futures.items():
        assert bytes(future.result()) == big[start : start + 5000]


def test_long_objects_arrive_whole(store: Store, big: bytes) -> None:
    assert bytes(store.get("big")) == big


def test_a_range_beyond_the_end_is_an_error(store: Store) -> None:
    store.put("x", b"12345")
    for start, length in ((0, 6), (4, 2), (5, 1), (100, 10)):
        with pytest.raises(CorruptError, match=rf"/x.*bytes {start}-{start + length - 1}"):
            store.get_range("x", start, length)


def test_negative_ranges_are_refused(store: Store) -> None:
    for start, length in ((-1, 5), (0, -5)):
        with pytest.raises(UsageError):
            store.get_range("x", start, length)


def test_missing_objects_are_named(store: Store) -> None:
    for read in (
        lambda: store.get("no/such"),
        lambda: store.head("no/such"),
        lambda: store.get_range("no/such", 5, 5),
        lambda: store.submit_range("no/such", 5, 5).result(),
    ):
        with pytest.raises(NotFoundError, match=f"{store.url}/no/such"):
            read()


def test_paths_that_leave_the_store_are_refused(store: Store) -> None:
    for path in ("../x", "a/../../x", "/etc/passwd", "", "a//b", "./x", "a/."):
        with pytest.raises(UsageError):
            store.get(path)
        with pytest.raises(UsageError):
            store.put(path, b"")


def test_put_takes_bytes_files_and_streams(store: Store, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(17 * 2**20 + 3)
    file = tmp_path / "file"
    file.write_bytes(data)
    step = 1_000_003
    for given in (
        data,
        bytearray(data),
        memoryview(data),
        file,
        (data[at : at + step] for at in range(0, len(data), step)),
    ):
        store.put("long", given)
        assert bytes(store.get("long")) == data
        store.delete("long")


def test_put_streams_of_nothing_and_of_small_pieces(store: Store) -> None:
    store.put("none", iter([]))
    store.put("small", (bytes([number]) for number in range(256)))
    assert bytes(store.get("none")) == b""
    assert bytes(store.get("small")) == bytes(range(256))


def test_an_object_whose_maker_fails_never_appears(store: Store) -> None:
    def failing(pieces: int) -> Iterator[bytes]:
        for _ in range(pieces):
            yield b"x" * 2**20
        raise ZeroDivisionError

    store.put("x", b"before")
    for pieces in (0, 1, 20):
        with pytest.raises(ZeroDivisionError):
            store.put("x", failing(pieces))
        with pytest.raises(ZeroDivisionError):
            store.put("y", failing(pieces))
    assert bytes(store.get("x")) == b"before"
    assert [info.path for info in store.list()] == ["x"]


def test_an_object_is_created_once(kind: str, store: Store) -> None:
    # Web servers take no conditions, and this S3 server ignores them: there several writers at once
    # all replace the object, and the server may answer for a moment with the length of one of them
    # and the bytes of another.
    writers = 1 if kind in {"http", "s3"} else 8
    with ThreadPoolExecutor(8) as threads:
        made = list(
            threads.map(lambda number: store.create("a/x", bytes([number])), range(writers))
        )
    winner = bytes(store.get("a/x"))[0]
    assert [number for number in range(writers) if made[number]] == [winner]
    assert not store.create("a/x", b"later")
    assert bytes(store.get("a/x")) == bytes([winner])
    assert [info.path for info in store.list()] == ["a/x"]
    store.delete("a/x")
    assert store.create("a/x", b"anew")
    assert bytes(store.get("a/x")) == b"anew"


def test_delete_removes_and_may_be_repeated(store: Store) -> None:
    store.put("a/x", b"1")
    store.delete("a/x")
    store.delete("a/x")
    store.delete("never/was")
    assert list(store.list()) == []


def test_a_pickled_store_reads_the_same(store: Store) -> None:
    store.put("x", b"123")
    again = pickle.loads(pickle.dumps(store))
    assert again.url == store.url
    assert bytes(again.get("x")) == b"123"


def test_a_closed_store_may_be_used_again(store: Store) -> None:
    store.put("x", b"123")
    store.close()
    assert bytes(store.get("x")) == b"123"


def test_parts_stop_at_the_end_and_report_what_they_are_of(store: CacheableStore) -> None:
    store.put("x", b"12345")
    store.put("empty", b"")
    part = store.submit_part("x", 3, 100).result()
    assert (bytes(part.data), part.info.size_bytes) == (b"45", 5)
    assert part.info.etag == store.submit_head("x").result().etag
    assert bytes(store.submit_part("empty", 0, 100).result().data) == b""


def test_a_cache_before_it_reads_the_same(
    store: CacheableStore, big: bytes, tmp_path: Path
) -> None:
    store.put("a b/c%20d #?é&+.txt", b"small")
    for _ in ("cold", "warm"):
        cached = CachedStore(store, tmp_path / "cache", 2**28)
        assert bytes(cached.get("big")) == big
        assert bytes(cached.get("a b/c%20d #?é&+.txt")) == b"small"
        assert bytes(cached.get_range("big", 2**18 - 5, 10)) == big[2**18 - 5 : 2**18 + 5]
        cached.close()
    assert cached.stats().miss_bytes == 0


def test_urls_show_no_credentials(url: str, store: Store) -> None:
    assert store.url.rstrip("/") == url.rstrip("/").removeprefix("file://").replace(
        "%20", " " if url.startswith("file") else "%20"
    )
    assert os.fspath(store.url) == store.url
