"""The lease on a URL: while one job holds it, no other starts to write there.

It is an object with an owner and a time, made by the store's create-if-absent, which only one of
two writers wins. A lease that is not renewed expires; the lease of a process that has ended on this
machine expires at once. The next owner creates the object of the next number.
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
    """A lease on everything below a store's URL, which a job takes."""

    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._job = job
        self._owner = uuid4().hex
        self._number = 0
        self._renewed_s = 0.0

    def take(self) -> None:
        """Take the lease.

        Raises UsageError (another job holds it), StorageError (the store does not answer).
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
        """Renew the lease where that is due.

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
        """Give up the lease."""
        if self._number and self._is_own(self._number):
            self._store.delete(_path(self._number))

    def _numbers(self) -> list[int]:
        names = [info.path.rpartition("/")[2] for info in self._store.list(_LEASE_FOLDER)]
        return [int(name) for name in names if name.isdecimal()]

    def _refuse_if_leased(self, number: int) -> None:
        lease = self._read(number) if number else None
        if lease is None or _is_process_gone(lease):
            return
        left_s = float(lease["until_s"]) - time.time()
        if left_s > 0:
            raise UsageError(
                f"--output-path {self._store.url}: job {lease['job']} (process {lease['pid']} of "
                f"{lease['host']}) writes there. Give this job a path of its own; or, if that job "
                f"is over, try again in {left_s:.0f} s."
            )

    def _record(self) -> bytes:
        record = {
            "owner": self._owner, "job": self._job, "host": os.uname().nodename,
            "boot": _boot(), "pid": os.getpid(), "until_s": time.time() + LEASE_S,
        }  # fmt: skip
        return json.dumps(record).encode()

    def _read(self, number: int) -> Mapping[str, Any] | None:
        with suppress(NotFoundError, ValueError):
            record: dict[str, Any] = json.loads(bytes(self._store.get(_path(number))))
            if {"owner", "job", "host", "boot", "pid", "until_s"} <= record.keys():
                return record
        return None

    def _is_own(self, number: int) -> bool:
        lease = self._read(number)
        return lease is not None and lease["owner"] == self._owner


def _is_process_gone(lease: Mapping[str, Any]) -> bool:
    """Whether a lease's process is known to have ended, being one of this machine."""
    here = (os.uname().nodename, _boot()) == (lease["host"], lease["boot"])
    return here and not Path(f"/proc/{lease['pid']}").exists()


def _boot() -> str:
    with suppress(OSError):
        return _BOOT.read_text().strip()
    return ""


def _path(number: int) -> str:
    return f"{_LEASE_FOLDER}/{number:06}"
