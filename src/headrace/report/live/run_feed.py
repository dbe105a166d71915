"""One run for all its viewers: read again while it goes on, in the background."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import HeadraceError, LaunchError, RecordsError
from headrace.core.free_memory import release_free_memory
from headrace.decide.cost.run_use import seen_until_s
from headrace.observe.whatif.tables import Tables
from headrace.records.attempt_outcomes import attempt_outcomes
from headrace.records.reader import Records, open_records, recorded_attempts
from headrace.records.run_folder import RunFolder
from headrace.records.running_switch import running_switch
from headrace.records.span_reader import SpanReader
from headrace.report.charts.attempts import attempts_chart
from headrace.report.charts.base import Chart, ChartSpan, Span, chart_json
from headrace.report.charts.flame import flame_chart
from headrace.report.charts.heatmap import heatmap_chart
from headrace.report.charts.phases import phases_chart
from headrace.report.charts.steps import steps_chart
from headrace.report.charts.waits import waits_chart
from headrace.report.document import sections_json
from headrace.report.formatting import format_time
from headrace.report.live.recording import RecordingNow, RecordingState
from headrace.report.live.run_list import AttemptStates, RunState, attempt_states, state_of
from headrace.report.live.run_tables import RunTables
from headrace.report.live.threads import HasLeft, ViewerLeftError, give_way, viewer_stays
from headrace.report.page import SECTIONS, page_subtitle
from headrace.report.page_data import read_page_data
from headrace.report.sections.curves import CURVES
from headrace.report.sections.metrics import PREFIX as METRIC
from headrace.report.sections.metrics import metric_chart
from headrace.report.top.run_watcher import live_reader, newest_ns, recording_now

if TYPE_CHECKING:
    from headrace.decide.cost.run_cost import RunCost

_PAUSE_S = 1.0
IDLE_S = 30.0
"""Without viewers for so long, a run is no longer read."""
REST_FACTOR = 19.0
"""Rest after a look at the records, with the charts that viewers then ask for, and after a
diagnosis, over the CPU time that they took: a busy machine makes them take longer, and cost no
more."""
_LONGEST_REST_S = 20.0  # of looks; what viewers choose by themselves costs what it costs
_FIRST_LOOK_S = 120.0
_UNREAD = "The run could not be read in time."
_SILENT = "Nothing was recorded"
_MOST_MADE_BYTES, _SECTIONS_BYTES = 8 << 20, 200_000
_OVER_TIME: dict[str, Callable[[Tables, ChartSpan], Chart | None]] = {
    "heatmap": heatmap_chart,
    "timeline": steps_chart,
    **{name: draw for name, (_, draw) in CURVES.items()},
    "flame-workers": lambda tables, span: flame_chart(tables, "workers", span),
    "flame-ranks": lambda tables, span: flame_chart(tables, "ranks", span),
}
_OF_ROWS: dict[str, Callable[[Tables], Chart | None]] = {
    "phases": phases_chart,
    "waits": waits_chart,
}
_ATTEMPTS = "attempts"
CHARTS = frozenset({*_OVER_TIME, *_OF_ROWS, _ATTEMPTS})
"""The names of a run's charts, without those of its metrics."""


def is_chart(name: str) -> bool:
    """Return whether there may be a chart of a name: those of metrics depend on the run."""
    return name in CHARTS or name.startswith(METRIC)


def _draw(run: RunTables, name: str, span: ChartSpan) -> Chart | None:
    """Return a chart; None where nothing of it was recorded."""
    if name.startswith(METRIC):
        return metric_chart(run.records, name, span)
    if name == _ATTEMPTS:
        attempts = RunFolder(run.records.path).attempts()
        if not attempts:
            return None
        outcomes = attempt_outcomes(run.records.path, attempts)
        seen_s = seen_until_s(run.records.path, attempts[-1], outcomes[-1])
        return attempts_chart(attempts, outcomes, seen_s)
    if name in _OF_ROWS:
        return _OF_ROWS[name](run.latest(span)[0])
    return _OVER_TIME[name](run.over(span), span)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedState:
    """What the event stream sends about a run; a number that grows means that something changed."""

    records: int = 0  # how often new records were seen
    sections: int = 0  # how often the verdict was made anew
    attempt: int = 0  # whose records they are; times begin anew with each
    attempts: AttemptStates = ()  # all of the run
    state: RunState = "unknown"
    now_s: float = 0.0  # the end of the records, in seconds since recording began
    fault: str = ""  # why the run cannot be read, or no verdict be made
    gone: bool = False  # whether its folder was removed
    recording: RecordingNow | None = None  # None: it cannot be changed from here


class RunFeed:
    """A run that is watched, or one of its attempts; see the module.

    Args:
        path: The run's folder.
        attempt: The attempt's number; None: the latest with records, also as another one begins.
        verdict_rest: Rest after a verdict over the CPU time that it took. An attempt's begin and
            end cut it short.
        idle_s: How long it is read without viewers.
    """

    def __init__(
        self, path: Path, attempt: int | None = None, *, verdict_rest: float = REST_FACTOR,
        idle_s: float = IDLE_S,
    ) -> None:  # fmt: skip
        self.path = path
        self._idle_s = idle_s
        self._verdict_rest = verdict_rest
        self.recording = RecordingState(path, attempt)
        self._attempt = attempt
        self._lock = threading.Lock()  # of what follows; nothing slow is done with it
        self._state = FeedState()
        self._verdict_fault = ""  # why the verdict could not be made anew
        self._tables: RunTables | None = None
        self._reader: tuple[int, SpanReader] | None = None  # of an attempt
        self._page: tuple[RunTables, dict[str, Any]] | None = None  # and its sections
        self._made: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._made_s = 0.0  # CPU time of charts and texts since the last look
        self._seen: tuple[Any, ...] | None = None
        self._diagnosed: tuple[Any, ...] | None = None
        self._phase: tuple[RunState, int, bool] | None = None  # of the records seen last
        self._wanted_s = self._verdict_wanted_s = -math.inf
        self._awaited_events: list[threading.Event] = []  # by viewers: a look, or a verdict
        self._threads: list[threading.Thread] = []
        self._looked, self._verdict_tried = threading.Event(), threading.Event()
        self._verdict_due = threading.Event()
        self._making = threading.Lock()  # one viewer's chart or sections at a time

    def want(self, *, verdict: bool = True) -> FeedState:
        """Return the state, and have the run read as long as this is called now and then.

        Without `verdict` none is made for this viewer, as for the charts of a comparison.
        """
        recording = self.recording.read()
        with self._lock:
            self._wanted_s = time.monotonic()
            if verdict:
                self._want_verdict()
            if not self._threads:
                self._threads = [
                    threading.Thread(target=each, daemon=True, name="run feed")
                    for each in (self._keep_looking, self._keep_diagnosing)
                ]
                for thread in self._threads:
                    thread.start()
            fault = self._state.fault or self._verdict_fault
            return replace(self._state, fault=fault, recording=recording)

    def _want_verdict(self) -> None:
        """Have a verdict made, a new one where nobody has wanted any for a while.

        As `_is_verdict_wanted`, it is called with the lock held.
        """
        if not self._is_verdict_wanted():
            self._verdict_tried.clear()
            self._verdict_due.set()
        self._verdict_wanted_s = time.monotonic()

    def _is_verdict_wanted(self) -> bool:
        """Whether a viewer waits for a verdict, or has wanted one lately."""
        is_awaited = self._verdict_tried in self._awaited_events
        return is_awaited or time.monotonic() - self._verdict_wanted_s <= self._idle_s

    def first_state(self) -> FeedState:
        """Return the state once the records were looked at, or could not be in time."""
        with self._awaited(self._looked, verdict=True):
            return self.want()

    @contextmanager
    def _awaited(self, event: threading.Event, *, verdict: bool) -> Iterator[None]:
        """Wait for the first look, or verdict, and what then is taken: a viewer waits meanwhile.

        On a busy machine that is longer than a run without viewers is read.
        """
        with self._lock:
            if verdict:
                self._want_verdict()
            self._awaited_events.append(event)
        try:
            self.want(verdict=verdict)
            event.wait(_FIRST_LOOK_S)
            yield
        finally:
            with self._lock:
                self._awaited_events.remove(event)
                self._wanted_s = time.monotonic()

    def _keep_looking(self) -> None:
        give_way()
        while self._is_wanted():
            began_s = time.thread_time()
            if fault := self._try(self._look):
                self._change(fault=fault, gone=_is_removed(self.path))
            self._note(self._looked)
            release_free_memory()  # of earlier charts, too
            with self._lock:
                used_s = self._made_s + time.thread_time() - began_s
                self._made_s = 0.0
            time.sleep(max(_PAUSE_S, min(REST_FACTOR * used_s, _LONGEST_REST_S)))

    def _keep_diagnosing(self) -> None:
        give_way()
        self._looked.wait(_FIRST_LOOK_S)
        while self._is_wanted():
            began_s = time.thread_time()
            self._verdict_due.clear()  # what is due after this is not in the records read now
            if self._has_readers():
                fault = self._try(self._diagnose)
                with self._lock:  # looks go on, and find nothing wrong with the records
                    self._verdict_fault = fault
                self._note(self._verdict_tried)
                release_free_memory(collects=True)
            rest_s = max(_PAUSE_S, self._verdict_rest * (time.thread_time() - began_s))
            self._verdict_due.wait(rest_s)

    def _has_readers(self) -> bool:
        """Whether anybody wants a verdict; without readers the last one is let go of."""
        with self._lock:
            is_wanted = self._is_verdict_wanted()
            if not is_wanted:
                self._page = self._diagnosed = None
            return is_wanted

    def _note(self, event: threading.Event) -> None:
        """Set an event, unless the run was let go of meanwhile: another thread sets it then."""
        with self._lock:
            if threading.current_thread() in self._threads:
                event.set()

    def _is_wanted(self) -> bool:
        """Whether this thread goes on; without viewers the records are let go of."""
        with self._lock:
            if not self._awaited_events and time.monotonic() - self._wanted_s > self._idle_s:
                self._threads = []
                self._tables = self._page = self._seen = self._diagnosed = None
                self._made.clear()
                self._looked.clear()
                self._verdict_tried.clear()
            return threading.current_thread() in self._threads

    def _try(self, act: Callable[[], None]) -> str:
        """Do something; where that fails, return why, and go on."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a fault of the doctor must not end the page
            is_ours = isinstance(error, HeadraceError | OSError)
            fault = str(error) if is_ours else f"{type(error).__name__}: {error}"
            if _is_removed(self.path):
                fault = f"The folder {self.path} was removed."
                self._change(gone=True, fault=fault)
            return fault
        return ""

    def _change(self, **changes: Any) -> None:
        with self._lock:
            self._state = replace(self._state, **changes)

    def _look(self) -> None:
        """Read the run again if there is more of it."""
        attempts = attempt_states(self.path)
        state = state_of(attempts, self._attempt)
        if attempts != self._state.attempts:
            self._change(state=state, attempts=attempts)
        recorded = recorded_attempts(self.path)
        is_recorded = bool(recorded) if self._attempt is None else self._attempt in recorded
        if not is_recorded and state == "running":
            self._change(fault=_nothing_recorded(self.path), gone=False)
            return
        records = open_records(self.path, self._attempt)
        seen = (*_stamp(records), attempts)  # the page tells of the run's other attempts, too
        if seen != self._seen:
            if self._reader is None or self._reader[0] != records.attempt:
                self._reader = records.attempt, SpanReader(records)
            self._take(RunTables(records, self._reader[1]), seen)
        else:
            silence = _silence(records, seen[1], self._state.fault) if records.live else ""
            fault = silence or _unread_attempts(self.path)
            if fault != self._state.fault:
                self._change(fault=fault, gone=False)

    def _take(self, tables: RunTables, seen: tuple[Any, ...]) -> None:
        with self._lock:
            if threading.current_thread() not in self._threads:
                return  # nobody looks any more
            self._tables, self._seen = tables, seen
            phase = self._state.state, tables.records.attempt, tables.records.live
            if phase != self._phase:  # an attempt began or ended: its verdict is due at once
                self._phase = phase
                self._verdict_due.set()
            self._state = replace(
                self._state, records=self._state.records + 1, attempt=seen[0],
                now_s=tables.axis.limits[1], fault="", gone=False,
            )  # fmt: skip

    def _diagnose(self) -> None:
        """Make the verdict anew if the run was read again since the last one."""
        with self._lock:
            run, seen = self._tables, self._seen
        if run is None or seen == self._diagnosed:
            return
        # Of a long run charts wait meanwhile: both at once would take twice the memory.
        with self._making if run.is_long else nullcontext():
            made = _sections(run, None)
        with self._lock:
            if threading.current_thread() not in self._threads:
                return
            self._page, self._diagnosed = (run, made), seen
            self._state = replace(self._state, sections=self._state.sections + 1)

    def chart(
        self, name: str, span: Span | None, columns: int, has_left: HasLeft = viewer_stays
    ) -> str | None:
        """Return a chart over a span as JSON; None: nothing of it was recorded.

        Raises:
            KeyError: There is no such chart.
            RecordsError: The run cannot be read.
            ViewerLeftError: `has_left` says so of the viewer as this one's turn comes.
        """
        if not is_chart(name):
            raise KeyError(name)
        with self._awaited(self._looked, verdict=False), self._lock:
            run, seen = self._tables, self._seen
            if name in _OF_ROWS and self._page is not None:  # its numbers are those of the text
                run, seen = self._page[0], self._diagnosed
        if run is None:
            raise RecordsError(self._state.fault or _UNREAD)

        def make() -> str | None:
            chart = _draw(run, name, ChartSpan.of(run.axis, span, columns))
            run.let_go()
            return None if chart is None else chart_json(chart)

        made: str | None = self._cached((seen, name, span, columns), make, has_left)
        return made

    def sections(self, span: Span | None, has_left: HasLeft = viewer_stays) -> dict[str, Any]:
        """Return the page's sections over a span as JSON's own types.

        Raises:
            RecordsError: The run cannot be read.
            ViewerLeftError: As of `chart`.
        """
        with self._awaited(self._verdict_tried, verdict=True), self._lock:
            page, seen = self._page, self._diagnosed
        if page is None:
            raise RecordsError(self.want().fault or _UNREAD)
        run, whole = page
        made = whole
        if span is not None:
            made = self._cached((seen, span), lambda: _sections(run, span), has_left)
        cost: CostSoFar | None = made["cost"]
        return made | {"state": self._state.state, "cost": cost and cost.now()}

    def _cached(self, key: tuple[Any, ...], make: Callable[[], Any], has_left: HasLeft) -> Any:
        """Return what was made for a key, which is made for one viewer at a time."""
        with self._making:
            if has_left():
                raise ViewerLeftError("The viewer has left.")
            with self._lock:
                if key in self._made:
                    self._made.move_to_end(key)
                    return self._made[key]
            began_s = time.thread_time()
            made = make()
            with self._lock:
                self._made_s += time.thread_time() - began_s
                self._made[key] = made
                held = sum(map(_size, self._made.values()))
                while held > _MOST_MADE_BYTES and len(self._made) > 1:
                    held -= _size(self._made.popitem(last=False)[1])
            return made


@dataclass(frozen=True, slots=True)
class CostSoFar:
    """What a run had cost at a moment of the monotonic clock, and costs a second."""

    usd: float
    usd_per_s: float  # 0 once it has ended
    known_s: float

    @classmethod
    def of(cls, cost: RunCost, known_s: float) -> CostSoFar:
        """Return a cost that was computed at a moment."""
        rate = sum(group.hosts * group.usd_per_hour for group in cost.groups) / 3600
        return cls(cost.usd, rate if cost.running else 0.0, known_s)

    def now(self) -> dict[str, float]:
        """Return what it is at this moment, as JSON's own types."""
        passed_s = time.monotonic() - self.known_s
        return {"usd": self.usd + self.usd_per_s * passed_s, "usd_per_s": self.usd_per_s}


def _is_removed(path: Path) -> bool:
    """Whether a folder is not there; one that cannot be looked at at this moment may be."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _size(made: Any) -> int:
    """Return about how many bytes a chart, or a page's sections, take."""
    return len(made) if isinstance(made, str) else _SECTIONS_BYTES


def _sections(run: RunTables, span: Span | None) -> dict[str, Any]:
    """Return a page's sections over a span of time, or all of it: JSON's types and `CostSoFar`."""
    tables, part = run.latest(ChartSpan.of(run.axis, span))
    read_s = time.monotonic()  # the cost is of this moment, the diagnosis takes a while
    page = read_page_data(run.records, tables, part=part)
    page = replace(page, charts_inside=False, of_a_span=span is not None)
    built = [section for make in SECTIONS if (section := make(page)) is not None]
    return {
        "subtitle": page_subtitle(page),
        "cost": None if page.cost is None else CostSoFar.of(page.cost, read_s),
        "sections": sections_json(built),
    }


def _nothing_recorded(path: Path) -> str:
    """Return what a page says of a run that goes on and has no records."""
    try:
        running_switch(path)
    except HeadraceError as error:
        return str(error)
    return "Nothing is recorded of this run so far."


def _unread_attempts(path: Path) -> str:
    """Return why a page lacks the run's attempts, as of a newer version; "" where it has them."""
    try:
        RunFolder(path).attempts()
    except LaunchError as error:
        return str(error)
    return ""


def _silence(records: Records, newest_ns: int, said: str) -> str:
    """Return what a page says where a run that goes on has recorded nothing for a while."""
    _, silent_s = recording_now(records, newest_ns)
    if not silent_s or said.startswith(_SILENT):
        return said if silent_s else ""
    return (
        f"{_SILENT} since {format_time(time.time() - silent_s)}, though the run goes on: its disk "
        "may be full, or the process that collects records stands still. What is shown is older."
    )


def _stamp(records: Records) -> tuple[Any, ...]:
    """Return what changes as there is more of a run."""
    if records.live:
        return records.attempt, newest_ns(live_reader(records))
    files = (records.path / "run.json", records.folder)
    return records.attempt, *(file.stat().st_mtime_ns for file in files if file.exists())
