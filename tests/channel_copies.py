"""Real processes that copy channels, and the objects that they copy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from headrace.core.errors import HeadraceError, error_from_json
from headrace.core.process.sidecar import request_line
from headrace.data.channels.sidecar_client import ChannelRequest, ChannelsRequest
from headrace.data.storage import open_store

LARGE_BYTES = 20 * 2**20 + 17  # three parts


class Copier:
    """A copying process, as the launcher starts it."""

    def __init__(
        self,
        wanted: list[ChannelRequest],
        limit_bytes: int | None = None,
        stderr: int = subprocess.PIPE,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace.data.channels.copy.trees"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        assert self.process.stdin is not None
        request = ChannelsRequest(channels=tuple(wanted), limit_bytes=limit_bytes)
        self.process.stdin.write(request_line(asdict(request)))
        self.process.stdin.flush()

    def folders(self) -> dict[str, Path]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(self.process.stderr.read())
        answer = json.loads(line)
        if "error" in answer:
            raise error_from_json(answer["error"])
        return {name: Path(folder) for name, folder in answer["folders"].items()}

    def folder(self, name: str = "train") -> Path:
        return self.folders()[name]

    def end(self, message: dict[str, str] | None = None) -> str:
        _, output = self.process.communicate(f"{json.dumps(message)}\n" if message else "")
        assert not self.process.returncode
        return output

    def line(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def copying(
    wanted: list[ChannelRequest], limit_bytes: int | None = None, stderr: int = subprocess.PIPE
) -> Iterator[Copier]:
    copier = Copier(wanted, limit_bytes, stderr)
    try:
        yield copier
    finally:
        copier.kill()


def train_channel(url: str, folder: Path) -> list[ChannelRequest]:
    return [ChannelRequest(name="train", url=url, folder=str(folder))]


def copied(url: str, folder: Path) -> Path:
    with copying(train_channel(url, folder)) as one:
        return one.folder()


def refused(url: str, folder: Path) -> str:
    with pytest.raises(HeadraceError) as failure:
        copied(url, folder)
    return f"{type(failure.value).__name__}: {failure.value}"


def fill(url: str, objects: dict[str, bytes]) -> dict[str, bytes]:
    store = open_store(url)
    for key, data in objects.items():
        store.put(key, data)
    return objects


def some(count: int, size_bytes: int = 2000) -> dict[str, bytes]:
    return {f"{number % 7}/{number:05d}.bin": os.urandom(size_bytes) for number in range(count)}


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
