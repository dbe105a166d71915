"""Runs side by side on the live page: what differs, and their charts on one axis of time."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headrace.core.errors import HeadraceError, RecordsError
from headrace.decide.experiments.compared_runs import (
    MeasuredRun,
    compare_measured,
    cost_if_known,
    measured_part,
    measured_run,
)
from headrace.decide.experiments.metric_curves import RunCurves
from headrace.decide.experiments.run_target import SENT_FILE
from headrace.decide.experiments.spool import SPOOL
from headrace.observe.whatif.run_speed import FEWEST_STEPS
from headrace.observe.whatif.train_steps import read_steps
from headrace.records.reader import open_records
from headrace.report.charts.base import Span
from headrace.report.comparison_page import ComparisonData, comparison_sections, read_curves
from headrace.report.document import sections_json
from headrace.report.formatting import format_count, format_time
from headrace.report.live.run_list import last_attempt, run_stamp, run_state
from headrace.report.live.run_tables import steps_within
from headrace.report.live.threads import HasLeft, ViewerLeftError, viewer_stays
from headrace.report.markup import Section, chart_place, element, explanation, note, section

if TYPE_CHECKING:
    from headrace.decide.cost.run_cost import RunCost

_CHARTS = {
    "timeline": ("Steps over time", "Phases of every step over time"),
    "heatmap": ("How busy everything was", "How busy ranks, workers and cores were over time"),
}
_REST_FACTOR, _SHORTEST_REST_S = 19.0, 5.0
"""Runs that go on, or of which something cannot be read, are compared again after this many times
the CPU time of the last comparison."""
_MOST_KEPT, _MOST_KEPT_RUNS = 8, 12
_Stamp = tuple[Any, ...] | None
"""What changes as a run does; None of one that goes on, or may."""


@dataclass(frozen=True, slots=True)
class _Made:
    answer: dict[str, Any]
    of: Sequence[_Stamp]  # the runs as they were
    until_s: float  # when it is made again though they are as they were, by the monotonic clock

    def serves(self, of: Sequence[_Stamp]) -> bool:
        """Whether it need not be made again, of runs as they are now."""
        return self.of == of and time.monotonic() < self.until_s


class LiveComparisons:
    """Comparisons for all viewers: each is made once, and again while one of its runs goes on."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[tuple[Path, ...], Span | None], _Made] = OrderedDict()
        self._whole = _WholeRuns()
        self._making = threading.Lock()  # one at a time: those of long runs take much memory

    def sections(
        self, runs: Mapping[str, Path], span: Span | None, has_left: HasLeft = viewer_stays
    ) -> dict[str, Any]:
        """Return what differs between runs by name, two or more, as JSON's own types.

        Args:
            runs: Their folders by name.
            span: The part of each run's time that counts; None: all of it.
            has_left: Whether the viewer still waits, asked as his turn comes and before each run is
                read: if not, it raises ViewerLeftError.
        """
        paths = tuple(runs.values())
        key = paths, span
        with self._making:
            _check_waits(has_left)
            of = [_stamp(path) for path in paths]
            known = self._made.get(key)
            if known is None or not known.serves(of):
                known = self._made[key] = self._make(runs, span, of, has_left)
            self._made.move_to_end(key)
            while len(self._made) > _MOST_KEPT:
                self._made.popitem(last=False)
            return known.answer

    def _make(
        self, runs: Mapping[str, Path], span: Span | None, of: Sequence[_Stamp], has_left: HasLeft
    ) -> _Made:
        began_s = time.thread_time()
        differences, is_complete = self._differences(runs, span, has_left)
        rest_s = max(_REST_FACTOR * (time.thread_time() - began_s), _SHORTEST_REST_S)
        goes_on = None in of
        until_s = time.monotonic() + rest_s if goes_on or not is_complete else math.inf
        as_of = f"Numbers as of {format_time(time.time())}: not all of the runs have ended"
        sections = sections_json([*differences, *comparison_charts(runs)])
        return _Made({"subtitle": as_of if goes_on else "", "sections": sections}, of, until_s)

    def _differences(
        self, runs: Mapping[str, Path], span: Span | None, has_left: HasLeft
    ) -> tuple[Sequence[Section], bool]:
        """Return what differs by numbers, and whether all of it could be read.

        Runs that cannot be compared, so far or in this span, are left out with a sentence.
        """
        measured: list[MeasuredRun] = []
        notes: list[str] = [] if span is None else [_which(span)]
        # One after the other: the records of a long run's span take hundreds of megabytes.
        for name, path in runs.items():
            _check_waits(has_left)
            try:
                measured.append(_measured(name, path, span, is_first=not measured))
            except HeadraceError as error:
                notes.append(f"{name} is left out: {error}")
        if len(measured) < 2:
            return [section("runs", "Runs", *map(note, notes))], False
        whole, faults = self._whole.read(measured, are_whole=span is None)
        data = ComparisonData(
            name=" and ".join(runs),
            runs=compare_measured(measured, [each.cost for each in whole]),
            curves=[each.curves for each in whole],
            notes=[*notes, *faults],
        )
        is_complete = len(measured) == len(runs) and not faults
        return comparison_sections(data, heatmaps=False), is_complete


@dataclass(frozen=True, slots=True)
class _WholeRun:
    """What of a run is the same in comparisons of any span."""

    stamp: _Stamp
    cost: RunCost | None
    curves: RunCurves


class _WholeRuns:
    """What it cost, and the script's metrics, of ended runs: known for as long as they stay so."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, _WholeRun] = OrderedDict()

    def read(
        self, runs: Sequence[MeasuredRun], *, are_whole: bool
    ) -> tuple[list[_WholeRun], list[str]]:
        """Return those of runs, of which a part or all was measured, and why metrics are missing.

        To find them reads all of a run's steps, and may ask a tracking server.
        """
        stamps = {run.folder: _stamp(run.folder) for run in runs}
        found = {
            path: known for path, known in self._known.items() if known.stamp == stamps.get(path)
        }
        unknown = [run for run in runs if run.folder not in found]
        curves, faults = read_curves([run.folder for run in unknown])
        for run in unknown:
            path, busy = run.folder, run.utilisation if are_whole else None
            logged = curves.get(path, RunCurves())
            found[path] = _WholeRun(stamps[path], cost_if_known(path, busy), logged)
            if stamps[path] is not None and path in curves:
                self._known[path] = found[path]
        for run in runs:
            if run.folder in self._known:
                self._known.move_to_end(run.folder)
        while len(self._known) > _MOST_KEPT_RUNS:
            self._known.popitem(last=False)
        return [found[run.folder] for run in runs], faults


def comparison_charts(runs: Mapping[str, Path]) -> list[Section]:
    """Return the sections with the charts of runs by name."""
    return [_charts(name, runs) for name in _CHARTS]


def _check_waits(has_left: HasLeft) -> None:
    if has_left():
        raise ViewerLeftError("The viewer has left.")


def _stamp(path: Path) -> _Stamp:
    if run_state(path, last_attempt(path)) in {"running", "unknown"}:
        return None
    try:  # what it logged may be sent after its end
        sent_ns = (path / SPOOL / SENT_FILE).stat().st_mtime_ns
    except OSError:
        sent_ns = 0
    return *run_stamp(path), sent_ns


def _measured(name: str, path: Path, span: Span | None, *, is_first: bool) -> MeasuredRun:
    """Measure a run, or its steps within a span; raises HeadraceError: it cannot be compared."""
    if span is None:
        return measured_run(path, name, is_first=is_first)
    records = open_records(path)
    part = steps_within(records, span)
    steps = read_steps(part)
    if len(steps) < FEWEST_STEPS:
        raise RecordsError(
            f"it has {format_count(len(steps), 'step')} in this span of time, without the first "
            f"few, and to compare runs takes {FEWEST_STEPS}. Choose another span."
        )
    return measured_part(path, records, part, steps, is_first=is_first)


def _which(span: Span) -> str:
    digits = 1 if span[1] - span[0] >= 10 else 3
    begin, end = (f"{moment:,.{digits}f}" for moment in span)
    words = f"from {begin} s on" if span[1] == float("inf") else f"from {begin} s to {end} s"
    return (
        f"Speed, waits, phases and settings are of the steps {words} after the start of each "
        "run's own recording. Cost, metrics and curves are of the whole runs."
    )


def _charts(chart: str, runs: Mapping[str, Path]) -> Section:
    title, description = _CHARTS[chart]
    places = (
        part
        for name in runs
        for part in (
            element("h3", element("a", name, href=f"/runs/{quote(name)}")),
            chart_place(f"{name}/{chart}", f"{description}: {name}"),
        )
    )
    return section(
        f"{chart}s",
        title,
        explanation("Time runs from the start of each run's own recording."),
        *places,
    )
