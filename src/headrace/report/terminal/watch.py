"""A run that is looked at again and again, while it goes on and when it is over."""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from headrace.core.errors import LaunchError, RecordsError
from headrace.observe.doctor.diagnose import diagnose
from headrace.observe.whatif.steps import WARM_UP_STEPS
from headrace.observe.whatif.tables import ReadOnce
from headrace.records.reading import Records, open_records
from headrace.records.run_folder import Attempt, RunFolder
from headrace.records.switch import Switch
from headrace.records.totals import StepTotals
from headrace.report.terminal.state import State, Status, Told, read_state
from headrace.report.terminal.tables import (
    Recent,
    began_ns,
    diagnosed,
    last_step_ns,
    newest_ns,
    reading,
    reading_whole,
)
from headrace.report.terminal.verdicts import Verdicts
from headrace.report.terminal.window import Window

_WINDOW_NS = 10_000_000_000
_SILENT_S = 5.0


class Watch:
    """Looks at the latest attempt of a run.

    Args:
        path: The run's folder.

    Attributes:
        path: Likewise.

    Raises:
        RecordsError: Nothing is recorded of it, or a newer version recorded it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin(open_records(path))

    def _begin(self, records: Records) -> None:
        self._records = records
        totals = StepTotals(skipped=WARM_UP_STEPS)
        self._verdicts = Verdicts(lambda: self._diagnose_live(records, totals), again=True)
        self._over: State | None = None
        self._ended_s: float | None = None

    def look(self, *, wait: bool = False) -> State:
        """Return how it is now.

        Args:
            wait: Have the doctor's verdict in it, too; else the one that was made last.

        Raises:
            RecordsError: The records cannot be read any more.
        """
        if not self._records.live:
            latest = open_records(self.path)  # where the run is resumed, its next attempt
            if latest.attempt != self._records.attempt:
                self._begin(latest)
        if self._records.live:
            state = self._look_live()
        else:
            if self._over is None:
                self._over = self._look_over()
            state = replace(self._over, status=self._status(live=False))
        return replace(state, told=self._verdicts.now() if wait else self._verdicts.latest())

    def _look_live(self) -> State:
        read = reading(self._records)
        until_ns = newest_ns(read)
        window = Window(until_ns - _WINDOW_NS, until_ns)
        status = self._status(live=True, until_ns=until_ns)
        tables = ReadOnce(Recent(read, window.since_ns, status.world_size or 1))
        return read_state(tables, window, status)

    def _look_over(self) -> State:
        whole = ReadOnce(self._records)
        read = reading_whole(whole)
        newest = newest_ns(read)
        until_ns = last_step_ns(read) or newest
        window = Window(until_ns - _WINDOW_NS, until_ns)
        hosts = whole.table("hosts")
        if hosts.num_rows and newest:
            self._ended_s = (newest + hosts.column("unix_offset_ns")[0].as_py()) / 1e9
        status = self._status(live=False)
        tables = ReadOnce(Recent(read, window.since_ns, status.world_size or 1))
        self._verdicts = Verdicts(lambda: _diagnose_whole(whole), again=False)
        return read_state(tables, window, status)

    def _diagnose_live(self, records: Records, totals: StepTotals) -> Told:
        read = reading(records)
        until_ns = newest_ns(read)
        told = self._told_by_run()
        late = diagnosed(read, until_ns, told.world_size if told else 1)
        tables = ReadOnce(late)
        sentence = diagnose(tables).verdict.sentence
        with suppress(sqlite3.Error):  # closed at this moment: the whole is told next
            totals.add_new(records)
        since_ns = began_ns(tables)
        return Told(
            sentence=sentence,
            span_s=(until_ns - (late.since_ns if since_ns is None else since_ns)) / 1e9,
            data_wait_share=totals.data_wait_share,
        )

    def _status(self, *, live: bool, until_ns: int = 0) -> Status:
        told = self._told_by_run()
        recording, silent_s = True, 0.0
        if live:
            recording, silent_s = self._switch(until_ns)
        return Status(
            name=self.path.name,
            attempt=self._records.attempt,
            world_size=told.world_size if told else None,
            live=live,
            recording=recording,
            elapsed_s=self._elapsed_s(told, live=live),
            exit_code=told.exit_code if told else None,
            silent_s=silent_s,
        )

    def _elapsed_s(self, told: Attempt | None, *, live: bool) -> float | None:
        if told is None:
            return None
        if live:
            return max(time.time() - told.started_s, 0.0)
        ended_s = self._ended_s if told.ended_s is None else told.ended_s
        return None if ended_s is None else max(ended_s - told.started_s, 0.0)

    def _switch(self, until_ns: int) -> tuple[bool, float]:
        """Return whether the run records now, and for how long nothing has come that should."""
        try:
            switch = Switch(self._records.folder)
        except RecordsError:  # the run is ending
            return True, 0.0
        silent_s = (time.monotonic_ns() - until_ns) / 1e9 if until_ns else 0.0
        due_s = max(_SILENT_S, 3 * switch.interval_s)
        return switch.on, silent_s if switch.on and silent_s > due_s else 0.0

    def _told_by_run(self) -> Attempt | None:
        try:
            attempts = RunFolder(self.path).attempts()
        except LaunchError:  # half-written or damaged: the records speak for themselves
            return None
        return next((each for each in attempts if each.number == self._records.attempt), None)


def _diagnose_whole(whole: ReadOnce) -> Told:
    verdict = diagnose(whole).verdict
    # Like what is shown of the last seconds: of the script's time.
    waits = None if verdict.data_wait_share is None else verdict.phase_shares["data_wait"]
    return Told(sentence=verdict.sentence, data_wait_share=waits)
