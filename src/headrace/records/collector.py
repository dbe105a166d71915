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
from headrace.core.file_lock import lock_within, open_lock_file
from headrace.records import ring
from headrace.records.layout import FILE_MODE, LOCK, RINGS, STORE, is_closed
from headrace.records.schema import EVENTS, HOSTS, RowLimits, Table
from headrace.records.sent_rows import SentRows, SentRowsReader, sent_row_files
from headrace.records.store import RecordStore, ring_position

BROKEN_SUFFIX = ".broken"
LEAVES_STORE = "leaves_store"
"""The key of a launcher's last message to a collector whose records it closes itself: Arrow, which
takes a tenth of a second to import, is then imported by one process instead of two."""
EXIT_CODE = "exit_code"
"""The key of the exit code of the script, or of the ranks, in the same message; None: unknown."""
_LOCK_WAIT_S = 3.0
_EXIT_POLL_S = 1.0
_POLL_S = 0.02
_CLOSE_S = 10.0  # workers check every 5 s whether their rank lives
_MAX_POSTPONED = 1000
_ROW_LIMITS = RowLimits()


@dataclass(slots=True)
class _OpenRing:
    """A ring being read, with what one drain has read of it."""

    path: Path
    reader: ring.RingReader
    recorded_drops: int  # of its dropped records, those that are in the store's events
    ended: bool = False
    faults: list[str] = field(default_factory=list)
    rows: dict[int, tuple[Table, list[tuple[Any, ...]]]] = field(default_factory=dict)
    dropped: int = 0  # read once: it may grow, and the event must match the stored number

    def read(self) -> int:
        """Read the rows written up to now, and return how many there are."""
        self.rows = {}
        try:
            for table, row in self.reader.rows():
                self.rows.setdefault(table.number, (table, []))[1].append(row)
        except RecordsError as error:
            self.faults.append(str(error))
        self.dropped = self.reader.dropped
        return sum(len(rows) for _, rows in self.rows.values())

    @property
    def has_moved(self) -> bool:
        """Whether its stored position is outdated."""
        is_read = self.reader.position != self.reader.released
        return is_read or self.dropped > self.recorded_drops

    def events(self, *, last: bool) -> list[tuple[Any, ...]]:
        """Return rows of `events` about its faults and dropped records."""
        rows = [fault_row(text) for text in self.faults]
        if self.dropped > self.recorded_drops:
            rows.append(dropped_row(self.path.name, self.dropped - self.recorded_drops))
        if last and not self.ended:
            outlived = f"{self.path.name}: process {self.reader.pid} outlived its records"
            rows.append(fault_row(outlived))
        return rows


class Collector:
    """The collector of a host's rings; one at a time, and a new one after it was killed.

    It creates the attempt's records folder if needed; the host's name is that of the store, which
    `open_store` opens. It also takes in what other hosts have sent.

    RecordsError: the folder's records are closed, another process collects them, or a newer version
    wrote them. OSError, sqlite3.Error: the folder cannot be written, the store is broken.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        limits: RowLimits = _ROW_LIMITS,
        *,
        open_store: Callable[[Path, RowLimits], RecordStore] = RecordStore,
    ) -> None:
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
        self._sent: dict[str, SentRowsReader] = {}
        self._took_in = False  # whether the last drain did so with rows of other hosts
        self._waiting: list[Callable[[], None]] = []
        self._last_check_s = 0.0
        try:
            _check_open(folder / f"{stem}{STORE}")
            self.store = open_store(folder / f"{stem}{STORE}", limits)
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

        A ring is removed once it is empty and its writer has ended, with `last` in any case. If the
        store cannot be written (sqlite3.Error), or other hosts' rows not be read (OSError), all of
        them stay for the next drain.
        """
        self._find_rings()
        self._check_writers(now=last)
        try:
            count = self._move(last=last)
        except (sqlite3.Error, OSError):
            # The readers are ahead of the store: reopened, they start at its positions.
            for source in self._rings.values():
                source.reader.close()
            self._rings.clear()
            self._sent.clear()
            raise
        for source in self._rings.values():
            source.reader.release()
        with suppress(sqlite3.Error, OSError):  # such as a full disk: the rows stay as they are
            self.store.roll_up()
            self.store.move_out()
        for source in list(self._rings.values()):
            if source.ended or not source.reader.usable or last:
                self._remove(source)
        self._remove_sent(last=last)
        return count

    def close(self, wait_s: float = _CLOSE_S, *, leaves_store: bool = False) -> None:
        """Drain for the last time, write the Parquet files, and remove the store.

        Processes that still write get `wait_s` to end. With `leaves_store` the next collector of
        this host writes the files. After an error, as with a full disk, the records stay readable
        as they are.
        """
        deadline = time.monotonic() + wait_s
        self.drain()
        self._check_writers(now=True)
        while any(not each.ended for each in self._rings.values()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self.drain()
            self._check_writers(now=True)
        while self._took_in:
            self.drain()
        self.drain(last=True)
        for path in self._unfinished:  # their writers died at once
            path.unlink(missing_ok=True)
        if leaves_store:
            self.store.close()
        else:
            # Arrow takes 40 MB: it is not loaded while ranks train.
            from headrace.records.parquet_tables import close_store

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
        position = ring_position(self.store.connection, path.name, reader.made_ns)
        if position.read is not None:
            reader.seek(position.read, position.texts)
        return _OpenRing(path, reader, position.dropped)

    def _check_writers(self, *, now: bool) -> None:
        # Before a ring is read: if its writer has ended, the read gets all its rows.
        if now or time.monotonic() - self._last_check_s >= _EXIT_POLL_S:
            self._last_check_s = time.monotonic()
            for source in self._rings.values():
                source.ended = source.ended or source.reader.ended

    def _move(self, *, last: bool) -> int:
        rings = list(self._rings.values())
        sent = self._read_sent()
        self._took_in = bool(sent)
        count = sum([source.read() for source in rings])
        changed = [source for source in rings if source.has_moved]
        if not (changed or sent or self._waiting or last or any(source.faults for source in rings)):
            return 0
        with self.store.transaction():
            for add in self._waiting:
                add()
            for source in rings:
                for table, rows in source.rows.values():
                    self.store.add(table, rows)
                self.store.add(EVENTS, source.events(last=last))
            for source in changed:
                self.store.move(source.path.name, source.reader, source.dropped)
            for reader, found in sent:
                self._add_sent(found)
                self.store.move_file(reader.path.name, reader.position)
        self._waiting.clear()
        for source in rings:
            source.faults.clear()
            source.rows.clear()
            source.recorded_drops = source.dropped
        return count

    def _read_sent(self) -> list[tuple[SentRowsReader, SentRows]]:
        """Read the next rows that other hosts have sent."""
        for path in sent_row_files(self._rings_folder):
            if path.name not in self._sent:
                position = ring_position(self.store.connection, path.name, 0).read or 0
                self._sent[path.name] = SentRowsReader(path, position)
        read = [(reader, reader.read()) for reader in self._sent.values()]
        return [(reader, found) for reader, found in read if found is not None]

    def _add_sent(self, found: SentRows) -> None:
        for table, rows in found.rows.values():
            self.store.add(table, self._new_hosts(rows) if table is HOSTS else rows)
        for columns, values in found.system:
            self.store.declare_system(columns)
            self.store.add_system(columns, values)
        self.store.add(EVENTS, [fault_row(text) for text in found.faults])

    def _new_hosts(self, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the rows of hosts that are not there: ranks that start anew send theirs again."""
        name, number = HOSTS.columns.index("host"), HOSTS.columns.index("number")
        found = {(row[name], row[number]): row for row in reversed(rows)}
        return [found[host] for host in reversed(found) if host not in self.store.known_hosts()]

    def _remove_sent(self, *, last: bool) -> None:
        """Remove the files that are taken in and complete; with `last` all of them."""
        for name, reader in list(self._sent.items()):
            if last or (reader.is_followed and reader.is_at_end()):
                reader.path.unlink(missing_ok=True)
                with suppress(sqlite3.Error), self.store.transaction():  # it only takes room
                    self.store.forget_file(name)
                del self._sent[name]

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


def fault_row(text: str, at_ns: int | None = None) -> tuple[Any, ...]:
    """Return a row of `events` about a fault in recording, at `at_ns` or now."""
    return (-1, time.monotonic_ns() if at_ns is None else at_ns, "probe-fault", text, 0.0)


def dropped_row(ring_name: str, count: int, at_ns: int | None = None) -> tuple[Any, ...]:
    """Return a row of `events` about records that were dropped as a ring was full."""
    text = f"{ring_name}: the ring was full; {count} records were dropped"
    at_ns = time.monotonic_ns() if at_ns is None else at_ns
    return (-1, at_ns, "dropped-records", text, float(count))


def _lock_host(path: Path) -> int:
    descriptor = open_lock_file(path, FILE_MODE)
    if lock_within(descriptor, _LOCK_WAIT_S):
        return descriptor
    os.close(descriptor)
    raise RecordsError(f"{path.parent}: another process collects these records. Let it end first.")


def _check_open(store: Path) -> None:
    if is_closed(store.parent) and not store.exists():
        raise RecordsError(f"{store.parent}: these records are closed. Start a new attempt.")


def _set_aside(path: Path) -> None:
    with suppress(OSError):  # it is gone
        path.rename(path.with_name(path.name + BROKEN_SUFFIX))
