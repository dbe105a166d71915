"""A URL shown as a folder for as long as a job lasts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from headrace.core import env
from headrace.core.files import write_whole
from headrace.core.tied import tied_command
from headrace.data.mounts.programs import (
    MountProgram,
    NoMountError,
    choose_program,
    unmount_command,
)
from headrace.data.storage.urls import parse_url

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
        ahead_bytes: How much is read ahead of whoever wants it; 0: nothing.

    Attributes:
        folder: The same.

    Raises:
        NoMountError: The program ended, or showed nothing within a minute.
    """

    def __init__(self, program: MountProgram, folder: Path, *, ahead_bytes: int) -> None:
        self.folder = folder
        self._ahead: subprocess.Popen[bytes] | None = None
        self._log = folder.with_name(f"{folder.name}.log")
        with self._log.open("wb") as log:
            # Asked to end by SIGTERM it takes the mount away itself, also where we are killed.
            self._process = subprocess.Popen(
                tied_command(sys.executable, program.command, by=signal.SIGTERM),
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
            self.close()
            raise

    def close(self) -> None:
        """Take the folder away, whoever still uses it."""
        if self._ahead is not None:
            self._ahead.kill()
            self._ahead.wait()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        _take_away(self.folder)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read_ahead(self, most_bytes: int) -> subprocess.Popen[bytes]:
        own = [sys.executable, "-P", "-m", "headrace.data.mounts.ahead"]
        return subprocess.Popen(
            tied_command(sys.executable, [*own, str(self.folder), str(most_bytes)]),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # ctrl-C is the job's
        )

    def _wait(self, name: str) -> None:
        deadline_s = time.monotonic() + _UP_S
        while not self.folder.is_mount():
            if self._process.poll() is not None:
                raise NoMountError(f"{name} ended with {self._process.returncode}: {self._said()}")
            if time.monotonic() > deadline_s:
                raise NoMountError(f"{name} showed nothing within {_UP_S:.0f} s: {self._said()}")
            time.sleep(_LOOK_EVERY_S)

    def _said(self) -> str:
        said = self._log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip()
        return said.splitlines()[-1] if said else "it said nothing"


def mount_url(url: str, folder: Path, cache: Path, *, cache_bytes: int) -> Mount:
    """Show a URL as a folder, read only.

    Which program does so, and how it was called, is written beside the folder, as NAME.json; what
    it says, as NAME.log.

    Args:
        url: Any of an object store.
        folder: Where; made, and freed of what a killed job has left there.
        cache: Where what was read is kept, for other jobs too.
        cache_bytes: How much of it.

    Raises:
        NoMountError: Nothing can be mounted here.
        UsageError: The URL, or settings of the store, cannot be.
    """
    _take_away(folder)
    folder.mkdir(parents=True, exist_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    location = parse_url(url)
    program = choose_program(location, folder, cache, cache_bytes=cache_bytes)
    told = {"url": location.url, "program": program.name, "command": list(program.command)}
    write_whole(folder.with_name(f"{folder.name}.json"), json.dumps(told, indent=2) + "\n")
    return Mount(program, folder, ahead_bytes=int(cache_bytes * _AHEAD_SHARE))


def _take_away(folder: Path) -> None:
    """End a mount at a folder, where there is one, also one whose program is gone."""
    try:
        is_there = folder.is_mount()
    except OSError:  # its program is gone: not connected
        is_there = True
    if is_there:
        with suppress(StopIteration, OSError):  # no fusermount: then it is none of ours
            subprocess.run(unmount_command(folder), capture_output=True, check=False)
