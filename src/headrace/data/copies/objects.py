"""Whole objects on disk: written beside their place, linked into trees, never half there."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import stat
from contextlib import suppress

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
        self._drafts = f"{folders.folder}/drafts"
        self._numbers = itertools.count()
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
        """Have a content that is at hand at a place; raises OSError."""
        if self.link(content, len(data), place):
            return
        draft = self.draft_name()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _READ_ONLY)
        try:
            try:
                while len(data):
                    data = data[os.write(descriptor, data) :]
                os.utime(descriptor, ns=(UNTOUCHED_NS, UNTOUCHED_NS))
            finally:
                os.close(descriptor)
            self._keep(draft, content, place)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft)  # noqa: PTH108
            raise

    def place_draft(self, draft: str, descriptor: int, content: str, place: str) -> None:
        """Have what was written to a draft at a place; the draft is gone then."""
        os.fchmod(descriptor, _READ_ONLY)
        os.utime(descriptor, ns=(UNTOUCHED_NS, UNTOUCHED_NS))
        size_bytes = os.fstat(descriptor).st_size
        if self.link(content, size_bytes, place):
            os.unlink(draft)  # noqa: PTH108
        else:
            self._keep(draft, content, place)

    def draft_name(self) -> str:
        """Return a path that no other file being written has."""
        return f"{self._drafts}/small-{os.uname().nodename}-{os.getpid()}-{next(self._numbers)}"

    def _keep(self, draft: str, content: str, place: str) -> None:
        # First into the tree: an object that no tree links may be removed at any time.
        self._link(draft, place)
        file = self._folders.object_file(content)
        folder = content[:2]
        if folder not in self._made:
            os.makedirs(os.path.dirname(file), exist_ok=True)  # noqa: PTH103, PTH120
            self._made.add(folder)
        os.rename(draft, file)  # noqa: PTH104

    def _link(self, file: str, place: str) -> None:
        try:
            os.link(file, place)
        except FileExistsError:  # what lies there is not what is to be there
            os.unlink(place)  # noqa: PTH108
            self._link(file, place)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._copy(file, place)

    def _copy(self, file: str, place: str) -> None:
        """Copy where a disk has no links, or no more for this file; shared blocks if it can."""
        beside = self.draft_name()
        with open(file, "rb") as source, open(beside, "xb") as copy:  # noqa: PTH123
            try:
                fcntl.ioctl(copy.fileno(), _FICLONE, source.fileno())
            except OSError:
                shutil.copyfileobj(source, copy, PART_BYTES)
        os.chmod(beside, _READ_ONLY)  # noqa: PTH101
        os.utime(beside, ns=(UNTOUCHED_NS, UNTOUCHED_NS))
        os.rename(beside, place)  # noqa: PTH104
