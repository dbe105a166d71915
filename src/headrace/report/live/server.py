"""The live page's server: its address, and its life."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from urllib.parse import quote

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.core.errors import UsageError
from headrace.report.live.access_token import stored_token
from headrace.report.live.app import RunActions, live_app
from headrace.report.live.guard import Access
from headrace.report.live.run_folders import RunFolders

DEFAULT_PORT = 8600
_PORTS_TRIED = 100
_GRACE_S = 5  # for answers under way when the server is ended


def serve(
    folders: RunFolders,
    actions: RunActions,
    *,
    address: str,
    port: int,
    names: Sequence[str] = (),
    run: str | None,
    ready: Callable[[str, int], None],
) -> None:
    """Serve the page until this process is interrupted.

    Args:
        folders: The runs.
        actions: How runs are stopped and resumed.
        address: The address to listen on.
        port: The port; if it is in use, the next free one is taken.
        names: Names of this machine by which browsers may ask, beside its own.
        run: The name of the run to open first; None: the list.
        ready: Called with the URL, which has a token, and the port that was taken.

    Raises:
        UsageError: The address is none of this machine.
    """
    listener = _listen(address, port)
    with closing(listener):
        taken = listener.getsockname()[1]
        found = ipaddress.ip_address(address)
        access = Access(
            token=stored_token(folders.folder, address),
            names=frozenset(names if found.is_loopback else (*names, *_own_names())),
            local=found.is_loopback,
        )
        app = live_app(folders, actions, access, lambda: server.should_exit, run)
        server = uvicorn.Server(
            uvicorn.Config(
                EndedAnswers(app),
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=_GRACE_S,
                server_header=False,
            )
        )
        host = socket.gethostname() if found.is_unspecified else address
        shown = f"[{host}]" if ":" in host else host
        path = f"/runs/{quote(run)}" if run else "/"
        ready(f"http://{shown}:{taken}{path}?token={access.token}", taken)
        server.run(sockets=[listener])


class EndedAnswers:
    """An ASGI application around another one: ends answers that the end of the server cuts off.

    To uvicorn each of them would be a fault, of which it prints the stack.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on."""
        began = False

        async def send_and_see(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_see)
        except asyncio.CancelledError:  # uvicorn cancels at its end alone
            if began:
                await send({"type": "http.response.body"})
            else:
                await PlainTextResponse("The server is ended.\n", 503)(scope, receive, send)


def _own_names() -> set[str]:
    full = socket.gethostname().lower()
    return {full, full.partition(".")[0]}


def _listen(address: str, port: int) -> socket.socket:
    """Return a socket that listens on a port, or on the next free one; raises UsageError."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError:
        raise UsageError(
            f"--bind {address}: give an IP address of this machine, such as 127.0.0.1."
        ) from None
    for tried in range(port, min(port + _PORTS_TRIED, 65536)):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, tried))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno == errno.EACCES:
                raise UsageError(
                    f"--port {tried}: this user may not listen there; ports from 1024 on are free "
                    "for all."
                ) from error
            if error.errno != errno.EADDRINUSE:
                raise UsageError(f"--bind {address}: {error.strerror}.") from error
        else:
            return listener
    raise UsageError(f"All ports from {port} on are in use: give another one with --port.")
