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
from headrace.report.comparison_page import comparison_sections, read_comparison_data
from headrace.report.document import sections_json
from headrace.report.formatting import format_time
from headrace.report.live.run_list import last_attempt, run_stamp, run_state
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
        self._made: OrderedDict[tuple[Path, ...], _Made] = OrderedDict()
        self._making = threading.Lock()  # one at a time: those of long runs take much memory

    def sections(self, runs: Mapping[str, Path]) -> dict[str, Any]:
        """Return what differs between runs by name, two or more, as JSON's own types."""
        key = tuple(runs.values())
        with self._making:
            going_on = any(run_state(path, last_attempt(path)) == "running" for path in key)
            of = None if going_on else tuple(map(run_stamp, key))
            known = self._made.get(key)
            if known is None or not known.serves(of):
                known = self._made[key] = _make(runs, of)
            self._made.move_to_end(key)
            while len(self._made) > _MOST_KEPT:
                self._made.popitem(last=False)
            return known.answer


def comparison_charts(runs: Mapping[str, Path]) -> list[Section]:
    """Return the sections with the charts of runs by name."""
    return [_charts(name, runs) for name in _CHARTS]


def _make(runs: Mapping[str, Path], of: tuple[Any, ...] | None) -> _Made:
    began_s = time.thread_time()
    sections = [*_differences(runs), *comparison_charts(runs)]
    rest_s = max(_REST_FACTOR * (time.thread_time() - began_s), _SHORTEST_REST_S)
    as_of = f"Numbers as of {format_time(time.time())}, while a run goes on" if of is None else ""
    answer = {"subtitle": as_of, "sections": sections_json(sections)}
    return _Made(answer, of, until_s=time.monotonic() + rest_s)


def _differences(runs: Mapping[str, Path]) -> Sequence[Section]:
    """Return what differs by numbers; a sentence where runs cannot be compared so far."""
    try:
        data = read_comparison_data(compared_runs(list(runs.values())), " and ".join(runs))
        return comparison_sections(data, heatmaps=False)
    except HeadraceError as error:
        return [section("runs", "Runs", note(str(error)))]


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
