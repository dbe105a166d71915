"""Local files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

_LITTER_PREFIX = ".headrace-tmp-"


def write_whole(
    file: Path, pieces: Iterable[bytes | bytearray | memoryview], *, durable: bool = True
) -> None:
    """Write `file` beside its place and rename it; folders are made.

    Args:
        file: Where it shall lie; what lies there is replaced.
        pieces: Its bytes, in order.
        durable: Flush file and folder to the disk, so that it outlives a power cut.

    Raises:
        OSError: The disk is full, read-only, or gone; nothing is left behind.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.parent / f"{_LITTER_PREFIX}{os.getpid()}-{uuid4().hex}"
    try:
        with beside.open("xb", buffering=0) as out:
            for piece in pieces:
                _write_all(out.fileno(), memoryview(piece).cast("B"))
            if durable:
                os.fsync(out.fileno())
        beside.replace(file)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    if durable:
        _sync_folder(file.parent)


def is_litter(name: str) -> bool:
    """Tell whether a file of this name is one that a killed `write_whole` left behind."""
    return name.startswith(_LITTER_PREFIX)


def litter_owner(name: str) -> int:
    """Return the process that wrote a file of this name (see `is_litter`)."""
    return int(name.removeprefix(_LITTER_PREFIX).partition("-")[0])


def _write_all(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
