"""The live page's server as an ASGI application: documents, data, events, changes."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace.core.errors import HeadraceError, RecordsError, UsageError
from headrace.core.json_text import json_text
from headrace.report.charts.base import MAX_COLUMNS, Span
from headrace.report.document import live_document, static_file
from headrace.report.live.comparison import LiveComparisons, comparison_charts
from headrace.report.live.guard import Access, Guard
from headrace.report.live.log_files import LogFiles
from headrace.report.live.recording import change_recording, read_recording
from headrace.report.live.run_feed import CHARTS, IDLE_S, REST_FACTOR, RunFeed, is_chart
from headrace.report.live.run_folders import RunFolders
from headrace.report.live.run_list import ListEvents, RunList, requested_attempt, why_fixed
from headrace.report.live.threads import for_viewer, in_background, in_own_thread
from headrace.report.markup import chart_place, note, section
from headrace.report.sections.diagnosis import HEATMAP_TITLE, TIMELINE_TITLE

_POLL_S = 0.25
_LIST_PAUSE_S = 1.0
_KEEP_ALIVE_S = 10.0
_NOTHING = "event: alive\ndata: null\n\n"
"""An event by which a page knows that its connection lasts."""
_TYPES = {"page.js": "text/javascript", "page.css": "text/css"}
_FIRST_CHARTS = (
    ("timeline", TIMELINE_TITLE, chart_place("timeline", TIMELINE_TITLE)),
    ("heatmap", HEATMAP_TITLE, chart_place("heatmap", HEATMAP_TITLE)),
)
_MOST_LOG_LINES = 2000
_MOST_COMPARED = 12
_LONGEST_BODY = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunActions:
    """What a viewer may have done with a run; each returns what was done, in words."""

    stop: Callable[[Path], str]
    resume: Callable[[Path], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A request about a run."""

    name: str
    path: Path
    attempt: int | None  # None: the latest
    detail: str  # which chart or log
    request: Request


Answer = Callable[[RunRequest], Awaitable[Response]]
_WITH_DETAIL = frozenset({"charts", "logs"})


class RemovedRunError(UsageError):
    """A run that was shown before is not there any more."""


class LivePages:
    """The pages of all runs in a folder; one instance serves all viewers. See `live_app`."""

    def __init__(
        self,
        folders: RunFolders,
        actions: RunActions,
        is_ending: Callable[[], bool],
        new_feed: Callable[[Path, int | None], RunFeed],
    ) -> None:
        self._folders = folders
        self._actions = actions
        self._is_ending = is_ending
        self._new_feed = new_feed
        self._list = RunList(folders)
        self._feeds: dict[tuple[str, int | None], RunFeed] = {}  # by run and attempt
        self._comparisons = LiveComparisons()

    def routes(self) -> list[Route]:
        """Return what the server answers to."""
        return [
            Route("/", self._runs_document),
            Route("/static/{file}", self._static),
            Route("/api/runs", self._runs),
            Route("/api/events", self._run_events),
            Route("/api/comparison", self._comparison),
            Route("/compare", self._comparison_document),
            Route("/runs/{rest:path}", self._of_run, methods=["GET", "POST"]),
        ]

    async def _of_run(self, request: Request) -> Response:
        """Answer what is asked of one run: `/runs/NAME`, and what may follow the name."""
        rest = request.path_params["rest"]
        found = await in_background(self._folders.split, rest)
        if found is None:
            was_there = any(f"{rest}/".startswith(f"{name}/") for name, _ in self._feeds)
            kind = RemovedRunError if was_there else UsageError
            raise kind(f"There is no run {rest!r} in {self._folders.folder}.")
        name, path, asked = found
        what, _, detail = asked.partition("/")
        attempt = await _attempt(request, name, path)
        run = RunRequest(name=name, path=path, attempt=attempt, detail=detail, request=request)
        answers = self._changes() if request.method == "POST" else self._views()
        if what not in answers or (detail and what not in _WITH_DETAIL):
            raise UsageError(f"There is no {what or 'change'} of the run {name!r}.")
        return await answers[what](run)

    def _views(self) -> dict[str, Answer]:
        return {
            "": self._run_document,
            "sections": self._sections,
            "charts": self._chart,
            "events": self._events,
            "switch": self._recording,
            "logs": self._logs,
        }

    def _changes(self) -> dict[str, Answer]:
        return {"switch": self._switch, "stop": self._stop, "resume": self._resume}

    def feed(self, name: str, path: Path, attempt: int | None = None) -> RunFeed:
        """Return what reads a run, or an attempt of it, for all its viewers."""
        feed = self._feeds.get((name, attempt))
        if feed is None:
            feed = self._feeds[name, attempt] = self._new_feed(path, attempt)
        return feed

    def _feed(self, run: RunRequest) -> RunFeed:
        return self.feed(run.name, run.path, run.attempt)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["file"]
        if name not in _TYPES:
            raise UsageError("There is no such file.")
        return Response(static_file(name), media_type=_TYPES[name])

    async def _runs_document(self, _: Request) -> Response:
        return _html(live_document("Runs", "runs"))

    async def _comparison_document(self, request: Request) -> Response:
        compared = await in_background(self._compared, request)
        # The charts are asked for at once, while the numbers are made.
        charts = comparison_charts(compared)
        return _html(live_document(" and ".join(compared), "compare", sections=charts))

    async def _comparison(self, request: Request) -> Response:
        compared, span = await in_background(self._compared, request), _span(request)
        sections = self._comparisons.sections
        return _json(await for_viewer(request, lambda left: sections(compared, span, left)))

    def _compared(self, request: Request) -> dict[str, Path]:
        """Return the runs that a request is to compare.

        Raises:
            HTTPException: They are too few, or too many.
            UsageError: One of them is not there.
            RecordsError: This user may not read it.
        """
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 2 <= len(names) <= _MOST_COMPARED:
            raise HTTPException(400, f"Name two to {_MOST_COMPARED} runs.")
        return self._folders.find(names)

    async def _run_document(self, run: RunRequest) -> Response:
        # The first charts are asked for at once, while the verdict is made.
        first = [section(*each) for each in _FIRST_CHARTS]
        return _html(live_document(run.name, "run", live=f"/runs/{run.name}", sections=first))

    async def _runs(self, _: Request) -> Response:
        return _json(await in_background(self._list.read))

    async def _run_events(self, request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            news = ListEvents(self._list)
            async for _ in self._looks(request, _LIST_PAUSE_S):
                found = await in_background(news.next)
                yield _NOTHING if found is None else _event(*found)

        return _stream(events())

    async def _looks(self, request: Request, pause_s: float) -> AsyncIterator[None]:
        """Yield again and again, until the viewer has left or the server is ended."""
        while not (self._is_ending() or await request.is_disconnected()):
            yield
            await asyncio.sleep(pause_s)

    async def _sections(self, run: RunRequest) -> Response:
        feed, span = self._feed(run), _span(run.request)
        return _json(await for_viewer(run.request, lambda left: feed.sections(span, left)))

    async def _chart(self, run: RunRequest) -> Response:
        span = _span(run.request)
        if not is_chart(run.detail):
            raise UsageError(f"There is no chart {run.detail!r}: {', '.join(sorted(CHARTS))}.")
        columns = _whole_number(run.request, "columns", MAX_COLUMNS, most=MAX_COLUMNS)
        feed = self._feed(run)
        chart = await for_viewer(
            run.request, lambda left: feed.chart(run.detail, span, columns, left)
        )
        if chart is None:
            raise UsageError("Nothing of this was recorded in this time.")
        return Response(chart, media_type="application/json")

    async def _events(self, run: RunRequest) -> Response:
        feed = self._feed(run)

        async def events() -> AsyncIterator[str]:
            shown = None
            await in_background(feed.first_state)
            async for _ in self._looks(run.request, _POLL_S):
                state = feed.want()
                if state.gone:
                    yield _event("gone", {"error": state.fault})
                    return
                yield _event("changed", asdict(state)) if state != shown else _NOTHING
                shown = state

        return _stream(events())

    async def _recording(self, run: RunRequest) -> Response:
        return _json(await in_background(read_recording, run.path, run.attempt))

    async def _switch(self, run: RunRequest) -> Response:
        change = await _body(run.request)
        state = await in_background(change_recording, run.path, change)
        self._feed(run).recording.has_changed()
        return _json(state)

    async def _stop(self, run: RunRequest) -> Response:
        return _json({"done": await in_own_thread(self._actions.stop, run.path)})

    async def _resume(self, run: RunRequest) -> Response:
        return _json({"done": await in_own_thread(self._actions.resume, run.path)})

    async def _logs(self, run: RunRequest) -> Response:
        files = LogFiles(run.path, run.attempt)
        if not run.detail:
            return _json({"files": await in_background(files.listed)})
        lines = _whole_number(run.request, "lines", 200, most=_MOST_LOG_LINES)
        query = run.request.query_params.get("query", "")
        return _json(await in_background(files.tail, run.detail, query, lines))


async def _attempt(request: Request, name: str, path: Path) -> int | None:
    """Return the attempt that a request names, None if none.

    UsageError: There is no such attempt. RecordsError: It is to be changed, and has ended.
    """
    text = request.query_params.get("attempt")
    if text is None:
        return None
    number = await in_background(requested_attempt, path, name, text)
    if request.method == "POST" and (why := await in_background(why_fixed, path, number)):
        raise RecordsError(why)
    return number


def live_app(
    folders: RunFolders, actions: RunActions, access: Access, is_ending: Callable[[], bool],
    first: str | None = None, *, verdict_rest: float = REST_FACTOR, idle_s: float = IDLE_S,
) -> Guard:  # fmt: skip
    """Return the application: the pages of the runs of a folder, behind their guard.

    `is_ending` says whether the server is to end, which streams of events then do. The run `first`
    is read at once, while its first viewer's browser starts. Of a run that goes on a verdict is
    made anew after a rest of `verdict_rest` times the CPU time that the last one took. A run is
    read for `idle_s` after its last viewer has left.
    """
    handlers = dict.fromkeys((HeadraceError, HTTPException, OSError), _answer_error)
    new_feed = partial(RunFeed, verdict_rest=verdict_rest, idle_s=idle_s)
    pages = LivePages(folders, actions, is_ending, new_feed)
    if first is not None and (path := folders.by_name().get(first)) is not None:
        pages.feed(first, path).want()
    return Guard(Starlette(routes=pages.routes(), exception_handlers=handlers), access)


async def _answer_error(request: Request, error: Exception) -> Response:
    """Say what is wrong: as a page where a browser is to show one, else as JSON."""
    text, status = str(error), 404 if isinstance(error, UsageError) else 409
    if isinstance(error, HTTPException):
        text, status = error.detail, error.status_code
    if "text/html" in request.headers.get("accept", ""):
        problem = section("problem", "This cannot be shown", note(text))
        return _html(live_document("Headrace", "problem", sections=[problem]), status)
    content = {"error": text, "removed": isinstance(error, RemovedRunError)}
    return Response(json_text(content), status, media_type="application/json")


def _json(value: Any) -> Response:
    return Response(json_text(value), media_type="application/json")


def _html(parts: list[bytes], status: int = 200) -> Response:
    return HTMLResponse(b"".join(parts), status)


def _stream(events: AsyncIterator[str]) -> Response:
    return StreamingResponse(_with_signs_of_life(events), media_type="text/event-stream")


async def _with_signs_of_life(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Leave out where nothing happened, but for an event every ten seconds."""
    sent_s = time.monotonic()
    async for event in events:
        if event != _NOTHING or time.monotonic() - sent_s > _KEEP_ALIVE_S:
            sent_s = time.monotonic()
            yield event


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json_text(data)}\n\n"


def _span(request: Request) -> Span | None:
    """Return the span of time of a request, without `to` until the end; None: all of it.

    UsageError: It is none.
    """
    begin, end = request.query_params.get("from"), request.query_params.get("to")
    if begin is None and end is None:
        return None
    try:
        span = float(begin or ""), math.inf if end is None else float(end)
    except ValueError:
        span = (0.0, 0.0)
    if not 0 <= span[0] < span[1] or (end is not None and span[1] == math.inf):
        raise UsageError("`from` and `to` are seconds since recording began, `from` before `to`.")
    return span


def _whole_number(request: Request, name: str, otherwise: int, *, most: int) -> int:
    text = request.query_params.get(name, str(otherwise))
    if not text.isascii() or not text.isdigit() or int(text[:9]) < 1:
        raise UsageError(f"`{name}` is a whole number from 1 to {most}.")
    return min(int(text[:9]), most)


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request; UsageError: it is none, or too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_BODY:
            raise UsageError(f"The body is longer than {_LONGEST_BODY} bytes.")
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError("The body is a JSON object.")
    return found
