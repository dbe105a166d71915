"""A gateway before a web server, which refuses requests, or keeps them waiting, as a test wants."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread


class Gateway(ThreadingHTTPServer):
    """Passes requests on.

    Attributes:
        status: What requests that write are answered with; 0: as the server answers them.
        is_open: Requests wait until it is set.
        was_asked: Set by the first request.
        answered: How many requests have been.
    """

    daemon_threads = True

    def __init__(self, server: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server_uri, self.status, self.answered = server, 0, 0
        self.is_open, self.was_asked = Event(), Event()
        self.is_open.set()

    @property
    def uri(self) -> str:
        """Its own."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.status:
            self.server.was_asked.set()
            self.send_error(self.server.status)
            return
        self._pass_on(body)

    do_PUT = do_PATCH = do_POST  # noqa: N815 - names of http.server

    def _pass_on(self, body: bytes | None) -> None:
        self.server.was_asked.set()
        self.server.is_open.wait()
        kind = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        request = urllib.request.Request(  # noqa: S310 - loopback
            f"{self.server.server_uri}{self.path}", body, kind, method=self.command
        )
        try:
            with urllib.request.urlopen(request) as answer:  # noqa: S310 - loopback
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        self.server.answered += 1
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def gateway(server: str) -> Iterator[Gateway]:
    """Have a gateway before the server of a URI for the block."""
    with Gateway(server) as found:
        Thread(target=found.serve_forever, daemon=True).start()
        try:
            yield found
        finally:
            found.is_open.set()
            found.shutdown()
