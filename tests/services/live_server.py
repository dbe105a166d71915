"""`headrace report --live` as a process of its own, and requests to it."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

from jobs import clean_environment, eventually

_ANSWER_S = 180.0  # the server itself waits for up to two minutes for a run's first verdict


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class LiveServer:
    url: str  # as it was printed, with the token
    process: subprocess.Popen[bytes]

    @property
    def netloc(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def origin(self) -> str:
        return f"http://{self.netloc}"

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.url).query)["token"][0]

    @property
    def cookie(self) -> str:
        name = hashlib.sha256(self.token.encode()).hexdigest()[:12]
        return f"headrace_token_{name}={self.token}"

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        """Send a request with the token's cookie; `_` in a header's name is `-`."""
        connection = http.client.HTTPConnection(self.netloc, timeout=_ANSWER_S)
        try:
            shown = {"Cookie": self.cookie} | {
                name.replace("_", "-"): value for name, value in headers.items()
            }
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, shown)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def change(self, path: str, body: Any = None) -> Answer:
        """Send a request as the page itself does."""
        return self.ask(path, "POST", body, Origin=self.origin, X_Headrace="1")


@contextmanager
def events_of(server: LiveServer, run: str = "", query: str = "") -> Iterator[BinaryIO]:
    """Open the stream of a run's events, or of those of the list of runs."""
    path = f"/runs/{run}/events" if run else "/api/events"
    with socket.create_connection(tuple(server.netloc.split(":")), timeout=_ANSWER_S) as connection:
        connection.sendall(
            f"GET {path}{query} HTTP/1.1\r\nHost: {server.netloc}\r\n"
            f"Cookie: {server.cookie}\r\n\r\n".encode()
        )
        yield connection.makefile("rb")


def next_event(stream: BinaryIO, name: bytes) -> bytes:
    """Return the data of the next event of a name, such as `event: changed`."""
    while (line := stream.readline()).strip() != name:
        assert line, "the stream ended"
    return stream.readline().removeprefix(b"data: ")


@contextmanager
def live_server(folder: Path, *arguments: str, **variables: str) -> Iterator[LiveServer]:
    """Serve the runs below a folder; it is ended with ctrl-C, and must end by that.

    Runs that are resumed from its pages have its environment, with these variables.
    """
    printed = folder / "live.out"
    state = {"XDG_STATE_HOME": str(folder / "state")}
    with printed.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "report", "--live", *arguments],
            cwd=folder, env=clean_environment(**state | variables), stdin=subprocess.DEVNULL,
            stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        url = eventually(lambda: _printed_url(printed, process), "the server's URL")
        yield LiveServer(url, process)
        process.send_signal(signal.SIGINT)
        process.wait(_ANSWER_S)
        text = printed.read_text()
        assert "Traceback" not in text, text
    finally:
        process.kill()
        process.wait()


def _printed_url(printed: Path, process: subprocess.Popen[bytes]) -> str | None:
    text = printed.read_text()
    assert process.poll() is None, text
    found = re.search(r" at (http://\S+)  \(", text)
    return found[1] if found else None
