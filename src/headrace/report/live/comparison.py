"""Runs side by side on the live page: what differs, and their charts on one axis of time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace.core.errors import HeadraceError
from headrace.decide.experiments.compared_runs import compared_runs
from headrace.observe.whatif.run_speed import FEWEST_STEPS
from headrace.observe.whatif.train_steps import read_steps
from headrace.records.reader import open_records
from headrace.report.charts.base import Span
from headrace.report.comparison_page import comparison_sections, read_comparison_data
from headrace.report.document import sections_json
from headrace.report.formatting import format_count, format_time
from headrace.report.live.run_list import last_attempt, run_stamp, run_state
from headrace.report.live.run_tables import steps_within
from headrace.report.live.threads import HasLeft, ViewerLeftError, viewer_stays
from headrace.report.markup import Section, chart_place, element, explanation, note, section

_CHARTS = {
    "timeline": ("Steps over time", "Phases of every step over time"),
    "heatmap": ("How busy everything was", "How busy ranks, workers and cores were over time"),
}
_REST_FACTOR, _SHORTEST_REST_S = 19.0, 5.0
"""Runs that go on are compared again after this many times the CPU time of the last comparison."""
_MOST_KEPT = 8


@dataclass(frozen=True, slots=True)
class _Made:
    answer: dict[str, Any]
    of: tuple[Any, ...] | None  # what changes as its runs do; None where one of them goes on
    until_s: float  # when it is made again in that case, by the monotonic clock

    def serves(self, of: tuple[Any, ...] | None) -> bool:
        """Whether it need not be made again, of runs as they are now."""
        return self.of == of and (of is not None or time.monotonic() < self.until_s)


class LiveComparisons:
    """Comparisons for all viewers: each is made once, and again while one of its runs goes on."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[tuple[Path, ...], Span | None], _Made] = OrderedDict()
        self._making = threading.Lock()  # one at a time: those of long runs take much memory

    def sections(
        self, runs: Mapping[str, Path], span: Span | None, has_left: HasLeft = viewer_stays
    ) -> dict[str, Any]:
        """Return what differs between runs by name, two or more, as JSON's own types.

        Args:
            runs: Their folders by name.
            span: The part of each run's time that counts; None: all of it.
            has_left: Whether the viewer still waits, asked as his turn comes: if not, it raises
                ViewerLeftError.
        """
        paths = tuple(runs.values())
        key = paths, span
        with self._making:
            if has_left():
                raise ViewerLeftError("The viewer has left.")
            going_on = any(run_state(path, last_attempt(path)) == "running" for path in paths)
            of = None if going_on else tuple(map(run_stamp, paths))
            known = self._made.get(key)
            if known is None or not known.serves(of):
                known = self._made[key] = _make(runs, span, of)
            self._made.move_to_end(key)
            while len(self._made) > _MOST_KEPT:
                self._made.popitem(last=False)
            return known.answer


def comparison_charts(runs: Mapping[str, Path]) -> list[Section]:
    """Return the sections with the charts of runs by name."""
    return [_charts(name, runs) for name in _CHARTS]


def _make(runs: Mapping[str, Path], span: Span | None, of: tuple[Any, ...] | None) -> _Made:
    began_s = time.thread_time()
    sections = [*_differences(runs, span), *comparison_charts(runs)]
    rest_s = max(_REST_FACTOR * (time.thread_time() - began_s), _SHORTEST_REST_S)
    as_of = f"Numbers as of {format_time(time.time())}, while a run goes on" if of is None else ""
    answer = {"subtitle": as_of, "sections": sections_json(sections)}
    return _Made(answer, of, until_s=time.monotonic() + rest_s)


def _differences(runs: Mapping[str, Path], span: Span | None) -> Sequence[Section]:
    """Return what differs by numbers; a sentence where runs cannot be compared so far."""
    try:
        if span is not None:
            return _differences_in(span, runs)
        data = read_comparison_data(compared_runs(list(runs.values())), " and ".join(runs))
        return comparison_sections(data, heatmaps=False)
    except HeadraceError as error:
        return [section("runs", "Runs", note(str(error)))]


def _differences_in(span: Span, runs: Mapping[str, Path]) -> Sequence[Section]:
    """Return what differs in a span, and which of the runs have too few steps in it."""
    parts = {name: steps_within(open_records(path), span) for name, path in runs.items()}
    counts = {name: len(read_steps(part)) for name, part in parts.items()}
    kept = [name for name, count in counts.items() if count >= FEWEST_STEPS]
    notes = [_which(span), *(_too_few(name, counts[name]) for name in runs if name not in kept)]
    if len(kept) < 2:
        return [section("runs", "Runs", *map(note, notes))]
    compared = compared_runs([runs[name] for name in kept], [parts[name] for name in kept])
    data = read_comparison_data(compared, " and ".join(kept), notes)
    return comparison_sections(data, heatmaps=False)


def _which(span: Span) -> str:
    digits = 1 if span[1] - span[0] >= 10 else 3
    begin, end = (f"{moment:,.{digits}f}" for moment in span)
    words = f"from {begin} s on" if span[1] == float("inf") else f"from {begin} s to {end} s"
    return (
        f"Speed, waits, phases and settings are of the steps {words} after the start of each "
        "run's own recording. Cost, metrics and curves are of the whole runs."
    )


def _too_few(name: str, count: int) -> str:
    return (
        f"{name} is left out: it has {format_count(count, 'step')} in this span of time, without "
        f"the first few, and to compare runs takes {FEWEST_STEPS}. Choose another span."
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
