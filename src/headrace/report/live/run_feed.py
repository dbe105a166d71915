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
from headrace.observe.whatif.tables import CachedTables
from headrace.records.reader import Records, open_records
from headrace.report.charts.base import Chart, ChartSpan, Span, TimeAxis, chart_json, time_axis
from headrace.report.charts.flame import flame_chart
from headrace.report.charts.heatmap import heatmap_chart
from headrace.report.charts.phases import phases_chart
from headrace.report.charts.steps import steps_chart
from headrace.report.charts.waits import waits_chart
from headrace.report.live.run_list import RunState, run_state
from headrace.report.page import SECTIONS, page_subtitle
from headrace.report.page_data import PageData, read_page_data
from headrace.report.span_tables import SpanTables
from headrace.report.top.run_watcher import closed_reader, live_reader, newest_ns

_PAUSE_S = 1.0
_REST_FACTOR = 19.0
"""Rest after a look, over its duration: looking takes a twentieth of a core at most."""
_IDLE_S = 30.0
"""Without viewers for so long, a run is no longer read."""
_MOST_CHARTS = 64
CHARTS: dict[str, Callable[[CachedTables, ChartSpan], Chart | None]] = {
    "heatmap": heatmap_chart,
    "timeline": steps_chart,
    "phases": lambda tables, span: phases_chart(_cut(tables, span)),
    "waits": lambda tables, span: waits_chart(_cut(tables, span)),
    "flame-workers": lambda tables, span: flame_chart(tables, "workers", span),
    "flame-ranks": lambda tables, span: flame_chart(tables, "ranks", span),
}
"""The charts of a run by name; None where nothing of it was recorded."""


def _cut(tables: CachedTables, span: ChartSpan) -> CachedTables:
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


class RunFeed:
    """A run that is watched; see the module."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = FeedState()
        self._lock = threading.RLock()
        self._tables: CachedTables | None = None
        self._axis = TimeAxis(began_ns=0, ended_ns=1)
        self._page: PageData | None = None
        self._charts: OrderedDict[tuple[Any, ...], str | None] = OrderedDict()
        self._seen: tuple[int, bool, int] | None = None
        self._wanted_s = 0.0
        self._thread: threading.Thread | None = None

    def want(self) -> FeedState:
        """Return the state, and have the run read as long as this is called now and then."""
        with self._lock:
            self._wanted_s = time.monotonic()
            if self._thread is None:
                if self._tables is None:
                    self._look()
                self._thread = threading.Thread(target=self._watch, daemon=True, name="run feed")
                self._thread.start()
            return self.state

    def _watch(self) -> None:
        while True:
            began_s = time.monotonic()
            self._look()
            now_s = time.monotonic()
            time.sleep(max(_PAUSE_S, _REST_FACTOR * (now_s - began_s)))
            with self._lock:
                if time.monotonic() - self._wanted_s > _IDLE_S:
                    self._thread = None
                    return

    def _look(self) -> None:
        """Read the run again if there is more of it."""
        try:
            records = open_records(self.path)
            live = records.live
            seen = (records.attempt, live, _newest_ns(records, live=live))
            if seen == self._seen:
                return
            self._read(records)
            self._seen = seen
        except (HeadraceError, OSError) as error:
            with self._lock:
                self.state = replace(self.state, fault=str(error))

    def _read(self, records: Records) -> None:
        page = read_page_data(records)
        assert isinstance(page.tables, CachedTables)
        axis = time_axis(page.tables)
        with self._lock:
            self._tables, self._axis, self._page = page.tables, axis, page
            self._charts.clear()
            self.state = FeedState(
                records=self.state.records + 1,
                sections=self.state.sections + 1,
                state=run_state(self.path, page.attempts[-1] if page.attempts else None),
                now_s=axis.limits[1],
            )

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
                return {"subtitle": "", "state": self.state.state, "sections": []}
            if span is not None:
                cut = _cut(page.tables, ChartSpan.of(axis, span))  # type: ignore[arg-type]
                page = page.over(cut)
            page = replace(page, charts_inside=False)
            built = [section for make in SECTIONS if (section := make(page)) is not None]
        return {
            "subtitle": page_subtitle(page),
            "state": self.state.state,
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


def _newest_ns(records: Records, *, live: bool) -> int:
    return newest_ns(live_reader(records) if live else closed_reader(CachedTables(records)))
