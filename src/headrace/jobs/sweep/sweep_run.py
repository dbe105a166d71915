"""The execution of a sweep: its runs one after another, or several at once on a cluster."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.core.errors import HeadraceError, UsageError
from headrace.jobs.cli_args import check_script, find_script
from headrace.jobs.run_handle import RunHandle
from headrace.jobs.run_start import check_run, start_run
from headrace.jobs.sweep.sweep_file import Sweep, SweepRun
from headrace.jobs.sweep.sweep_state import SweepState

_POLL_S = 0.1
_FOUND_BY_TORCHRUN = {"--module", "--no-python"}
"""Flags with which the entry point is a module or a program, and no script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEvent:
    """A run of a sweep that starts, or ended.

    Attributes:
        place: The run's in the sweep, from 1.
        seconds: How long it took; None: it starts.
        fault: Why it failed; "": it did not.
        left_s: How long the sweep will take from now; None: no run has shown it yet.
    """

    place: int
    run: SweepRun
    seconds: float | None = None
    fault: str = ""
    left_s: float | None = None


def run_sweep(sweep: Sweep, state: SweepState) -> Iterator[SweepEvent]:
    """Run what of a sweep has not ended well yet; yield each run as it starts and as it has ended.

    A run that fails does not end the sweep. If this process is interrupted, the runs that are going
    on are stopped; if it is killed, they end with it.
    """
    execution = _Execution(sweep, state)
    try:
        yield from execution.to_its_end()
    finally:
        execution.stop()


def check_scripts(sweep: Sweep) -> None:
    """Raise UsageError where the script of a run cannot be run, before the first one starts."""
    for run in sweep.runs:
        request = run.request
        if not _FOUND_BY_TORCHRUN.isdisjoint(request.torchrun_flags):
            continue
        source_dir = next(iter(request.options.get("source_dir", ())), None)
        try:
            check_script(find_script(request.script, source_dir))
        except UsageError as error:
            raise UsageError(f"Run {run.name}: {error}") from error


class _Execution:
    def __init__(self, sweep: Sweep, state: SweepState) -> None:
        self._sweep, self._state = sweep, state
        self._waiting: list[tuple[int, SweepRun]] = []
        self._running: dict[int, tuple[SweepRun, RunHandle, float]] = {}
        self._lasted_s: list[float] = []
        for place, run in enumerate(sweep.runs, start=1):
            attempt = state.finished(run)
            if attempt is None:
                self._waiting.append((place, run))
            else:
                self._lasted_s.append(attempt.lasted_s or 0.0)

    def to_its_end(self) -> Iterator[SweepEvent]:
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self._sweep.max_concurrent:
                place, run = self._waiting.pop(0)
                yield SweepEvent(place=place, run=run, left_s=self._left_s(1))
                fault = self._start(place, run)
                if fault:
                    yield SweepEvent(place=place, run=run, seconds=0.0, fault=fault)
            ended = [place for place, (_, handle, _) in self._running.items() if not _runs(handle)]
            for place in ended:
                yield self._end(place)
            if not ended:
                time.sleep(_POLL_S)

    def stop(self) -> None:
        for _, handle, _ in self._running.values():
            handle.stop()
        self._running.clear()

    def _start(self, place: int, run: SweepRun) -> str:
        """Start a run; return why it cannot be started, "" if it was."""
        self._state.begin(run)
        options = {"experiment": [self._sweep.experiment], "runs_dir": [str(self._state.runs)]}
        try:
            handle = start_run(
                run.request, run.name, stem=run.name, tied=True, runs_dir=str(self._state.runs),
                options=options,
            )  # fmt: skip
        except (HeadraceError, OSError) as error:
            return str(error)
        self._running[place] = run, handle, time.monotonic()
        return ""

    def _end(self, place: int) -> SweepEvent:
        run, handle, began_s = self._running.pop(place)
        seconds = time.monotonic() - began_s
        try:
            check_run(handle)
            fault = "" if handle.exit_code == 0 else f"{run.name} was stopped."
        except (HeadraceError, OSError) as error:  # such as of a folder that was removed meanwhile
            fault = str(error)
        if not fault:
            self._lasted_s.append(seconds)
        return SweepEvent(
            place=place, run=run, seconds=seconds, fault=fault, left_s=self._left_s(0)
        )

    def _left_s(self, starting: int) -> float | None:
        """Return how long all will take that wait, and `starting` runs more, if that is known."""
        if not self._lasted_s:
            return None
        left = len(self._waiting) + starting + len(self._running)
        return statistics.mean(self._lasted_s) * math.ceil(left / self._sweep.max_concurrent)


def _runs(handle: RunHandle) -> bool:
    return handle.state == "InProgress"
