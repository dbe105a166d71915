"""The collector of a host: empties its rings into its store, and closes the records at the end."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.errors import RecordsError
from headrace.records import ring
from headrace.records.layout import LOCK, RINGS, STORE, is_closed
from headrace.records.schema import EVENTS, Table
from headrace.records.store import RecordStore

BROKEN_SUFFIX = ".broken"
_LOCK_WAIT_S = 3.0
_EXIT_POLL_S = 1.0
_POLL_S = 0.02
_CLOSE_S = 10.0  # workers whose rank was killed look for it every 5 s
_MAX_POSTPONED = 1000


@dataclass(slots=True)
class _OpenRing:
    """A ring being read: `told` of its dropped records are in the store's events."""

    path: Path
    reader: ring.RingReader
    told: int
    ended: bool = False
    faults: list[str] = field(default_factory=list)


class Collector:
    """Drains the rings of a host; one at a time, and again after it was killed.

    Args:
        folder: The attempt's records folder; made where it does not exist.
        host: The host's name, which names the store.

    Raises:
        RecordsError: The folder's records are closed, another process collects them, or a newer
            version wrote them.
        OSError: The folder cannot be made or written.
        sqlite3.Error: The store is broken.
    """

    def __init__(self, folder: Path, host: str) -> None:
        self.folder = folder
        self._rings_folder = folder / RINGS
        self._rings_folder.mkdir(parents=True, exist_ok=True)
        stem = host.replace("/", "_")
        self._lock_path = folder / f"{stem}{LOCK}"
        self._lock = _lock_host(self._lock_path)
        self._rings: dict[str, _OpenRing] = {}
        self._ended_pids: set[int] = set()  # whose rings were let go lately
        self._told_of: set[str] = set()  # rings that could not be opened
        self._unfinished: list[Path] = []
        self._waiting: list[Callable[[], None]] = []
        self._looked_s = 0.0
        try:
            self.store = _open_store(folder / f"{stem}{STORE}")
        except BaseException:
            os.close(self._lock)
            raise

    def take_pids(self) -> set[int]:
        """Return the processes whose rings are being read, or were since this was called last."""
        taken, self._ended_pids = self._ended_pids, set()
        return taken | {one.reader.pid for one in self._rings.values()}

    def add(self, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
        """Have rows of this process itself written with the next drain."""
        self._postpone(lambda: self.store.add(table, rows))

    def add_system(self, columns: Sequence[str], values: Sequence[float | None]) -> None:
        """Have a row of `system` written with the next drain; see RecordStore.declare_system."""
        self._postpone(lambda: self.store.add_system(columns, values))

    def drain(self, *, last: bool = False) -> int:
        """Move what the rings hold to the store and return how many rows that was.

        A ring goes once it is empty and its writer has ended. Where the store cannot be written,
        nothing is lost: the rings keep it for the next drain.

        Args:
            last: Let go of every ring, also those of processes that still write.

        Raises:
            sqlite3.Error: The store could not be written.
        """
        self._find_rings()
        self._check_writers(now=last)
        try:
            count = self._move(last=last)
        except sqlite3.Error:
            # The readers have gone on and the store has not: they begin again from its places.
            self._close_readers()
            raise
        for one in self._rings.values():
            one.reader.release()
        with suppress(sqlite3.Error, OSError):  # a full disk, perhaps: the rows stay as they are
            self.store.roll_up()
            self.store.move_out()
        for one in list(self._rings.values()):
            if one.ended or not one.reader.usable or last:
                self._let_go(one)
        return count

    def close(self, wait_s: float = _CLOSE_S) -> None:
        """Drain for the last time, write the Parquet files, and remove the store.

        Args:
            wait_s: How long processes that still write may take to end.

        Raises:
            OSError: The disk is full; the records stay readable as they are.
            sqlite3.Error: Likewise.
        """
        deadline = time.monotonic() + wait_s
        self.drain()
        self._check_writers(now=True)
        while any(not one.ended for one in self._rings.values()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self.drain()
            self._check_writers(now=True)
        self.drain(last=True)
        for path in self._unfinished:  # nothing will be written to them that is read
            path.unlink(missing_ok=True)
        from headrace.records.parquet_tables import (
            close_store,  # Arrow takes 40 MB: not while ranks train
        )

        close_store(self.store, self.folder)
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)

    def _postpone(self, add: Callable[[], None]) -> None:
        if len(self._waiting) < _MAX_POSTPONED:  # the store has failed for minutes
            self._waiting.append(add)

    def _find_rings(self) -> None:
        with os.scandir(self._rings_folder) as entries:
            new = [
                Path(entry.path)
                for entry in entries
                if entry.name.endswith(ring.SUFFIX) and entry.name not in self._rings
            ]
        self._unfinished = []
        for path in sorted(new):
            try:
                one = self._opened(path)
            except ring.UnfinishedRing:
                self._unfinished.append(path)
            except FileNotFoundError:
                continue  # its writer has found no room for it
            except RecordsError as error:
                self.add(EVENTS, [fault_row(str(error))])
                _set_aside(path)
            except OSError as error:  # it may be another time: too many files are open, say
                if path.name not in self._told_of:
                    self._told_of.add(path.name)
                    self.add(EVENTS, [fault_row(f"{path}: {error}")])
            else:
                self._rings[path.name] = one

    def _opened(self, path: Path) -> _OpenRing:
        reader = ring.RingReader(path)
        place = self.store.place(path.name, reader.made_ns)
        if place.read is not None:
            reader.go_on(place.read, place.texts)
        return _OpenRing(path, reader, place.dropped)

    def _check_writers(self, *, now: bool) -> None:
        # Looked at before a ring is read: what it holds afterwards is then all of it.
        if now or time.monotonic() - self._looked_s >= _EXIT_POLL_S:
            self._looked_s = time.monotonic()
            for one in self._rings.values():
                one.ended = one.ended or one.reader.ended

    def _move(self, *, last: bool) -> int:
        moved = {one.path.name: self._rows(one) for one in self._rings.values()}
        count = sum(len(rows) for tables in moved.values() for _, rows in tables.values())
        # Looked at once: the writer goes on dropping, and what is told must be what is kept.
        dropped = {name: one.reader.dropped for name, one in self._rings.items()}
        changed = [
            one
            for name, one in self._rings.items()
            if one.reader.position != one.reader.released or dropped[name] > one.told
        ]
        if not (changed or self._waiting or last or any(o.faults for o in self._rings.values())):
            return 0
        with self.store.transaction():
            for add in self._waiting:
                add()
            for one in self._rings.values():
                for table, rows in moved[one.path.name].values():
                    self.store.add(table, rows)
                self.store.add(EVENTS, _events_of(one, dropped[one.path.name], last=last))
            for one in changed:
                name, reader = one.path.name, one.reader
                self.store.move(
                    name,
                    reader.made_ns,
                    reader.position,
                    dropped[name],
                    reader.new_texts,
                    reader.forgotten,
                )
        self._waiting.clear()
        for one in self._rings.values():
            one.faults.clear()
            one.told = dropped[one.path.name]
        return count

    @staticmethod
    def _rows(one: _OpenRing) -> dict[int, tuple[Table, list[tuple[Any, ...]]]]:
        found: dict[int, tuple[Table, list[tuple[Any, ...]]]] = {}
        try:
            for table, row in one.reader.rows():
                found.setdefault(table.number, (table, []))[1].append(row)
        except RecordsError as error:
            one.faults.append(str(error))
        return found

    def _let_go(self, one: _OpenRing) -> None:
        if one.reader.usable:
            one.path.unlink(missing_ok=True)
        else:
            _set_aside(one.path)
        with suppress(sqlite3.Error), self.store.transaction():  # else they just take room
            self.store.forget_texts(one.path.name, one.reader.made_ns)
        self._ended_pids.add(one.reader.pid)
        one.reader.close()
        del self._rings[one.path.name]

    def _close_readers(self) -> None:
        for one in self._rings.values():
            one.reader.close()
        self._rings.clear()


def fault_row(text: str, at_ns: int | None = None) -> tuple[Any, ...]:
    """Return a row of `events` that tells of a fault in recording, now or when told."""
    return (-1, time.monotonic_ns() if at_ns is None else at_ns, "probe-fault", text, 0.0)


def dropped_row(ring_name: str, count: int, at_ns: int | None = None) -> tuple[Any, ...]:
    """Return a row of `events` that tells how many records found no room in a ring."""
    text = f"{ring_name}: the ring was full; {count} records were dropped"
    at_ns = time.monotonic_ns() if at_ns is None else at_ns
    return (-1, at_ns, "dropped-records", text, float(count))


def is_collector_running(lock: Path) -> bool:
    """Tell whether the process that made a lock file still collects."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _events_of(one: _OpenRing, dropped: int, *, last: bool) -> list[tuple[Any, ...]]:
    rows = [fault_row(text) for text in one.faults]
    if dropped > one.told:
        rows.append(dropped_row(one.path.name, dropped - one.told))
    if last and not one.ended:
        rows.append(fault_row(f"{one.path.name}: process {one.reader.pid} outlived its records"))
    return rows


def _lock_host(path: Path) -> int:
    """Take a host's lock; who only looks whether it is taken holds it for an instant."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise RecordsError(
                    f"{path.parent}: another process collects these records. Let it end first."
                ) from None
            time.sleep(_POLL_S)
        else:
            return descriptor


def _open_store(path: Path) -> RecordStore:
    if is_closed(path.parent) and not path.exists():
        raise RecordsError(f"{path.parent}: these records are closed. Start a new attempt.")
    return RecordStore(path)


def _set_aside(path: Path) -> None:
    with suppress(OSError):  # it is gone, which is as good
        path.rename(path.with_name(path.name + BROKEN_SUFFIX))
