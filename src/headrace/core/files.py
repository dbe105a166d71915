"""Files that are written whole or not at all, and the limit of open files.

A file is written under a temporary name and renamed, so that a reader finds the old one or the new
one. `remove_abandoned_files` removes the temporary files of killed processes.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from uuid import uuid4

from headrace.core.file_lock import try_lock

_NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}  # of some file systems
_TEMPORARY_PREFIX = ".headrace-tmp-"


def write_atomically(
    file: Path,
    pieces: Iterable[bytes | bytearray | memoryview],
    *,
    durable: bool = True,
    temporary_dir: Path | None = None,
) -> None:
    """Write `file` under a temporary name, and rename it; its folders are made.

    Args:
        file: The path, whose present file is replaced.
        durable: Flush file and folders to the disk, so that it survives a power cut.
        temporary_dir: Folder of the same file system for the temporary file; None: that of `file`.

    Raises OSError (the disk is full, read-only, or gone; nothing is left behind).
    """
    if durable:
        _make_durable_folder(file.parent)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
    temporary, out = _open_temporary(temporary_dir or file.parent)
    try:
        with out:
            for piece in pieces:
                write_all(out.fileno(), memoryview(piece).cast("B"))
            if durable:
                os.fsync(out.fileno())
            temporary.replace(file)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(file.parent)


def write_text_atomically(file: Path, text: str, *, durable: bool = False) -> None:
    """Write a text as UTF-8 in an existing folder; see `write_atomically`."""
    file.parent.stat()  # a folder that was removed is not made again
    write_atomically(file, [text.encode()], durable=durable)


def create_atomically(file: Path, data: bytes) -> bool:
    """Write `file` durably unless it exists; return whether it was written.

    Raises OSError (the disk is full, read-only, or gone; nothing is left behind).
    """
    _make_durable_folder(file.parent)
    temporary, out = _open_temporary(file.parent)
    try:
        with out:
            write_all(out.fileno(), data)
            os.fsync(out.fileno())
            if not _renamed_unless_taken(temporary, file):
                return False
    finally:
        with suppress(OSError):
            temporary.unlink()
    sync_folder(file.parent)
    return True


def _renamed_unless_taken(temporary: Path, file: Path) -> bool:
    """Link a file to its name unless another has it, which a rename would replace."""
    try:
        file.hardlink_to(temporary)
    except FileExistsError:
        # NFS repeats a request whose answer was lost, and finds what the first one made.
        with suppress(OSError):
            return file.samefile(temporary)
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        return _replaced_claim(temporary, file)
    return True


def _replaced_claim(temporary: Path, file: Path) -> bool:
    """Take a name by an empty file, which only one of several can make, and replace that.

    A reader may see the empty file for an instant, and for good where this process is killed then.
    """
    try:
        file.open("xb").close()
    except FileExistsError:
        return False
    try:
        temporary.replace(file)
    except BaseException:
        with suppress(OSError):
            file.unlink()
        raise
    return True


def _open_temporary(folder: Path) -> tuple[Path, FileIO]:
    """Return a new temporary file and its path; it is locked while it is being written."""
    name, descriptor = create_temporary(lambda new: os.open(folder / new, _NEW_FILE, 0o666))
    return folder / name, FileIO(descriptor, "wb")


_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def create_temporary(create: Callable[[str], int]) -> tuple[str, int]:
    """Return name and descriptor of a new temporary file, locked until it is closed.

    `create` makes a file of a name, and returns its descriptor.
    """
    while True:
        name = temporary_name()
        descriptor = create(name)
        # Without locks on the file system abandoned files stay.
        if try_lock(descriptor, required=False) and os.fstat(descriptor).st_nlink:
            return name, descriptor
        os.close(descriptor)  # `remove_abandoned_files` had it before it was locked


def open_regular_file(path: Path) -> int:
    """Open a regular file for reading, without following a link or waiting; return its descriptor.

    Raises OSError; FileNotFoundError also for what is no regular file: a named pipe would block.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link, a socket
            raise _no_file(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_file(path)
    return descriptor


def _no_file(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "it is no regular file", str(path))


def temporary_name() -> str:
    """Return a new name for a temporary file."""
    return f"{_TEMPORARY_PREFIX}{uuid4().hex}"


def is_temporary(name: str) -> bool:
    """Return whether a name is that of a temporary file."""
    return name.startswith(_TEMPORARY_PREFIX)


def remove_abandoned_files(folder: Path, *, older_than_s: float = 0.0) -> None:
    """Remove the temporary files of killed processes from `folder`, as far as possible."""
    oldest = time.time() - older_than_s
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if is_temporary(entry.name) and entry.stat().st_mtime <= oldest:
                    _remove_if_abandoned(entry.path)


def _remove_if_abandoned(file: str) -> None:
    # The writer holds a lock, which the kernel releases at the end of its process.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if try_lock(descriptor):
            os.unlink(file)  # noqa: PTH108
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of the data; raises OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def append_whole(descriptor: int, data: bytes) -> None:
    """Append all of the data to a file that nobody else writes; OSError: none of it is there."""
    before = os.fstat(descriptor).st_size
    try:
        write_all(descriptor, data)
    except OSError:
        os.ftruncate(descriptor, before)  # a full disk took a part
        raise


def _make_durable_folder(folder: Path) -> None:
    """Make a folder and those above it; the names of new ones are flushed to the disk."""
    new = []
    for place in (folder, *folder.parents):
        if place.exists():
            break
        new.append(place)
    folder.mkdir(parents=True, exist_ok=True)
    for place in new:
        sync_folder(place.parent)


# Some file systems (SMB, FUSE) cannot flush a folder, and one that may be written to may not be
# readable.
_NO_FLUSH = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM}


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, where that can be done; raises OSError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_FLUSH:
            raise


_OPEN_FILES = 65_536


def raise_open_file_limit() -> None:
    """Raise the limit of open files of this process and its future children, to 65536 at most."""
    import resource  # late: Windows has none, and this file must be importable to say so

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def owner_name(path: Path) -> str:
    """Return the name of the user that a file belongs to, or the number of one without a name."""
    try:
        return path.owner()
    except KeyError:
        return f"user {path.stat().st_uid}"
