"""The live page's server as an ASGI application: documents, data, events, changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace.core.errors import HeadraceError, UsageError
from headrace.report.charts.base import MAX_COLUMNS, Span
from headrace.report.document import live_document, static_file
from headrace.report.live.comparison import live_comparison
from headrace.report.live.guard import Access, Guard
from headrace.report.live.log_files import LogFiles
from headrace.report.live.recording import change_recording, read_recording
from headrace.report.live.run_feed import CHARTS, RunFeed
from headrace.report.live.run_folders import RunFolders
from headrace.report.live.run_list import RunList

_POLL_S = 0.25
_LIST_PAUSE_S = 1.0
_KEEP_ALIVE_S = 10.0
_NOTHING = ": nothing new\n\n"
"""A comment of the event stream."""
_TYPES = {"page.js": "text/javascript", "page.css": "text/css"}
_MOST_LOG_LINES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunActions:
    """What a viewer may have done with a run; each returns what was done, in words."""

    stop: Callable[[Path], str]
    resume: Callable[[Path], str]


class LivePages:
    """The pages of all runs in a folder; one instance serves all viewers."""

    def __init__(
        self, folders: RunFolders, actions: RunActions, is_ending: Callable[[], bool]
    ) -> None:
        self._folders = folders
        self._actions = actions
        self._is_ending = is_ending
        self._list = RunList(folders)
        self._feeds: dict[str, RunFeed] = {}

    def routes(self) -> list[Route]:
        """Return what the server answers to."""
        run = "/runs/{name:path}"
        return [
            Route("/", self._runs_document),
            Route("/static/{file}", self._static),
            Route("/api/runs", self._runs),
            Route("/api/events", self._run_events),
            Route("/compare", self._comparison_document),
            Route(f"{run}/sections", self._sections),
            Route(f"{run}/charts/{{chart}}", self._chart),
            Route(f"{run}/events", self._events),
            Route(f"{run}/switch", self._switch, methods=["GET", "POST"]),
            Route(f"{run}/stop", self._stop, methods=["POST"]),
            Route(f"{run}/resume", self._resume, methods=["POST"]),
            Route(f"{run}/logs", self._logs),
            Route(f"{run}/logs/{{file:path}}", self._log),
            Route(run, self._run_document),
        ]

    def _run_path(self, request: Request) -> Path:
        name = request.path_params["name"]
        path = self._folders.find(name)
        if path is None:
            raise UsageError(f"There is no run {name!r} in {self._folders.folder}.")
        return path

    def _feed(self, request: Request) -> RunFeed:
        name = request.path_params["name"]
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = RunFeed(self._run_path(request))
        return feed

    async def _static(self, request: Request) -> Response:
        name = request.path_params["file"]
        if name not in _TYPES:
            return _problem("There is no such file.", 404)
        return Response(static_file(name), media_type=_TYPES[name])

    async def _runs_document(self, _: Request) -> Response:
        return _html(live_document("Runs", "runs"))

    async def _comparison_document(self, request: Request) -> Response:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        known = self._folders.by_name()
        missing = [name for name in names if name not in known]
        if missing or len(names) < 2:
            what = f"There is no run {missing[0]!r}." if missing else "Name two runs or more."
            return _problem(what, 404 if missing else 400)
        sections = await run_in_threadpool(live_comparison, {name: known[name] for name in names})
        return _html(live_document(" and ".join(names), "compare", sections=sections))

    async def _run_document(self, request: Request) -> Response:
        self._run_path(request)
        name = request.path_params["name"]
        return _html(live_document(name, "run", live=f"/runs/{name}"))

    async def _runs(self, _: Request) -> Response:
        return _json(await run_in_threadpool(self._list.read))

    async def _run_events(self, request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            shown = ""
            async for _ in self._looks(request, _LIST_PAUSE_S):
                found = await run_in_threadpool(self._list.read)
                stable = json.dumps([{**run, "age_s": None} for run in found["runs"]])
                yield _event("runs", found) if stable != shown else _NOTHING
                shown = stable

        return _stream(events())

    async def _looks(self, request: Request, pause_s: float) -> AsyncIterator[None]:
        """Yield again and again, until the viewer has left or the server is ended."""
        while not (self._is_ending() or await request.is_disconnected()):
            yield
            await asyncio.sleep(pause_s)

    async def _sections(self, request: Request) -> Response:
        feed, span = self._feed(request), _span(request)
        return _json(await run_in_threadpool(feed.sections, span))

    async def _chart(self, request: Request) -> Response:
        feed, span, name = self._feed(request), _span(request), request.path_params["chart"]
        if name not in CHARTS:
            return _problem(f"There is no chart {name!r}: {', '.join(CHARTS)}.", 404)
        columns = _whole_number(request, "columns", MAX_COLUMNS, most=MAX_COLUMNS)
        chart = await run_in_threadpool(feed.chart, name, span, columns)
        if chart is None:
            return _problem("Nothing of this was recorded in this time.", 404)
        return Response(chart, media_type="application/json")

    async def _events(self, request: Request) -> Response:
        feed = self._feed(request)

        async def events() -> AsyncIterator[str]:
            shown = None
            async for _ in self._looks(request, _POLL_S):
                state = await run_in_threadpool(feed.want)
                if state.gone:
                    yield _event("gone", {"error": state.fault})
                    return
                yield _event("changed", asdict(state)) if state != shown else _NOTHING
                shown = state

        return _stream(events())

    async def _switch(self, request: Request) -> Response:
        path = self._run_path(request)
        if request.method == "POST":
            return _json(await run_in_threadpool(change_recording, path, await _body(request)))
        return _json(await run_in_threadpool(read_recording, path))

    async def _stop(self, request: Request) -> Response:
        path = self._run_path(request)
        return _json({"done": await run_in_threadpool(self._actions.stop, path)})

    async def _resume(self, request: Request) -> Response:
        path = self._run_path(request)
        return _json({"done": await run_in_threadpool(self._actions.resume, path)})

    async def _logs(self, request: Request) -> Response:
        files = LogFiles(self._run_path(request))
        return _json({"files": await run_in_threadpool(files.listed)})

    async def _log(self, request: Request) -> Response:
        files, name = LogFiles(self._run_path(request)), request.path_params["file"]
        lines = _whole_number(request, "lines", 200, most=_MOST_LOG_LINES)
        query = request.query_params.get("query", "")
        return _json(await run_in_threadpool(files.tail, name, query, lines))


def live_app(
    folders: RunFolders, actions: RunActions, access: Access, is_ending: Callable[[], bool]
) -> Guard:
    """Return the application: the pages of the runs of a folder, behind their guard.

    `is_ending` says whether the server is to end, which streams of events then do.
    """
    handlers: dict[Any, Any] = {HeadraceError: _answer_error}
    pages = LivePages(folders, actions, is_ending)
    return Guard(Starlette(routes=pages.routes(), exception_handlers=handlers), access)


async def _answer_error(_: Request, error: Exception) -> Response:
    return _problem(str(error), 404 if isinstance(error, UsageError) else 409)


def _problem(text: str, status: int) -> Response:
    return JSONResponse({"error": text}, status_code=status)


def _json(value: Any) -> Response:
    return JSONResponse(value)


def _html(parts: list[bytes]) -> Response:
    return HTMLResponse(b"".join(parts))


def _stream(events: AsyncIterator[str]) -> Response:
    return StreamingResponse(_with_signs_of_life(events), media_type="text/event-stream")


async def _with_signs_of_life(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Leave out where nothing happened, but for a comment every ten seconds."""
    sent_s = time.monotonic()
    async for event in events:
        if event != _NOTHING or time.monotonic() - sent_s > _KEEP_ALIVE_S:
            sent_s = time.monotonic()
            yield event


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _span(request: Request) -> Span | None:
    """Return the span of time of a request; None: all; UsageError: it is none."""
    begin, end = request.query_params.get("from"), request.query_params.get("to")
    if begin is None and end is None:
        return None
    try:
        span = float(begin or ""), float(end or "")
    except ValueError:
        span = (0.0, 0.0)
    if not 0 <= span[0] < span[1] < float("inf"):
        raise UsageError("`from` and `to` are seconds since recording began, `from` before `to`.")
    return span


def _whole_number(request: Request, name: str, otherwise: int, *, most: int) -> int:
    text = request.query_params.get(name, str(otherwise))
    if not text.isascii() or not text.isdigit() or int(text[:9]) < 1:
        raise UsageError(f"`{name}` is a whole number from 1 to {most}.")
    return min(int(text[:9]), most)


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request; UsageError: it is none."""
    try:
        found = json.loads(await request.body())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError("The body is a JSON object.")
    return found
