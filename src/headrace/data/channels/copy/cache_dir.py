"""The folders of the cache of copies, and the locks in it.

FOLDER/objects/ab/... whole objects, each named by the SHA-256 of what it contains FOLDER/known/...
of which content an object of a URL is: one file a URL, a line each FOLDER/trees/ID/data/ a channel:
links to objects; `complete` is there once all of them are FOLDER/locks/ID locked shared while a job
uses a tree, exclusively to make or remove it FOLDER/drafts/ what is being written
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headrace.core import env
from headrace.core.errors import NoSpaceError, StorageError, UsageError

UNMODIFIED_NS = 10**18
"""When every copied file was last modified (2001-09-09): whoever writes to one gives it away."""
_NAMES = ("objects", "known", "trees", "locks", "drafts")
_RETRY_EVERY_S = 0.1


def default_cache_dir() -> Path:
    """Return where copies lie unless a folder is named.

    Raises:
        UsageError: Below the system's temporary folder, where another user has made it.
    """
    chosen = env.CACHE_DIR.get()
    if chosen:
        return Path(chosen).absolute() / "channels"
    own = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
    with suppress(FileExistsError):
        own.mkdir(mode=0o700)
    status = own.lstat()
    # Someone else may have made one of this name, to serve us their files.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UsageError(
            f"{own} is not this user's own, so channels cannot be copied there. Name another "
            "folder: HEADRACE_CACHE_DIR."
        )
    return own / "channels"


class CacheDir:
    """The folders of one cache; made where they are not there.

    Args:
        folder: The cache's.

    Raises:
        UsageError: They cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in _NAMES:
                (folder / name).mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"Copies of channels cannot lie in {folder}: {error.strerror}. Name a folder that "
                "may be written: --cache-dir FOLDER, or HEADRACE_CACHE_DIR."
            ) from None

    def object_file(self, content: str) -> str:
        """Return the path of the object of a content."""
        return f"{self.folder}/objects/{content[:2]}/{content[2:]}"

    def tree(self, identity: str) -> Path:
        """Return the folder of a tree."""
        return self.folder / "trees" / identity

    def complete(self, identity: str) -> Path:
        """Return the file that says that a tree is complete; last modified when it was used."""
        return self.tree(identity) / "complete"

    def lock(self, name: str) -> CacheLock:
        """Return a lock that nobody holds yet."""
        return CacheLock(self.folder / "locks" / name)


class CacheLock:
    """A lock on a file; the kernel lets go of it when its process ends, whatever ended it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(self, *, alone: bool) -> bool:
        """Take it, or turn it into this kind; tell whether nobody was in the way."""
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise UsageError(
                f"{self._file.parent}: this file system has no locks ({error.strerror}), without "
                "which jobs cannot share a cache. Name another folder: --cache-dir FOLDER."
            ) from None
        if alone:
            told = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, told, 0)
        return True

    def holder(self) -> str:
        """Return who took it alone last."""
        try:
            told = json.loads(os.pread(self._descriptor, 4096, 0))
        except ValueError:  # it is just being written
            return "another process"
        here = told["host"] == socket.gethostname()
        return f"process {told['pid']}{'' if here else ' on ' + told['host']}"

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


def wait_for_lock(
    lock: CacheLock,
    *,
    alone: bool,
    first: Callable[[str], None],
    alive: Callable[[], float],
    patience_s: float,
    until: Callable[[], bool] = lambda: False,
) -> bool:
    """Take a lock as soon as it can be had; return whether it was, before `until` was so.

    Args:
        lock: The lock.
        alone: Whether nobody else may hold it.
        first: Called with the holder's name, once, where there is one.
        alive: Returns when the holder was last seen to work, in seconds since 1970.
        patience_s: It may be silent for so long.
        until: Asked now and then: the wait is over without the lock.

    Raises:
        StorageError: The holder was silent for longer.
    """
    told = False
    began_s = time.time()
    while not lock.take(alone=alone):
        if until():
            return False
        if not told:
            told = True
            first(lock.holder())
        if time.time() - max(began_s, alive()) > patience_s:
            raise StorageError(
                f"{lock.holder()} holds what this job waits for, and has done nothing for "
                f"{patience_s:.0f} s. End it, or name another folder: --cache-dir FOLDER."
            )
        time.sleep(_RETRY_EVERY_S)
    return True


def disk_error(error: OSError, what: str) -> StorageError:
    """Return an error of the disk as one of ours."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return NoSpaceError(f"{what}: no space is left on the disk. Make room, or name another "
                            "folder: --cache-dir FOLDER.")  # fmt: skip
    return StorageError(f"{what} cannot be written: {error.strerror}.")
