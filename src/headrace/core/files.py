"""Files that are written whole or not at all, and the limit of open files.

A file is written under another name beside it and renamed, so a reader finds the old one or the new
one, and a crash leaves a draft that the next writer removes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from uuid import uuid4

_NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}  # of some disks
_TEMPORARY_PREFIX = ".headrace-tmp-"


def write_atomically(
    file: Path,
    pieces: Iterable[bytes | bytearray | memoryview],
    *,
    durable: bool = True,
    temporary_dir: Path | None = None,
) -> None:
    """Write `file` beside its place and rename it; folders are made.

    Args:
        file: Where it shall lie; what lies there is replaced.
        pieces: Its bytes, in order.
        durable: Flush file and folder to the disk, so that it outlives a power cut.
        temporary_dir: Write it in this folder of the same disk first, rather than beside its place.

    Raises:
        OSError: The disk is full, read-only, or gone; nothing is left behind.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    beside, out = _open_temporary(temporary_dir or file.parent)
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


def create_atomically(file: Path, data: bytes) -> bool:
    """Write `file` durably unless it is there; return whether it was written.

    Raises:
        OSError: The disk is full, read-only, or gone; nothing is left behind.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    beside, out = _open_temporary(file.parent)
    try:
        with out:
            _write_all(out.fileno(), memoryview(data))
            os.fsync(out.fileno())
            if not _renamed_unless_taken(beside, file):
                return False
    finally:
        with suppress(OSError):
            beside.unlink()
    _sync_folder(file.parent)
    return True


def _renamed_unless_taken(beside: Path, file: Path) -> bool:
    """Give a file its name unless another has it; a rename would replace that one."""
    try:
        file.hardlink_to(beside)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if file.exists():
            return False
        beside.replace(file)
    return True


def _open_temporary(folder: Path) -> tuple[Path, FileIO]:
    """Return a new file in a folder and its path; its lock says that it is being written."""
    while True:
        beside = folder / temporary_name()
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


def temporary_name() -> str:
    """Return a fresh name for a file that is being written."""
    return f"{_TEMPORARY_PREFIX}{uuid4().hex}"


def is_temporary(name: str) -> bool:
    """Tell whether a file of this name is being written, or was when its process was killed."""
    return name.startswith(_TEMPORARY_PREFIX)


def remove_abandoned_files(folder: Path, *, older_than_s: float = 0.0) -> None:
    """Remove what killed processes left half-written in `folder`, if it can be."""
    oldest = time.time() - older_than_s
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if is_temporary(entry.name) and entry.stat().st_mtime <= oldest:
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


_OPEN_FILES = 65_536


def raise_open_file_limit() -> None:
    """Let this process, and those it starts, have as many files open as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file, as UTF-8, so that nobody ever finds half of it there.

    Args:
        path: The file; its folder exists.
        text: What it is to say.

    Raises:
        OSError: It cannot be written; what was there before still is.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8", newline="\n")
        draft.replace(path)
    except BaseException:
        with suppress(OSError):  # it may never have come into being
            draft.unlink()
        raise
