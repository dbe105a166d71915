"""The collector of a host: drains its rings into its store, and closes the records at the end."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.errors import RecordsError
from headrace.core.file_lock import open_lock_file, try_lock
from headrace.records import ring
from headrace.records.layout import LOCK, RINGS, STORE, is_closed
from headrace.records.schema import EVENTS, Table
from headrace.records.store import RecordStore

BROKEN_SUFFIX = ".broken"
_LOCK_WAIT_S = 3.0
_EXIT_POLL_S = 1.0
_POLL_S = 0.02
_CLOSE_S = 10.0  # workers check every 5 s whether their rank lives
_MAX_POSTPONED = 1000


@dataclass(slots=True)
class _OpenRing:
    """A ring being read; `recorded_drops` of its dropped records are in the store's events."""

    path: Path
    reader: ring.RingReader
    recorded_drops: int
    ended: bool = False
    faults: list[str] = field(default_factory=list)


class Collector:
    """The collector of a host's rings; one at a time, and a new one after it was killed.

    Args:
        folder: The attempt's records folder, created if it does not exist.
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
        self._ended_pids: set[int] = set()  # whose rings were removed since `take_pids`
        self._unopened: set[str] = set()  # rings whose open error is recorded
        self._unfinished: list[Path] = []
        self._waiting: list[Callable[[], None]] = []
        self._last_check_s = 0.0
        try:
            self.store = _open_store(folder / f"{stem}{STORE}")
        except BaseException:
            os.close(self._lock)
            raise

    def take_pids(self) -> set[int]:
        """Return the processes whose rings are being read, or were since the last call."""
        taken, self._ended_pids = self._ended_pids, set()
        return taken | {source.reader.pid for source in self._rings.values()}

    def add(self, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add rows of this process itself, written with the next drain."""
        self._postpone(lambda: self.store.add(table, rows))

    def add_system(self, columns: Sequence[str], values: Sequence[float | None]) -> None:
        """Add a row of `system`, written with the next drain; see RecordStore.declare_system."""
        self._postpone(lambda: self.store.add_system(columns, values))

    def drain(self, *, last: bool = False) -> int:
        """Move what the rings hold to the store and return how many rows that was.

        A ring is removed once it is empty and its writer has ended. If the store cannot be written,
        the rows stay in the rings for the next drain.

        Args:
            last: Remove every ring, also those of processes that still write.

        Raises:
            sqlite3.Error: The store could not be written.
        """
        self._find_rings()
        self._check_writers(now=last)
        try:
            count = self._move(last=last)
        except sqlite3.Error:
            # The readers are ahead of the store: reopened, they start at its positions.
            self._close_readers()
            raise
        for source in self._rings.values():
            source.reader.release()
        with suppress(sqlite3.Error, OSError):  # such as a full disk: the rows stay as they are
            self.store.roll_up()
            self.store.move_out()
        for source in list(self._rings.values()):
            if source.ended or not source.reader.usable or last:
                self._remove(source)
        return count

    def close(self, wait_s: float = _CLOSE_S) -> None:
        """Drain for the last time, write the Parquet files, and remove the store.

        Args:
            wait_s: How long processes that still write may take to end.

        Raises:
            OSError, sqlite3.Error: The disk is full; the records stay readable as they are.
        """
        deadline = time.monotonic() + wait_s
        self.drain()
        self._check_writers(now=True)
        while any(not each.ended for each in self._rings.values()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self.drain()
            self._check_writers(now=True)
        self.drain(last=True)
        for path in self._unfinished:  # their writers died at once
            path.unlink(missing_ok=True)
        from headrace.records.parquet_tables import (
            close_store,  # Arrow takes 40 MB: not loaded while ranks train
        )

        close_store(self.store, self.folder)
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)

    def _postpone(self, add: Callable[[], None]) -> None:
        if len(self._waiting) < _MAX_POSTPONED:  # a bound for a store that fails for minutes
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
                source = self._open(path)
            except ring.UnfinishedRing:
                self._unfinished.append(path)
            except FileNotFoundError:
                continue  # its writer found no room on the disk
            except RecordsError as error:
                self.add(EVENTS, [fault_row(str(error))])
                _set_aside(path)
            except OSError as error:  # such as too many open files: tried again
                if path.name not in self._unopened:
                    self._unopened.add(path.name)
                    self.add(EVENTS, [fault_row(f"{path}: {error}")])
            else:
                self._rings[path.name] = source

    def _open(self, path: Path) -> _OpenRing:
        reader = ring.RingReader(path)
        position = self.store.place(path.name, reader.made_ns)
        if position.read is not None:
            reader.go_on(position.read, position.texts)
        return _OpenRing(path, reader, position.dropped)

    def _check_writers(self, *, now: bool) -> None:
        # Before a ring is read: if its writer has ended, the read gets all its rows.
        if now or time.monotonic() - self._last_check_s >= _EXIT_POLL_S:
            self._last_check_s = time.monotonic()
            for source in self._rings.values():
                source.ended = source.ended or source.reader.ended

    def _move(self, *, last: bool) -> int:
        moved = {source.path.name: self._rows(source) for source in self._rings.values()}
        count = sum(len(rows) for tables in moved.values() for _, rows in tables.values())
        # Read once: the count may grow meanwhile, and the event must match the stored number.
        dropped = {name: source.reader.dropped for name, source in self._rings.items()}
        changed = [
            source
            for name, source in self._rings.items()
            if source.reader.position != source.reader.released
            or dropped[name] > source.recorded_drops
        ]
        has_faults = any(source.faults for source in self._rings.values())
        if not (changed or self._waiting or last or has_faults):
            return 0
        with self.store.transaction():
            for add in self._waiting:
                add()
            for source in self._rings.values():
                for table, rows in moved[source.path.name].values():
                    self.store.add(table, rows)
                self.store.add(EVENTS, _events_of(source, dropped[source.path.name], last=last))
            for source in changed:
                name, reader = source.path.name, source.reader
                self.store.move(
                    name,
                    reader.made_ns,
                    reader.position,
                    dropped[name],
                    reader.new_texts,
                    reader.forgotten,
                )
        self._waiting.clear()
        for source in self._rings.values():
            source.faults.clear()
            source.recorded_drops = dropped[source.path.name]
        return count

    @staticmethod
    def _rows(source: _OpenRing) -> dict[int, tuple[Table, list[tuple[Any, ...]]]]:
        found: dict[int, tuple[Table, list[tuple[Any, ...]]]] = {}
        try:
            for table, row in source.reader.rows():
                found.setdefault(table.number, (table, []))[1].append(row)
        except RecordsError as error:
            source.faults.append(str(error))
        return found

    def _remove(self, source: _OpenRing) -> None:
        if source.reader.usable:
            source.path.unlink(missing_ok=True)
        else:
            _set_aside(source.path)
        with suppress(sqlite3.Error), self.store.transaction():  # if it fails, they only take room
            self.store.forget_texts(source.path.name, source.reader.made_ns)
        self._ended_pids.add(source.reader.pid)
        source.reader.close()
        del self._rings[source.path.name]

    def _close_readers(self) -> None:
        for source in self._rings.values():
            source.reader.close()
        self._rings.clear()


def fault_row(text: str, at_ns: int | None = None) -> tuple[Any, ...]:
    """Return a row of `events` about a fault in recording, at `at_ns` or now."""
    return (-1, time.monotonic_ns() if at_ns is None else at_ns, "probe-fault", text, 0.0)


def dropped_row(ring_name: str, count: int, at_ns: int | None = None) -> tuple[Any, ...]:
    """Return a row of `events` about records that were dropped as a ring was full."""
    text = f"{ring_name}: the ring was full; {count} records were dropped"
    at_ns = time.monotonic_ns() if at_ns is None else at_ns
    return (-1, at_ns, "dropped-records", text, float(count))


def is_collector_running(lock: Path) -> bool:
    """Return whether a collector holds the lock file."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(descriptor, shared=True)
    except OSError:  # a file system without locks
        return True
    finally:
        os.close(descriptor)


def _events_of(source: _OpenRing, dropped: int, *, last: bool) -> list[tuple[Any, ...]]:
    rows = [fault_row(text) for text in source.faults]
    if dropped > source.recorded_drops:
        rows.append(dropped_row(source.path.name, dropped - source.recorded_drops))
    if last and not source.ended:
        name, pid = source.path.name, source.reader.pid
        rows.append(fault_row(f"{name}: process {pid} outlived its records"))
    return rows


def _lock_host(path: Path) -> int:
    """Take a host's lock, with retries: `is_collector_running` holds it for an instant."""
    descriptor = open_lock_file(path, 0o600)
    deadline = time.monotonic() + _LOCK_WAIT_S
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            os.close(descriptor)
            raise RecordsError(
                f"{path.parent}: another process collects these records. Let it end first."
            )
        time.sleep(_POLL_S)
    return descriptor


def _open_store(path: Path) -> RecordStore:
    if is_closed(path.parent) and not path.exists():
        raise RecordsError(f"{path.parent}: these records are closed. Start a new attempt.")
    return RecordStore(path)


def _set_aside(path: Path) -> None:
    with suppress(OSError):  # it is gone
        path.rename(path.with_name(path.name + BROKEN_SUFFIX))
