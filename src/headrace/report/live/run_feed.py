"""One run for all its viewers: read again while it goes on, in one background thread."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.observe.whatif.tables import CachedTables, Tables
from headrace.records.reader import Records, open_records
from headrace.report.charts.base import Chart, ChartSpan, Span, TimeAxis, chart_json, time_axis
from headrace.report.charts.flame import flame_chart
from headrace.report.charts.heatmap import heatmap_chart
from headrace.report.charts.phases import phases_chart
from headrace.report.charts.steps import steps_chart
from headrace.report.charts.waits import waits_chart
from headrace.report.live.run_list import RunState, last_attempt, run_state
from headrace.report.page import SECTIONS, page_subtitle
from headrace.report.page_data import PageData, read_page_data
from headrace.report.span_tables import SpanTables
from headrace.report.top.run_watcher import live_reader, newest_ns

_PAUSE_S = 1.0
_REST_FACTOR, _VERDICT_REST_FACTOR = 9.0, 19.0
"""Rest after a look at the records, or after a diagnosis, over its duration: together they take
a seventh of a core at most."""
_IDLE_S = 30.0
"""Without viewers for so long, a run is no longer read."""
_MOST_CHARTS = 64
CHARTS: dict[str, Callable[[Tables, ChartSpan], Chart | None]] = {
    "heatmap": heatmap_chart,
    "timeline": steps_chart,
    "phases": lambda tables, span: phases_chart(_cut(tables, span)),
    "waits": lambda tables, span: waits_chart(_cut(tables, span)),
    "flame-workers": lambda tables, span: flame_chart(tables, "workers", span),
    "flame-ranks": lambda tables, span: flame_chart(tables, "ranks", span),
}
"""The charts of a run by name; None where nothing of it was recorded."""


def _cut(tables: Tables, span: ChartSpan) -> Tables:
    axis = span.axis
    if (span.from_ns, span.to_ns) == (axis.began_ns, axis.ended_ns):
        return tables
    return CachedTables(SpanTables(tables, span.from_ns, span.to_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedState:
    """What viewers are told of a run; a number that grows says that something changed."""

    records: int = 0  # how often new records were seen
    sections: int = 0  # how often the verdict was made anew
    state: RunState = "unknown"
    now_s: float = 0.0  # the end of the records, in seconds since recording began
    fault: str = ""  # why the run cannot be read
    gone: bool = False  # whether its folder was removed


class RunFeed:
    """A run that is watched; see the module."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._state = FeedState()
        self._tables: CachedTables | None = None
        self._axis = TimeAxis(began_ns=0, ended_ns=1)
        self._page: PageData | None = None
        self._charts: OrderedDict[tuple[Any, ...], str | None] = OrderedDict()
        self._seen: tuple[Any, ...] | None = None
        self._diagnosed: tuple[Any, ...] | None = None
        self._wanted_s = 0.0
        self._threads: list[threading.Thread] = []

    def want(self) -> FeedState:
        """Return the state, and have the run read as long as this is called now and then."""
        with self._lock:
            self._wanted_s = time.monotonic()
            if not self._threads:
                self._try(self._look)
                self._try(self._diagnose)
                self._threads = [
                    threading.Thread(target=self._repeat, args=each, daemon=True, name="run feed")
                    for each in (
                        (self._look, _REST_FACTOR), (self._diagnose, _VERDICT_REST_FACTOR)
                    )
                ]  # fmt: skip
                for thread in self._threads:
                    thread.start()
            return self._state

    def _repeat(self, act: Callable[[], None], rest_factor: float) -> None:
        took_s = 0.0
        while True:
            time.sleep(max(_PAUSE_S, rest_factor * took_s))
            with self._lock:
                if time.monotonic() - self._wanted_s > _IDLE_S:
                    self._forget()
                if threading.current_thread() not in self._threads:
                    return
            began_s = time.monotonic()
            self._try(act)
            took_s = time.monotonic() - began_s

    def _forget(self) -> None:
        """Let go of the records until someone looks again."""
        self._threads = []
        self._tables = self._page = self._seen = self._diagnosed = None
        self._charts.clear()

    def _try(self, act: Callable[[], None]) -> None:
        """Do something; where the run cannot be read, say why."""
        try:
            act()
        except (HeadraceError, OSError) as error:
            is_gone = not self.path.exists()
            fault = f"The folder {self.path} was removed." if is_gone else str(error)
            with self._lock:
                self._state = replace(self._state, gone=is_gone, fault=fault)

    def _look(self) -> None:
        """Read the run again if there is more of it."""
        records = open_records(self.path)
        seen = _stamp(records)
        if seen == self._seen:
            return
        tables = CachedTables(records)
        axis = time_axis(tables)
        state = run_state(self.path, last_attempt(self.path))
        with self._lock:
            self._tables, self._axis, self._seen = tables, axis, seen
            self._charts.clear()
            self._state = replace(
                self._state, records=self._state.records + 1, state=state, now_s=axis.limits[1],
                fault="", gone=False,
            )  # fmt: skip

    def _diagnose(self) -> None:
        """Make the verdict anew if the run was read again since the last one."""
        with self._lock:
            seen = self._seen
        if seen is None or seen == self._diagnosed:
            return
        page = read_page_data(open_records(self.path))
        with self._lock:
            self._page, self._diagnosed = page, seen
            self._state = replace(self._state, sections=self._state.sections + 1)

    def chart(self, name: str, span: Span | None, columns: int) -> str | None:
        """Return a chart over a span as JSON; None: nothing of it was recorded.

        Raises KeyError if there is no such chart.
        """
        draw = CHARTS[name]
        self.want()
        with self._lock:
            tables, axis = self._tables, self._axis
            key = (name, span, columns)
            if tables is None:
                return None
            if key not in self._charts:
                chart = draw(tables, ChartSpan.of(axis, span, columns))
                self._charts[key] = None if chart is None else chart_json(chart)
                while len(self._charts) > _MOST_CHARTS:
                    self._charts.popitem(last=False)
            return self._charts[key]

    def sections(self, span: Span | None) -> dict[str, Any]:
        """Return the page's sections over a span as JSON's own types."""
        self.want()
        with self._lock:
            page, axis = self._page, self._axis
            if page is None:
                return {"subtitle": "", "state": self._state.state, "sections": []}
            if span is not None:
                page = page.over(_cut(page.tables, ChartSpan.of(axis, span)))
            page = replace(page, charts_inside=False)
            built = [section for make in SECTIONS if (section := make(page)) is not None]
        return {
            "subtitle": page_subtitle(page),
            "state": self._state.state,
            "sections": [
                {
                    "id": each.id,
                    "title": each.title,
                    "html": each.body,
                    "stamp": hashlib.sha256(each.body.encode(errors="replace")).hexdigest()[:16],
                }
                for each in built
            ],
        }


def _stamp(records: Records) -> tuple[Any, ...]:
    """Return what changes as there is more of a run."""
    if records.live:
        return records.attempt, newest_ns(live_reader(records))
    files = (records.path / "run.json", records.folder)
    return records.attempt, *(file.stat().st_mtime_ns for file in files if file.exists())
