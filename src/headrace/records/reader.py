"""The reader of a run's records in any state: live, closed, or left over by a killed job.

Also: the lookup of runs, the wait for the first records of a run that has just started, and the
provenance of an attempt: script, overrides, versions.
"""

from __future__ import annotations

import difflib
import os
import shlex
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.core.errors import LaunchError, RecordsError, UsageError
from headrace.core.file_lock import is_locked
from headrace.core.files import owner_name
from headrace.core.units import format_seconds
from headrace.records import ring, store, system_table
from headrace.records.collector import dropped_row, fault_row
from headrace.records.job_settings import (
    attempt_flags,
    attempt_params,
    flag_values,
    request_settings,
)
from headrace.records.layout import (
    LOCK,
    PARQUET,
    RECORDS,
    RINGS,
    STORE,
    attempts_with_records,
    is_closed,
)
from headrace.records.live_switch import SWITCH_FILE as SWITCH
from headrace.records.parquet_tables import (
    ParquetTable,
    arrow_schema,
    combined_table,
    record_batch,
    stored_schema,
    stored_tables,
)
from headrace.records.run_folder import Attempt, RunFolder, runs_folder
from headrace.records.schema import EVENTS, OPTIONAL_TABLES, TABLES_BY_NAME
from headrace.records.sent_rows import SentRowsReader, sent_row_files

_TRIES = 20
_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one attempt of a run."""

    path: Path  # the run's folder
    attempt: int

    @property
    def live(self) -> bool:
        """Whether they are still being written."""
        return any(is_locked(lock, unknown=True) for lock in self.folder.glob(f"*{LOCK}"))

    def table(self, name: str) -> pa.Table:
        """Return a table of `schema.TABLES` or `system` as of now.

        Text is dictionary-encoded, and every column is one chunk. RecordsError: there is no such
        table, or its file is broken or of a newer version.
        """
        if name not in system_table.TABLE_NAMES:
            names = ", ".join(sorted(system_table.TABLE_NAMES))
            raise RecordsError(f"No table {name!r} is recorded: {names}.")
        reason = ""
        for _ in range(_TRIES):
            try:
                return self._read(name, strict=True)
            except _RingMoved:
                continue  # the collector drained it meanwhile: its rows are in the store now
            except sqlite3.Error as error:
                reason = f": {error}"  # being closed, or broken
                time.sleep(_PAUSE_S)
        try:
            return self._read(name, strict=False)
        except sqlite3.Error:
            raise RecordsError(f"{self.folder}: the store cannot be read{reason}.") from None

    def by_column(self, name: str) -> ParquetTable | None:
        """Return a table that is read by column, None if not closed; raises RecordsError."""
        folder = self.folder
        return self._closed(name) if is_closed(folder) and not _has_open(folder) else None

    @property
    def folder(self) -> Path:
        """The attempt's records folder."""
        return RunFolder(self.path).records(self.attempt)

    def _closed(self, name: str) -> ParquetTable | None:
        """Return a table's file; None for a table that an older version did not have."""
        path = self.folder / f"{name}{PARQUET}"
        return None if name in OPTIONAL_TABLES and not path.exists() else ParquetTable(path, name)

    def _read(self, name: str, *, strict: bool) -> pa.Table:
        with ExitStack() as stack:
            # Rings before the store: rows that are drained meanwhile are then in the store.
            undrained = _UndrainedRings(self.folder / RINGS, stack)
            stores = {
                path: stack.enter_context(closing(store.open_read_only(path)))
                for path in sorted(self.folder.glob(f"*{STORE}"))
            }
            for connection in stores.values():
                connection.execute("BEGIN")  # one snapshot for rows and ring positions
            stores = {path: each for path, each in stores.items() if store.has_tables(each)}
            # Before the tables: if a ring was drained meanwhile, the read starts over.
            is_in_schema = name in TABLES_BY_NAME
            rows = (
                undrained.rows(name, list(stores.values()), strict=strict) if is_in_schema else []
            )
            tables = []
            for path, connection in stores.items():
                tables.append(pa.Table.from_batches([], stored_schema(connection, name)))
                try:
                    tables += stored_tables(connection, path, name)
                except RecordsError:
                    if strict and not path.exists():
                        raise _RingMoved from None  # the store was closed meanwhile
                    raise
            if not stores and is_closed(self.folder):
                closed = self._closed(name)
                tables += [closed.table()] if closed is not None else []
            if is_in_schema:
                tables.append(pa.Table.from_batches([record_batch(arrow_schema(name), rows)]))
        # Concatenating a table without rows would copy the others' columns.
        non_empty = [table for table in tables if table.num_rows] or tables[:1]
        non_empty = non_empty or [pa.Table.from_batches([], arrow_schema(name))]
        return combined_table(pa.concat_tables(non_empty, promote_options="default"))


class _RingMoved(Exception):  # noqa: N818  # not an error: the reader reads again
    """A ring was drained during a read, so the rows may have been overwritten."""


class _UndrainedRings:
    """The rows in the rings of a folder that the collector has not drained."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._faults: list[str] = []
        self._readers: list[tuple[Path, ring.RingReader]] = []
        self._sent = list(sent_row_files(folder))
        for path in sorted(folder.glob(f"*{ring.SUFFIX}")):
            try:
                reader = stack.enter_context(closing(ring.RingReader(path, changing=False)))
            except (FileNotFoundError, ring.UnfinishedRing):
                continue  # drained and removed: its rows are in the store; or it has none yet
            except (RecordsError, OSError) as error:
                self._faults.append(str(error))
            else:
                self._readers.append((path, reader))

    def rows(
        self, name: str, connections: Sequence[sqlite3.Connection], *, strict: bool
    ) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        # The time of a fault is unknown: 0 here, the ring's creation below.
        events = [fault_row(text, 0) for text in self._faults]
        for path, reader in self._readers:
            position = _stored_position(connections, path.name, reader.made_ns)
            if strict or position.read is not None:
                reader.seek(position.read or 0, position.texts)
            start = reader.position
            fault = ""
            rows = []
            try:
                for table, row in reader.rows():
                    if table.name == name:
                        rows.append(row)  # rows before a broken frame are kept
            except RecordsError as error:
                fault = str(error)
            if strict and reader.released > start:
                raise _RingMoved
            found += rows
            if fault:
                events.append(fault_row(fault, reader.made_ns))
            if reader.dropped > position.dropped:
                count = reader.dropped - position.dropped
                events.append(dropped_row(path.name, count, reader.made_ns))
        found += self._sent_rows(name, connections, events, strict=strict)
        return found + events if name == EVENTS.name else found

    def _sent_rows(
        self, name: str, connections: Sequence[sqlite3.Connection], events: list[tuple[Any, ...]],
        *, strict: bool,
    ) -> list[tuple[Any, ...]]:  # fmt: skip
        """Return the rows of other hosts that the collector has not taken in; add faults."""
        number = TABLES_BY_NAME[name].number
        found: list[tuple[Any, ...]] = []
        for path in self._sent:
            position = _stored_position(connections, path.name, 0).read or 0
            reader = SentRowsReader(path, position)
            try:
                while (read := reader.read()) is not None:
                    found += read.rows.get(number, (None, []))[1]
                reader.is_at_end()  # raises where it was taken in, and its position dropped
            except FileNotFoundError:
                if strict:
                    raise _RingMoved from None
            except OSError as error:
                events.append(fault_row(str(error), 0))
        return found


def _stored_position(
    connections: Sequence[sqlite3.Connection], name: str, made_ns: int
) -> store.RingPosition:
    positions = (store.ring_position(each, name, made_ns) for each in connections)
    return next((each for each in positions if each.read is not None), store.RingPosition())


def open_records(run: str | Path, attempt: int | None = None) -> Records:
    """Open a run's records, read-only: of an attempt, or of the latest that has some.

    The run is its folder, or its name below the runs folder. Raises UsageError (there is no such
    run), RecordsError (it has no records, or none of this attempt).
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
    records.table("hosts")  # raises for records of a newer version
    return records


def find_run(run: str | None = None, runs_dir: str | None = None) -> Path:
    """Return the folder of a run, absolute.

    Raises UsageError if there is no such run, and RecordsError if it may not be read.

    The run is its name, or a path to it; None: the run that started last. Without `runs_dir` the
    runs folder is that of HEADRACE_RUNS_DIR, else `./runs`.
    """
    runs = runs_folder(runs_dir)
    if run is None:
        known = runs_in(runs)
        if not known:
            raise UsageError(
                f"There is no run in {runs}. Start one with `headrace run`, or name a run's folder."
            )
        return max(known, key=_start_s).resolve()
    for path in (Path(run).expanduser(), runs / run):
        check_readable(path)
        if is_run(path):
            return path.resolve()
    problem = f"There is no run {run!r}, neither at this path nor in {runs}."
    if Path(run).expanduser().exists():
        problem = f"{run} holds no run.json, so it is no run's folder."
    names = [str(path.relative_to(runs)) for path in runs_in(runs)]
    near = difflib.get_close_matches(run, names, n=3, cutoff=0.4) or sorted(names)[-3:]
    raise UsageError(f"{problem} Near it: {', '.join(near)}." if near else problem)


def recorded_attempts(run: Path) -> list[int]:
    """Return the numbers of a run's attempts that have records, ascending."""
    folders = {number: RunFolder(run).records(number) for number in attempts_with_records(run)}
    return [number for number, each in folders.items() if is_closed(each) or _has_open(each)]


def _has_open(folder: Path) -> bool:
    """Whether a records folder has a store or rings, whose rows are not in Parquet files yet."""
    rings = folder / RINGS
    waiting = any(rings.glob(f"*{ring.SUFFIX}")) or any(sent_row_files(rings))
    return waiting or any(folder.glob(f"*{STORE}"))


def runs_in(folder: Path) -> list[Path]:
    """Return the runs in a folder, and in the folders of tunings in it."""
    return [path for path in _folders_in(folder) if is_run(path)]


def closed_folders_in(folder: Path) -> list[Path]:
    """Return the folders where runs may be that this user may not read."""
    return [path for path in _folders_in(folder) if is_closed_to_user(path)]


def is_closed_to_user(path: Path) -> bool:
    """Whether a path is a folder that this user may not read, as others' runs are by default."""
    try:
        os.scandir(path).close()
        os.stat(f"{path}/.")  # noqa: PTH116 - a Path drops the dot, which asks for more rights
    except PermissionError:
        return True
    except OSError:  # there is no folder
        return False
    return False


def check_readable(path: Path) -> None:
    """Raise RecordsError, which names the owner, where this user may not read a folder.

    Nor may it what lies in it, however deep; that is no error of what is not there.
    """
    folder = _closed_folder(path)
    if folder is not None:
        owner = owner_name(folder)
        raise RecordsError(
            f"{folder} belongs to {owner} and is closed to other users. {owner} can open it to all "
            f"by: chmod -R a+rX {shlex.quote(str(folder))}"
        )


def _closed_folder(path: Path) -> Path | None:
    """Return the outermost folder that keeps this user from a path; None: none does."""
    for folder in reversed(path.parents):
        if not folder.is_dir():
            return None
        if not os.access(folder, os.X_OK):
            return folder
    return path if is_closed_to_user(path) else None


def _folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, and those in each of them that is no run."""
    if not folder.is_dir():
        return []
    check_readable(folder)
    found = _subfolders(folder)
    tunings = [path for path in found if not (is_closed_to_user(path) or is_run(path))]
    return [*found, *(path for tuning in tunings for path in _subfolders(tuning))]


def _subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder; none of one that is removed at this moment."""
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []


def is_run(path: Path) -> bool:
    """Whether a folder is a run's."""
    try:
        return (path / "run.json").is_file() or (path / RECORDS).is_dir()
    except OSError:  # a folder of somebody else: see `check_readable`
        return False


def _start_s(run: Path) -> float:
    attempt = _latest_attempt(run)
    return os.stat(run).st_mtime if attempt is None else attempt.started_s  # noqa: PTH116


_POLL_S = 0.05
_FOLDER_TIMEOUT_S = 5.0
"""An attempt is in run.json some milliseconds before its records folder is made."""
_COLLECTOR_TIMEOUT_S = 30.0
"""The collector is started next, which takes seconds on a busy host; later it counts as killed."""
_LONGEST_WAIT_S = 60.0  # where the clock of the run's host is ahead of this one's


def wait_for_records(path: Path, waits: Callable[[], None]) -> None:
    """Wait until a run that has just started has records; return at once for any other.

    `waits` is called once if there is a wait. Raises RecordsError if the run ended meanwhile,
    without records, or has none after a minute.
    """
    if not _awaits_first_records(path):
        return
    waits()
    deadline_s = time.monotonic() + _LONGEST_WAIT_S
    while _awaits_first_records(path) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    if not recorded_attempts(path):
        raise _no_records_error(path)


def _awaits_first_records(path: Path) -> bool:
    """Whether a run's latest attempt may still get its first records."""
    attempt = _latest_attempt(path)
    if attempt is None:
        return False
    records = Records(path, attempt.number)
    if any(records.folder.glob(f"*{STORE}")) or is_closed(records.folder):
        return False
    if not (records.folder / SWITCH).exists():  # not made yet, removed, or --profile off
        return attempt.ended_s is None and _age_s(attempt) < _FOLDER_TIMEOUT_S
    return records.live or _age_s(attempt) < _COLLECTOR_TIMEOUT_S


def _no_records_error(path: Path) -> RecordsError:
    attempt = _latest_attempt(path)
    if attempt is None or attempt.lasted_s is None:
        return RecordsError(
            f"{path.name} has begun, and nothing of it is recorded: it runs with --profile off, "
            "or was killed at once."
        )
    return RecordsError(
        f"{path.name} ended with exit code {attempt.exit_code} after "
        f"{format_seconds(attempt.lasted_s)}, before anything of it was "
        f"recorded. What it printed is in {RunFolder(path).logs(attempt.number)}."
    )


def _latest_attempt(path: Path) -> Attempt | None:
    try:
        return next(reversed(RunFolder(path).attempts()), None)
    except LaunchError:  # damaged: the records, or the folder's time, must do
        return None


def _age_s(attempt: Attempt) -> float:
    """Return the seconds since an attempt ended, or if it runs, since it started."""
    return attempt.now_s() - (attempt.started_s if attempt.ended_s is None else attempt.ended_s)


_APPLY_FLAG = "--apply"


def run_provenance(records: Records) -> dict[str, str]:
    """Return script, arguments, settings, overrides and versions; empty without run.json."""
    with suppress(LaunchError):
        for attempt in RunFolder(records.path).attempts():
            if attempt.number == records.attempt:
                applied = ["-", *flag_values(attempt_flags(attempt), _APPLY_FLAG)][-1]
                script = attempt.argv[0]
                arguments = {_flag(name): each for name, each in attempt_params(attempt).items()}
                asked = request_settings(attempt.asked)
                asked.pop("apply", None)  # as the flag
                versions = attempt.versions
                return {"script": script, **arguments, **asked, _APPLY_FLAG: applied, **versions}
    return {}


def _flag(name: str) -> str:
    """Return a script's argument as it was typed; one without a flag by its place."""
    return f"argument {int(name) + 1}" if name.isdecimal() else f"--{name}"
