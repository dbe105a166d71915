"""A lease on a URL: while one job has it, no other begins to write there.

It is an object with an owner and a time, made by the store's create-if-absent, of which one of two
wins. A lease that is not renewed expires; so does at once that of a process which has ended on this
machine. Who takes over writes an object of the next number, again by create-if-absent.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from headrace.core.errors import CheckpointError, NotFoundError, UsageError
from headrace.data.storage import Store

LEASE_S = 60.0
RENEW_AFTER_S = 15.0
_LEASE_FOLDER = "headrace-lease"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Lease:
    """A lease on all that lies below a store's URL.

    Args:
        store: Where it lies.
        job: The name of the job that wants it.
    """

    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._job = job
        self._owner = uuid4().hex
        self._number = 0
        self._renewed_s = 0.0

    def take(self) -> None:
        """Take the lease.

        Raises:
            UsageError: Another job holds it.
            StorageError: The store does not answer.
        """
        while True:
            numbers = self._numbers()
            newest = max(numbers, default=0)
            self._refuse_if_leased(newest)
            if self._store.create(_path(newest + 1), self._record()) or self._is_own(newest + 1):
                break
        self._number = newest + 1
        self._renewed_s = time.monotonic()
        for number in numbers:
            self._store.delete(_path(number))

    def renew(self) -> None:
        """Have it last on, where that is due.

        Raises:
            CheckpointError: Another job has taken over.
            StorageError: The store does not answer.
        """
        if time.monotonic() - self._renewed_s < RENEW_AFTER_S:
            return
        if max(self._numbers(), default=0) != self._number or not self._is_own(self._number):
            self._number = 0
            raise CheckpointError(
                f"{self._store.url}: another job has taken over this output path, as nothing was "
                f"heard of this one for {LEASE_S:.0f} s. Nothing more is uploaded from here."
            )
        self._store.put(_path(self._number), self._record())
        self._renewed_s = time.monotonic()

    def release(self) -> None:
        """Let others have it."""
        if self._number and self._is_own(self._number):
            self._store.delete(_path(self._number))

    def _numbers(self) -> list[int]:
        names = [info.path.rpartition("/")[2] for info in self._store.list(_LEASE_FOLDER)]
        return [int(name) for name in names if name.isdecimal()]

    def _refuse_if_leased(self, number: int) -> None:
        held = self._read(number) if number else None
        if held is None or _is_process_gone(held):
            return
        left_s = float(held["until_s"]) - time.time()
        if left_s > 0:
            raise UsageError(
                f"--output-path {self._store.url}: job {held['job']} (process {held['pid']} of "
                f"{held['host']}) writes there. Give this job a path of its own; or, if that job "
                f"is over, try again in {left_s:.0f} s."
            )

    def _record(self) -> bytes:
        told = {
            "owner": self._owner, "job": self._job, "host": os.uname().nodename,
            "boot": _boot(), "pid": os.getpid(), "until_s": time.time() + LEASE_S,
        }  # fmt: skip
        return json.dumps(told).encode()

    def _read(self, number: int) -> Mapping[str, Any] | None:
        with suppress(NotFoundError, ValueError):
            told: dict[str, Any] = json.loads(bytes(self._store.get(_path(number))))
            if {"owner", "job", "host", "boot", "pid", "until_s"} <= told.keys():
                return told
        return None

    def _is_own(self, number: int) -> bool:
        held = self._read(number)
        return held is not None and held["owner"] == self._owner


def _is_process_gone(held: Mapping[str, Any]) -> bool:
    """Tell whether a lease's process has surely ended: it was one of this machine."""
    here = (os.uname().nodename, _boot()) == (held["host"], held["boot"])
    return here and not Path(f"/proc/{held['pid']}").exists()


def _boot() -> str:
    with suppress(OSError):
        return _BOOT.read_text().strip()
    return ""


def _path(number: int) -> str:
    return f"{_LEASE_FOLDER}/{number:06}"
