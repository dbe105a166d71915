"""The mount of a URL at a folder for as long as a job lasts, and the cache folder of a mount."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from headrace.core import env
from headrace.core.files import write_text_atomically
from headrace.core.lazy import blake2b
from headrace.core.process.parent_death import parent_bound_command
from headrace.data.channels.mount.mount_program import (
    MountProgram,
    NoMountError,
    choose_programs,
    is_mounted,
    supervised_command,
    unmount,
)
from headrace.data.storage.urls import parse_url


class MountCache:
    """Such a folder, held until it is closed, or until this process ends.

    Args:
        caches: Where such folders lie; made.
        url: Of what is mounted.

    Attributes:
        folder: The folder; one of this mount's own where another mount has the URL's.
    """

    def __init__(self, caches: Path, url: str) -> None:
        caches.mkdir(parents=True, exist_ok=True)
        self.folder = caches / blake2b(url.encode(), 12).hex()
        self._lock = os.open(f"{self.folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._is_own = False
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._is_own = True
            self.folder = caches / f"{self.folder.name}-{os.getpid()}"
        self.folder.mkdir(exist_ok=True)

    def close(self) -> None:
        """Let others have it."""
        if self._is_own:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


_UP_S = 60.0
_END_S = 10.0
_LOOK_EVERY_S = 0.02
_AHEAD_SHARE = 0.9  # of the cache: more would push out what was read first
_LAST_BYTES = 2000  # of what the program said


class Mount:
    """One such folder.

    Args:
        program: What shows it.
        folder: Where.
        cache: Where it keeps what was read.
        ahead_bytes: How much is read ahead of whoever wants it; 0: nothing.

    Attributes:
        folder: The same.

    Raises:
        NoMountError: The program ended, or showed nothing within a minute.
    """

    def __init__(
        self, program: MountProgram, folder: Path, cache: MountCache, *, ahead_bytes: int
    ) -> None:
        self.folder = folder
        self._cache = cache
        self._ahead: subprocess.Popen[bytes] | None = None
        self._log = folder.with_name(f"{folder.name}.log")
        with self._log.open("wb") as log:
            # From a thread that lives as long: the program ends with the one that started it.
            self._process = subprocess.Popen(
                supervised_command(folder, os.getpid(), program.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env.child_environment(program.environment),
                start_new_session=True,
            )
        try:
            self._wait(program.name)
            if ahead_bytes > 0:
                self._ahead = self._read_ahead(ahead_bytes)
        except BaseException:
            self._end()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes beside it that are children of this one."""
        ahead = () if self._ahead is None else (self._ahead.pid,)
        return (self._process.pid, *ahead)

    def close(self) -> None:
        """Take the folder away, whoever still uses it."""
        self._end()
        self._cache.close()

    def _end(self) -> None:
        if self._ahead is not None:
            self._ahead.kill()
            self._ahead.wait()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        unmount(self.folder)
        self._process.kill()
        self._process.wait()

    def _read_ahead(self, most_bytes: int) -> subprocess.Popen[bytes]:
        own = [sys.executable, "-P", "-m", "headrace.data.channels.mount.read_ahead"]
        return subprocess.Popen(
            parent_bound_command(sys.executable, [*own, str(self.folder), str(most_bytes)]),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # ctrl-C is the job's
        )

    def _wait(self, name: str) -> None:
        deadline_s = time.monotonic() + _UP_S
        while not is_mounted(self.folder):
            if self._process.poll() is not None:
                raise NoMountError(f"{name} ended with {self._process.returncode}: {self._said()}")
            if time.monotonic() > deadline_s:
                raise NoMountError(f"{name} showed nothing within {_UP_S:.0f} s: {self._said()}")
            time.sleep(_LOOK_EVERY_S)

    def _said(self) -> str:
        said = self._log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip()
        return said.splitlines()[-1] if said else "it said nothing"


def mount_url(
    url: str, folder: Path, caches: Path, *, cache_bytes: int, reads_ahead: bool = True
) -> Mount:
    """Show a URL as a folder, read only.

    Which program does so, and how it was called, is written beside the folder, as NAME.json; what
    it says, as NAME.log.

    Args:
        url: Any of an object store.
        folder: Where; made, and freed of what a killed job has left there.
        caches: Where what was read is kept, for later jobs that mount the same. While another one
            does so, in a folder of this mount's own, as no program shares its cache.
        cache_bytes: How much of it.
        reads_ahead: What is likely to be wanted is fetched before anybody asks for it.

    Raises:
        NoMountError: Nothing can be mounted here.
        UsageError: The URL, or settings of the store, cannot be.
    """
    unmount(folder)
    folder.mkdir(parents=True, exist_ok=True)
    location = parse_url(url)
    cache = MountCache(caches, location.url)
    reasons = []
    try:
        for program in choose_programs(location, folder, cache.folder, cache_bytes=cache_bytes):
            told = {"url": location.url, "program": program.name, "command": list(program.command)}
            write_text_atomically(
                folder.with_name(f"{folder.name}.json"), json.dumps(told, indent=2) + "\n"
            )
            try:
                ahead_bytes = int(cache_bytes * _AHEAD_SHARE) if reads_ahead else 0
                return Mount(program, folder, cache, ahead_bytes=ahead_bytes)
            except NoMountError as error:
                reasons.append(str(error))
    except BaseException:
        cache.close()
        raise
    cache.close()
    raise NoMountError("; ".join(reasons))
