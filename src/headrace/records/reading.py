"""A run's records, whatever state they are in: live, closed, or left over by a killed job."""

from __future__ import annotations

import difflib
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.core.errors import LaunchError, RecordsError, UsageError
from headrace.records import ring, store
from headrace.records.arrow import batch_of, in_one_piece, schema_of, stored_schema
from headrace.records.closed import ClosedTable
from headrace.records.collector import dropped_row, fault_row, is_collecting
from headrace.records.layout import (
    LOCK,
    PARQUET,
    RECORDS,
    RINGS,
    STORE,
    attempts_with_records,
    is_closed,
)
from headrace.records.parquet import stored_tables
from headrace.records.run_folder import RunFolder, runs_folder
from headrace.records.schema import BY_NAME, EVENTS, LATER
from headrace.records.store import TABLE_NAMES

_TRIES = 20
_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one attempt of a run.

    Attributes:
        path: The run's folder.
        attempt: The attempt's number.
    """

    path: Path
    attempt: int

    @property
    def live(self) -> bool:
        """Whether they are being written now: what is read next may be more."""
        return any(is_collecting(lock) for lock in self.folder.glob(f"*{LOCK}"))

    def table(self, name: str) -> pa.Table:
        """Return a table of `schema.TABLES` or `system`, as it is at this moment.

        Text is dictionary-encoded, and every column in one piece.

        Raises:
            RecordsError: There is no such table, or its file is broken or of a newer version.
        """
        if name not in TABLE_NAMES:
            raise RecordsError(f"No table {name!r} is recorded: {', '.join(sorted(TABLE_NAMES))}.")
        reason = ""
        for _ in range(_TRIES):
            try:
                return self._read(name, strict=True)
            except _Moved:
                continue  # the collector was faster; what it took is in the store by now
            except sqlite3.Error as error:
                reason = f": {error}"  # closed at this moment, or else broken
                time.sleep(_PAUSE_S)
        try:
            return self._read(name, strict=False)
        except sqlite3.Error:
            raise RecordsError(f"{self.folder}: the store cannot be read{reason}.") from None

    def by_column(self, name: str) -> ClosedTable | None:
        """Return a table whose columns are read one by one; None where it has no closed file.

        Raises:
            RecordsError: Its file is broken, lost or of a newer version.
        """
        folder = self.folder
        left = any(folder.glob(f"*{STORE}")) or any((folder / RINGS).glob(f"*{ring.SUFFIX}"))
        if left or not is_closed(folder):
            return None
        return self._closed(name)

    @property
    def folder(self) -> Path:
        """The attempt's records folder."""
        return RunFolder(self.path).records(self.attempt)

    def _closed(self, name: str) -> ClosedTable | None:
        """Return a table from its file; None where an older version knew no such table."""
        path = self.folder / f"{name}{PARQUET}"
        return None if name in LATER and not path.exists() else ClosedTable(path, name)

    def _read(self, name: str, *, strict: bool) -> pa.Table:
        with ExitStack() as stack:
            # Rings first, the store next: what is taken from one meanwhile is in the other.
            left = _Left.found_in(self.folder / RINGS, stack)
            stores = {
                path: stack.enter_context(closing(store.open_to_read(path)))
                for path in sorted(self.folder.glob(f"*{STORE}"))
            }
            for connection in stores.values():
                connection.execute("BEGIN")  # one moment for rows and places
            stores = {path: each for path, each in stores.items() if store.has_tables(each)}
            # At once: a ring that is drained meanwhile must be looked at again.
            known = name in BY_NAME
            rows = left.rows(name, list(stores.values()), strict=strict) if known else []
            tables = []
            for path, connection in stores.items():
                tables.append(stored_schema(connection, name).empty_table())
                try:
                    tables += stored_tables(connection, path, name)
                except RecordsError:
                    if strict and not path.exists():
                        raise _Moved from None  # closed meanwhile, and its parts removed
                    raise
            if not stores and is_closed(self.folder):
                closed = self._closed(name)
                tables += [closed.table()] if closed is not None else []
            if known:
                tables.append(pa.Table.from_batches([batch_of(schema_of(name), rows)]))
        # A table without rows would make a copy of the others' columns.
        some = [table for table in tables if table.num_rows] or tables[:1]
        some = some or [schema_of(name).empty_table()]
        return in_one_piece(pa.concat_tables(some, promote_options="default"))


class _Moved(Exception):  # noqa: N818  # not an error: the reader looks again
    """A ring was drained between two looks, so what was read of it may have been overwritten."""


@dataclass(slots=True)
class _Left:
    """What lies in rings, unread by the collector."""

    readers: dict[str, Path] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    opened: list[tuple[Path, ring.RingReader]] = field(default_factory=list)

    @classmethod
    def found_in(cls, folder: Path, stack: ExitStack) -> _Left:
        left = cls()
        for path in sorted(folder.glob(f"*{ring.SUFFIX}")):
            try:
                reader = stack.enter_context(closing(ring.RingReader(path, changing=False)))
            except FileNotFoundError:
                continue  # drained and removed: its rows are in the store
            except ring.UnfinishedRing:
                continue  # it holds nothing yet
            except (RecordsError, OSError) as error:
                left.faults.append(str(error))
            else:
                left.opened.append((path, reader))
        return left

    def rows(
        self, name: str, connections: Sequence[sqlite3.Connection], *, strict: bool
    ) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        # When it happened is not known any more; the ring began at least not later.
        events = [fault_row(text, 0) for text in self.faults]
        for path, reader in self.opened:
            place = _place(connections, path.name, reader.made_ns)
            if strict or place.read is not None:
                reader.go_on(place.read or 0, place.texts)
            begin = reader.position
            fault = ""
            rows = []
            try:
                for table, row in reader.rows():
                    if table.name == name:
                        rows.append(row)  # those before a broken frame stay
            except RecordsError as error:
                fault = str(error)
            if strict and reader.released > begin:
                raise _Moved
            found += rows
            if fault:
                events.append(fault_row(fault, reader.made_ns))
            if reader.dropped > place.dropped:
                count = reader.dropped - place.dropped
                events.append(dropped_row(path.name, count, reader.made_ns))
        return found + events if name == EVENTS.name else found


def _place(connections: Sequence[sqlite3.Connection], name: str, made_ns: int) -> store.RingPlace:
    for connection in connections:
        place = store.ring_place(connection, name, made_ns)
        if place.read is not None:
            return place
    return store.RingPlace()


def open_records(run: str | Path, attempt: int | None = None) -> Records:
    """Open what was recorded of a run; nothing of it is changed.

    Args:
        run: The run's folder, or its name below the runs folder.
        attempt: The attempt's number; None: the latest that has records.

    Raises:
        UsageError: There is no such run.
        RecordsError: It has no records, or not of this attempt.
    """
    path = find_run(str(run))
    recorded = recorded_attempts(path)
    if not recorded:
        raise RecordsError(
            f"{path} has no records. They are made by `headrace run`, unless --profile is off."
        )
    if attempt is not None and attempt not in recorded:
        known = ", ".join(map(str, recorded))
        raise RecordsError(f"{path} has no records of attempt {attempt}; it has those of {known}.")
    records = Records(path, recorded[-1] if attempt is None else attempt)
    records.table("hosts")  # a newer version's records are refused here
    return records


def find_run(run: str | None = None, runs_dir: str | None = None) -> Path:
    """Return the folder of a run, absolute.

    Args:
        run: Its name, or a path to it; None: the run that began last.
        runs_dir: Where runs lie; None: what HEADRACE_RUNS_DIR says, else `./runs`.

    Raises:
        UsageError: There is no such run.
    """
    runs = runs_folder(runs_dir)
    if run is None:
        known = _runs_in(runs)
        if not known:
            raise UsageError(
                f"There is no run in {runs}. Start one with `headrace run`, or name a run's folder."
            )
        return max(known, key=_began_s).resolve()
    for path in (Path(run).expanduser(), runs / run):
        if _is_run(path):
            return path.resolve()
    names = [str(path.relative_to(runs)) for path in _runs_in(runs)]
    near = difflib.get_close_matches(run, names, n=3, cutoff=0.4) or sorted(names)[-3:]
    if Path(run).expanduser().exists():
        raise UsageError(f"{run} holds no run.json, so it is no run's folder.{_hint(near)}")
    raise UsageError(f"There is no run {run!r}, neither at this path nor in {runs}.{_hint(near)}")


def recorded_attempts(run: Path) -> list[int]:
    """Return the numbers of a run's attempts of which anything is recorded, ascending."""
    return [number for number in attempts_with_records(run) if _has_records(run, number)]


def _has_records(run: Path, attempt: int) -> bool:
    folder = RunFolder(run).records(attempt)
    return (
        any(folder.glob(f"*{STORE}"))
        or is_closed(folder)
        or any((folder / RINGS).glob(f"*{ring.SUFFIX}"))
    )


def _runs_in(folder: Path) -> list[Path]:
    """Return the runs in a folder, and those of tunings, which have a folder each."""
    if not folder.is_dir():
        return []
    within = [path for path in folder.iterdir() if path.is_dir()]
    tuned = [path for tuning in within if not _is_run(tuning) for path in tuning.glob("*/")]
    return [path for path in (*within, *tuned) if _is_run(path)]


def _is_run(path: Path) -> bool:
    return (path / "run.json").is_file() or (path / RECORDS).is_dir()


def _began_s(run: Path) -> float:
    try:
        attempts = RunFolder(run).attempts()
    except LaunchError:  # half-written or damaged: when the folder changed must do
        attempts = ()
    return attempts[-1].started_s if attempts else os.stat(run).st_mtime  # noqa: PTH116


def _hint(names: Sequence[str]) -> str:
    return f" Near it: {', '.join(names)}." if names else ""
