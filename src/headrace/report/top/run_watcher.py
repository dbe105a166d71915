"""The watcher of a run, live or ended: the rows of a frame, and diagnoses in the background.

Diagnoses are made in a separate thread, seldom enough not to disturb the job.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from headrace.core.arrow_arrays import column_values
from headrace.core.errors import HeadraceError, LaunchError, RecordsError
from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.whatif.tables import CachedTables, Tables
from headrace.observe.whatif.train_steps import WARM_UP_STEPS
from headrace.observe.whatif.wall_time import read_open_times
from headrace.records.attempt_outcomes import attempt_outcomes
from headrace.records.live_reader import (
    StepTotals,
    recent_rows,
    recorded_rank_count,
    row_ends_ns,
    rows_since,
)
from headrace.records.live_switch import LiveSwitch
from headrace.records.reader import Records, open_records
from headrace.records.run_folder import Attempt, Outcome, RunFolder
from headrace.report.span_tables import WHOLE_TABLES, as_if_begun
from headrace.report.top.state import LiveVerdict, RunStatus, TimeWindow, TopState, read_state

TableReader = Callable[[str, int, int], pa.Table]
"""Returns a table's rows since a time in ns, and at least a number of the last ones."""
_FEWEST_STEPS_OF_RANK = 12
_FEWEST_ROWS = {"system": 2, "loaders": 256, "processes": 1024}
_NEVER_NS = 2**62
_CLOCKS = ("steps", "system", "stacks", "process_usage")
_DIAGNOSED_NS = 60_000_000_000
_DIAGNOSED_STEPS = 40


def live_reader(records: Records) -> TableReader:
    """Return a reader of a live run's tables, which reads them from their ends."""
    return lambda name, since_ns, fewest: recent_rows(records, name, since_ns, fewest=fewest)


def closed_reader(tables: Tables) -> TableReader:
    """Return a reader of an ended run's tables."""
    return lambda name, since_ns, fewest: rows_since(
        tables.table(name), name, since_ns, fewest=fewest
    )


@dataclass(frozen=True, slots=True)
class RecentTables:
    """The last seconds of each table, and at least a few rows, or steps of each rank."""

    read: TableReader
    since_ns: int
    ranks: int = 1

    def table(self, name: str) -> pa.Table:
        """Return a table of `headrace.records.schema`, or `system`."""
        fewest = {**_FEWEST_ROWS, "steps": _FEWEST_STEPS_OF_RANK * self.ranks}.get(name, 0)
        return self.read(name, self.since_ns, fewest)


@dataclass(frozen=True, slots=True)
class TruncatedTables:
    """A run's tables as if its recording had begun at a moment."""

    read: TableReader
    since_ns: int

    def table(self, name: str) -> pa.Table:
        """Return a table of `headrace.records.schema`, or `system`."""
        table = self.read(name, 0 if name in WHOLE_TABLES else self.since_ns, 0)
        return as_if_begun(table, name, self.since_ns)


def newest_ns(read: TableReader, names: Sequence[str] = _CLOCKS) -> int:
    """Return when the last row of any of some tables ended; 0 if there is none."""
    latest = [row_ends_ns(read(name, _NEVER_NS, 64), name) for name in names]
    return max((int(times.max()) for times in latest if len(times)), default=0)


def diagnosis_tables(read: TableReader, until_ns: int, ranks: int) -> TruncatedTables:
    """Return the tables to diagnose a live run from: its last minute, or a few dozen steps."""
    since_ns = until_ns - _DIAGNOSED_NS
    first_ns = _first_start_ns(read("steps", since_ns, _DIAGNOSED_STEPS * ranks), since_ns)
    return TruncatedTables(read, min(since_ns, first_ns))


def _first_start_ns(steps: pa.Table, otherwise_ns: int) -> int:
    """Return when the first of some steps began; `otherwise_ns` without any."""
    return int(column_values(steps.column("start_ns")).min()) if steps.num_rows else otherwise_ns


_PAUSE_S = 5.0
_REST_FACTOR = 19.0
"""Rest after a diagnosis, over its duration: diagnoses take a twentieth of a core."""


class VerdictThread:
    """The doctor's verdict, renewed in the background if the records grow (`again`)."""

    def __init__(self, diagnose: Callable[[], LiveVerdict], *, again: bool) -> None:
        self._diagnose = diagnose
        self._again = again
        self._latest: LiveVerdict | None = None
        self._thread: threading.Thread | None = None
        self._due_s = time.monotonic()

    def latest(self) -> LiveVerdict | None:
        """Return the last verdict, None before the first; begin the next diagnosis if it is due."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
        if self._thread is None and time.monotonic() >= self._due_s:
            self._thread = threading.Thread(target=self._make, daemon=True, name="diagnosis")
            self._thread.start()
        return self._latest

    def now(self) -> LiveVerdict:
        """Diagnose at once and return the verdict."""
        self._make()
        assert self._latest is not None
        return self._latest

    def _make(self) -> None:
        began_s = time.monotonic()
        try:
            self._latest = self._diagnose()
        except Exception as error:  # noqa: BLE001 - a fault of the doctor must not end the view
            name = "" if isinstance(error, HeadraceError) else f"{type(error).__name__}: "
            self._latest = LiveVerdict(sentence=f"There is no verdict: {name}{error}")
        ended_s = time.monotonic()
        rest_s = max(_PAUSE_S, _REST_FACTOR * (ended_s - began_s))
        self._due_s = ended_s + rest_s if self._again else float("inf")


_WINDOW_NS = 10_000_000_000
_SILENT_S = 5.0


def recording_now(records: Records, until_ns: int) -> tuple[bool, float]:
    """Return whether a live run records now, and how many seconds its next record is overdue.

    `until_ns` is the time of the newest one; 0: there is none.
    """
    try:
        switch = LiveSwitch(records.folder)
    except RecordsError:  # the run is ending
        return True, 0.0
    silent_s = (time.monotonic_ns() - until_ns) / 1e9 if until_ns else 0.0
    due_s = max(_SILENT_S, 3 * switch.interval_s)
    return switch.on, silent_s if switch.on and silent_s > due_s else 0.0


class RunWatcher:
    """Watches the latest attempt of a run, live or ended; raises RecordsError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin(open_records(path))

    def _begin(self, records: Records) -> None:
        self._records = records
        totals = StepTotals(skipped=WARM_UP_STEPS)
        self._verdicts = VerdictThread(lambda: self._diagnose_live(records, totals), again=True)
        self._ranks = 0  # that are recorded
        self._over: TopState | None = None
        self._ended_s: float | None = None

    def look(self, *, wait: bool = False) -> TopState:
        """Return the state, with the last verdict or (`wait`) a new one; raises RecordsError."""
        if not self._records.live:
            latest = open_records(self.path)  # for a resumed run, its next attempt
            if latest.attempt != self._records.attempt:
                self._begin(latest)
        if self._records.live:
            state = self._look_live()
        else:
            if self._over is None:
                self._over = self._look_over()
            state = replace(self._over, status=self._status(live=False))
        return replace(state, verdict=self._verdicts.now() if wait else self._verdicts.latest())

    def _look_live(self) -> TopState:
        read = live_reader(self._records)
        until_ns = newest_ns(read)
        window = TimeWindow(until_ns - _WINDOW_NS, until_ns)
        status = self._status(live=True, until_ns=until_ns)
        tables = CachedTables(RecentTables(read, window.since_ns, status.world_size or 1))
        return read_state(tables, window, status)

    def _look_over(self) -> TopState:
        whole = CachedTables(self._records)
        read = closed_reader(whole)
        newest = newest_ns(read)
        until_ns = newest_ns(read, ("steps",)) or newest
        until_ns = max([until_ns, *(each.until_ns for each in read_open_times(whole))])
        window = TimeWindow(until_ns - _WINDOW_NS, until_ns)
        hosts = whole.table("hosts")
        if hosts.num_rows and newest:
            self._ended_s = (newest + hosts.column("unix_offset_ns")[0].as_py()) / 1e9
        status = self._status(live=False)
        tables = CachedTables(RecentTables(read, window.since_ns, status.world_size or 1))
        self._verdicts = VerdictThread(lambda: _diagnose_whole(whole), again=False)
        return read_state(tables, window, status)

    def _diagnose_live(self, records: Records, totals: StepTotals) -> LiveVerdict:
        read = live_reader(records)
        until_ns = newest_ns(read)
        late = diagnosis_tables(read, until_ns, max(recorded_rank_count(records), 1))
        tables = CachedTables(late)
        sentence = diagnose(tables).verdict.sentence
        # Closed at this moment: the ended run is read next.
        with suppress(sqlite3.Error, RecordsError):
            totals.add_new(records)
        since_ns = _first_start_ns(tables.table("steps"), late.since_ns)
        return LiveVerdict(
            sentence=sentence,
            span_s=(until_ns - since_ns) / 1e9,
            data_wait_share=totals.data_wait_share,
        )

    def _status(self, *, live: bool, until_ns: int = 0) -> RunStatus:
        attempt, outcome = self._attempt_now(live=live)
        if self._over is None:  # else all of them are known
            self._ranks = recorded_rank_count(self._records)
        recording, silent_s = recording_now(self._records, until_ns) if live else (True, 0.0)
        return RunStatus(
            name=self.path.name,
            attempt=self._records.attempt,
            world_size=self._ranks or (attempt.world_size if attempt else None),
            live=live,
            outcome=outcome,
            recording=recording,
            elapsed_s=self._elapsed_s(attempt, outcome),
            exit_code=attempt.exit_code if attempt else None,
            silent_s=silent_s,
        )

    def _elapsed_s(self, attempt: Attempt | None, outcome: Outcome) -> float | None:
        if attempt is None:
            return None
        if outcome == "going on":
            return attempt.now_s() - attempt.started_s
        ended_s = self._ended_s if attempt.ended_s is None else attempt.ended_s
        return None if ended_s is None else max(ended_s - attempt.started_s, 0.0)

    def _attempt_now(self, *, live: bool) -> tuple[Attempt | None, Outcome]:
        """Return the attempt in run.json and how it is doing; without it the records say that."""
        attempts: Sequence[Attempt] = ()
        outcomes: Sequence[Outcome] = ()
        # Half-written or damaged: the view does without.
        with suppress(LaunchError, KeyError):
            attempts = RunFolder(self.path).attempts()
            outcomes = attempt_outcomes(self.path, attempts)
        for attempt, outcome in zip(attempts, outcomes, strict=False):
            if attempt.number == self._records.attempt:
                return attempt, outcome
        return None, "going on" if live else "killed"


def _diagnose_whole(whole: CachedTables) -> LiveVerdict:
    verdict = diagnose(whole).verdict
    # As for the last seconds, the share of the script's time is shown.
    waits = None if verdict.data_wait_share is None else verdict.phase_shares["data_wait"]
    return LiveVerdict(sentence=verdict.sentence, data_wait_share=waits)
