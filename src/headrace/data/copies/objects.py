"""Whole objects on disk: written beside their place, linked into trees, never half there."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from contextlib import suppress
from uuid import uuid4

from headrace.core.hashes import sha256
from headrace.data.copies.folders import UNTOUCHED_NS, CacheFolders

PART_BYTES = 8 * 2**20
"""Longer objects are fetched, written and hashed in parts of this size: it is part of a name."""
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV}
_FICLONE = 0x40049409  # <linux/fs.h>: the copy shares blocks, where the disk can
_READ_ONLY = 0o444


def content_of(digests: list[bytes], size_bytes: int) -> str:
    """Return the name of a content: of one part its SHA-256, of more that of theirs."""
    if len(digests) == 1:
        return digests[0].hex()
    state = sha256()
    state.update(size_bytes.to_bytes(8, "big"))
    for digest in digests:
        state.update(digest)
    return str(state.hexdigest())


def is_untouched(file: str, size_bytes: int) -> bool:
    """Whether a file is one that was placed whole, and has not been written to since."""
    try:
        status = os.stat(file, follow_symlinks=False)  # noqa: PTH116  (asked of 100,000 files)
    except OSError:
        return False
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size == size_bytes
        and status.st_mtime_ns == UNTOUCHED_NS
    )


class Objects:
    """The objects of a cache; any thread of any process may place some at any time."""

    def __init__(self, folders: CacheFolders) -> None:
        self._folders = folders
        self._made: set[str] = set()

    def link(self, content: str, size_bytes: int, place: str) -> bool:
        """Have a file of a content at a place; False where the cache does not hold it whole."""
        file = self._folders.object_file(content)
        if not is_untouched(file, size_bytes):
            return False
        try:
            self._link(file, place)
        except FileNotFoundError:  # another process has just removed it
            return False
        return True

    def place(self, content: str, data: memoryview, place: str) -> None:
        """Write a content that is at hand to a place; raises OSError.

        It is written where it is to be. Until it is whole it lacks the time that says so, and no
        tree with it is complete.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(place, flags, _READ_ONLY)
        except FileExistsError:  # half of it, or what somebody has written to
            os.unlink(place)  # noqa: PTH108
            descriptor = os.open(place, flags, _READ_ONLY)
        try:
            size_bytes = len(data)
            while len(data):
                data = data[os.write(descriptor, data) :]
            os.utime(descriptor, ns=(UNTOUCHED_NS, UNTOUCHED_NS))
        finally:
            os.close(descriptor)
        self._share(content, size_bytes, place)

    def place_draft(self, draft: str, descriptor: int, content: str, place: str) -> None:
        """Have what was written to a draft at a place; the draft is gone then."""
        os.fchmod(descriptor, _READ_ONLY)
        os.utime(descriptor, ns=(UNTOUCHED_NS, UNTOUCHED_NS))
        os.rename(draft, place)  # noqa: PTH104
        self._share(content, os.fstat(descriptor).st_size, place)

    def _share(self, content: str, size_bytes: int, place: str) -> None:
        """Have a file of a tree be an object of the cache, or the object that there is."""
        file = self._folders.object_file(content)
        if content[:2] not in self._made:
            os.makedirs(os.path.dirname(file), exist_ok=True)  # noqa: PTH103, PTH120
            self._made.add(content[:2])
        try:
            os.link(place, file)
        except FileExistsError:
            if not self.link(content, size_bytes, place):  # somebody has written to it
                os.unlink(file)  # noqa: PTH108
                os.link(place, file)
        except OSError as error:
            if error.errno not in _NO_LINKS:  # without links the tree has it to itself
                raise

    def _link(self, file: str, place: str) -> None:
        """Link a file to a place, or where a disk can have no more links of it, copy it there."""
        # Elsewhere: what a killed process leaves must not be found among a channel's files.
        beside = f"{self._folders.folder}/drafts/link-{uuid4().hex}"
        try:
            os.link(file, place)
        except FileExistsError:  # whoever reads there finds one or the other
            os.link(file, beside)
            os.replace(beside, place)  # noqa: PTH105
            with suppress(FileNotFoundError):  # one file under both names: rename leaves both
                os.unlink(beside)  # noqa: PTH108
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _copy(file, beside)
            os.replace(beside, place)  # noqa: PTH105


def _copy(file: str, place: str) -> None:
    """Copy a file; the copy shares the disk's blocks where it can."""
    with open(file, "rb") as source, open(place, "wb") as copy:  # noqa: PTH123
        try:
            fcntl.ioctl(copy.fileno(), _FICLONE, source.fileno())
        except OSError:
            shutil.copyfileobj(source, copy, PART_BYTES)
    os.chmod(place, _READ_ONLY)  # noqa: PTH101
    os.utime(place, ns=(UNTOUCHED_NS, UNTOUCHED_NS))
