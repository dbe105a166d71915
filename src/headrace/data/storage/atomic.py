"""Local files that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from uuid import uuid4

_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}  # of some disks
_LITTER_PREFIX = ".headrace-tmp-"


def write_whole(
    file: Path,
    pieces: Iterable[bytes | bytearray | memoryview],
    *,
    durable: bool = True,
    beside_in: Path | None = None,
) -> None:
    """Write `file` beside its place and rename it; folders are made.

    Args:
        file: Where it shall lie; what lies there is replaced.
        pieces: Its bytes, in order.
        durable: Flush file and folder to the disk, so that it outlives a power cut.
        beside_in: Write it in this folder of the same disk first, rather than beside its place.

    Raises:
        OSError: The disk is full, read-only, or gone; nothing is left behind.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    beside, out = _begun(beside_in or file.parent)
    try:
        with out:
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


def write_new(file: Path, data: bytes) -> bool:
    """Write `file` durably unless it is there; return whether it was written.

    Raises:
        OSError: The disk is full, read-only, or gone; nothing is left behind.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    beside, out = _begun(file.parent)
    try:
        with out:
            _write_all(out.fileno(), memoryview(data))
            os.fsync(out.fileno())
            if not _linked(beside, file):
                return False
    finally:
        with suppress(OSError):
            beside.unlink()
    _sync_folder(file.parent)
    return True


def _linked(beside: Path, file: Path) -> bool:
    """Give a file its name unless another has it; a rename would replace that one."""
    try:
        file.hardlink_to(beside)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if file.exists():
            return False
        beside.replace(file)
    return True


def _begun(folder: Path) -> tuple[Path, FileIO]:
    """Return a new file in a folder and its path; its lock says that it is being written."""
    while True:
        beside = folder / litter_name()
        out = beside.open("xb", buffering=0)
        try:
            fcntl.flock(out.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = os.fstat(out.fileno()).st_nlink == 0
        except BlockingIOError:
            taken = True
        except OSError:  # a disk without locks keeps its litter
            taken = False
        if not taken:
            return beside, out
        out.close()  # whoever clears litter had it before it was locked


def litter_name() -> str:
    """Return a fresh name for a file that is being written."""
    return f"{_LITTER_PREFIX}{uuid4().hex}"


def is_litter(name: str) -> bool:
    """Tell whether a file of this name is being written, or was when its process was killed."""
    return name.startswith(_LITTER_PREFIX)


def clear_litter(folder: Path, *, older_than_s: float = 0.0) -> None:
    """Remove what killed processes left half-written in `folder`, if it can be."""
    oldest = time.time() - older_than_s
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if is_litter(entry.name) and entry.stat().st_mtime <= oldest:
                    _remove_if_abandoned(entry.path)


def _remove_if_abandoned(file: str) -> None:
    # Whoever writes a file holds its lock; the kernel lets go when the process ends.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(file)  # noqa: PTH108
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
