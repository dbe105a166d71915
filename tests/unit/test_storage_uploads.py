"""The parts of an upload, by the size of the whole, also where another process sends them."""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.data.storage import StorageConfig, parse_url
from headrace.data.storage.client import subprocess_client
from headrace.data.storage.client.subprocess_client import PendingRequest, SubprocessClient
from headrace.data.storage.client.subprocess_protocol import ReceivedFrame
from headrace.data.storage.client.subprocess_server import _Server
from headrace.data.storage.store import part_size, size_of

USUAL = StorageConfig().part_bytes


class StorageProcess:
    """What answers requests in the storage subprocess, in this one; it keeps what it uploads."""

    def __init__(self) -> None:
        self.uploads: list[tuple[str, int, int | None]] = []
        self._server = _Server(None)
        self._server._clients[0] = self

    def put(
        self, key: str, pieces: Iterator[bytes], _target: str, *, size_bytes: int | None
    ) -> None:
        self.uploads.append((key, sum(map(len, pieces)), size_bytes))

    def take(self, request: PendingRequest) -> bool:
        descriptors = [os.dup(each) for each in request.descriptors]
        self._server._start({**request.header, "id": 0, "store": 0}, descriptors)

        def answer() -> None:
            header, _ = self._server._outbox.get(timeout=60)
            frame = ReceivedFrame(header=header, body=memoryview(b""), descriptors=())
            request.answer.set_result(frame)

        threading.Thread(target=answer, daemon=True).start()
        return True


def file_of(folder: Path, data: bytes) -> Path:
    (folder / "file").write_bytes(data)
    return folder / "file"


@pytest.mark.parametrize(
    ("data_of", "length", "size"),
    [
        (lambda _: b"0123456789", 10, 10),
        (lambda _: bytearray(10), 10, 10),
        (lambda _: memoryview(array("d", [0.0] * 3)), 24, 24),
        (lambda folder: file_of(folder, b"x" * (3 << 20)), 3 << 20, 3 << 20),
        (lambda folder: file_of(folder, b""), 0, 0),
        (lambda _: iter([b"ab", b"c"]), 3, None),
    ],
    ids=["bytes", "bytearray", "numbers", "file", "empty file", "stream"],
)
def test_the_storage_process_knows_the_size_of_what_it_uploads(
    data_of: Callable[[Path], Any], length: int, size: int | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    process = StorageProcess()
    monkeypatch.setattr(subprocess_client, "_current", lambda: process)
    client = SubprocessClient(parse_url("s3://bucket/a"), StorageConfig())
    client.put("a/b", data_of(tmp_path), "s3://bucket/a/b")
    assert process.uploads == [("a/b", length, size)]


@pytest.mark.parametrize("size", [0, 1, 9000 * USUAL, 9000 * USUAL + 1, 84 * 10**9, 10**12])
def test_a_file_of_any_size_has_no_more_parts_than_s3_takes(size: int, tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    os.truncate(file, size)  # with no byte on the disk
    part_bytes = part_size(size_of(file), USUAL)
    assert -(-size // part_bytes) <= 9000
    assert part_bytes == USUAL or size > 9000 * USUAL


def test_a_stream_of_unknown_size_has_parts_of_the_usual_size():
    assert part_size(size_of(iter([b"x"])), USUAL) == USUAL
