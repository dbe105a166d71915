"""A TCP proxy before an HTTP/1.1 server: adds latency, caps rates, makes faults on demand.

It stands for the distance to a bucket in benchmarks, and for a bad day of it in tests. It costs
little of the machine it shares with them: bodies pass through the kernel (splice), and a small
answer costs one sleep. From Python:

    with slow_proxy(server.endpoint, latency_ms=30, rate_mb=50) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
        ...
        proxy.counts()  # {"requests": 500, "connections": 8, "stall": 3, ...}

From a shell, until ctrl-C; the first line is its address:

    python tools/slow_proxy.py --target 127.0.0.1:9000 --latency-ms 30 --rate-mb 50
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from http_sides import ClosedError, Header, Side

from headrace.core.env import child_environment
from headrace.core.process.parent_death import die_with_parent

_COUNTS_PATH = "/-/counts"
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Which share of requests suffers what; the shares add up to at most 1.

    Request n suffers what (seed, n) says, so a run can be repeated.

    Attributes:
        busy: Answered 503 SlowDown without asking the server.
        stall: Answered `stall_s` late.
        reset: The connection is reset instead of an answer.
        short_body: The headers are right, half the body is missing, the connection closes.
        cut_range: Half the body, and a Content-Length that says so; Content-Range is left as is.
        flip: One bit of the body is changed.
        stall_s: How late a stalled answer is, seconds.
        methods: Only requests of these methods suffer.
        path: Only requests whose path holds this text suffer.
        at_most: No more than so many requests suffer.
        seed: Start of the sequence.
    """

    busy: float = 0.0
    stall: float = 0.0
    reset: float = 0.0
    short_body: float = 0.0
    cut_range: float = 0.0
    flip: float = 0.0
    stall_s: float = 5.0
    methods: tuple[str, ...] = ("GET",)
    path: str = ""
    at_most: int = 10**9
    seed: int = 0

    def of(self, number: int, method: str, path: str) -> str:
        """Return what request `number` suffers, "" for nothing."""
        if method not in self.methods or self.path not in path:
            return ""
        draw = random.Random(self.seed * 1_000_003 + number).random()
        for name in ("busy", "stall", "reset", "short_body", "cut_range", "flip"):
            draw -= getattr(self, name)
            if draw < 0:
                return name
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowProxy:
    """A running proxy.

    Attributes:
        endpoint: Its address, "http://127.0.0.1:PORT".
        pid: Its process.
    """

    endpoint: str
    pid: int

    def counts(self) -> dict[str, int]:
        """Return how many requests and connections came, and how many suffered each fault."""
        connection = HTTPConnection(urlsplit(self.endpoint).netloc, timeout=60)
        try:
            connection.request("GET", _COUNTS_PATH)
            counts: dict[str, int] = json.load(connection.getresponse())
        finally:
            connection.close()
        return counts


@contextmanager
def slow_proxy(
    target: str,
    *,
    port: int = 0,
    latency_ms: float = 0.0,
    rate_mb: float = 0.0,
    faults: Faults | None = None,
) -> Iterator[SlowProxy]:
    """Run a proxy before `target` in a process of its own, until the block ends.

    Args:
        target: "http://HOST:PORT" or "HOST:PORT".
        port: Port on 127.0.0.1; 0 chooses a free one.
        latency_ms: Added to each request.
        rate_mb: Most MB (10^6 bytes) a second of a connection's answers; 0 for no limit.
        faults: What goes wrong.

    Yields:
        The proxy, ready for requests.
    """
    address = urlsplit(target).netloc or target
    command = [
        sys.executable, str(Path(__file__).resolve()), "--target", address,
        "--port", str(port), "--latency-ms", str(latency_ms), "--rate-mb", str(rate_mb),
        "--parent", str(os.getpid()),
        "--faults", json.dumps(asdict(faults or Faults())),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment())
    try:
        assert process.stdout is not None
        endpoint = process.stdout.readline().decode().strip()
        if not endpoint:
            raise RuntimeError(f"The proxy ended with status {process.wait()}.")
        yield SlowProxy(endpoint=endpoint, pid=process.pid)
    finally:
        process.kill()
        process.communicate()


class _Proxy:
    """Listens, and gives each connection a thread."""

    def __init__(
        self, target: tuple[str, int], latency_s: float, rate: float, faults: Faults
    ) -> None:
        self.target = target
        self.latency_s = latency_s
        self.rate = rate
        self._faults = faults
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter(requests=0, connections=0)

    def serve(self, listener: socket.socket) -> None:
        """Accept connections for ever."""
        while True:
            client, _ = listener.accept()
            with self._lock:
                self.counts["connections"] += 1
            threading.Thread(target=_Connection(self, client).run, daemon=True).start()

    def next_fault(self, method: str, path: str) -> str:
        """Count a request and return what it suffers."""
        with self._lock:
            number = self.counts["requests"]
            self.counts["requests"] += 1
            fault = self._faults.of(number, method, path)
            if not fault or self.counts["faults"] >= self._faults.at_most:
                return ""
            self.counts["faults"] += 1
            self.counts[fault] += 1
            return fault

    @property
    def stall_s(self) -> float:
        """How late a stalled answer is."""
        return self._faults.stall_s


class _Connection:
    """One client's connection, and ours to the server."""

    def __init__(self, proxy: _Proxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._client = Side(client)
        self._server: Side | None = None

    def run(self) -> None:
        """Pass requests and answers on until one side closes."""
        try:
            while True:
                self._pass_one()
        except (ClosedError, OSError):
            pass
        finally:
            self._client.close()
            if self._server is not None:
                self._server.close()

    def _pass_one(self) -> None:
        request = self._client.read_header()
        began = time.monotonic()
        method, path = request.first_line.split(" ")[:2]
        if path == _COUNTS_PATH:
            self._client.answer("200 OK", json.dumps(self._proxy.counts).encode())
            return
        fault = self._proxy.next_fault(method, path)
        if fault == "reset":
            self._client.reset()
            raise ClosedError
        if fault == "stall":
            time.sleep(self._proxy.stall_s)
        if request.value("expect"):
            self._client.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            request = request.without("expect")
        if fault == "busy":
            self._client.swallow(request.body_bytes())
            body = (
                b"<Error><Code>SlowDown</Code><Message>Please reduce your rate.</Message></Error>"
            )
            self._client.answer("503 Slow Down", body)
            return
        if self._server is None:
            self._server = Side(socket.create_connection(self._proxy.target))
        self._server.socket.sendall(request.text)
        self._client.pour(self._server, request.body_bytes(), rate=0.0, pause_s=0.0)
        self._pass_answer(self._server, method, fault, began)

    def _pass_answer(self, server: Side, method: str, fault: str, began: float) -> None:
        answer = server.read_header()
        status = int(answer.first_line.split(" ")[1])
        empty = method == "HEAD" or status in {204, 304}
        pause_s = max(0.0, began + self._proxy.latency_s - time.monotonic())
        if answer.value("transfer-encoding").lower() == "chunked" and not empty:
            time.sleep(pause_s)
            self._client.socket.sendall(answer.text)
            server.pour_chunks(self._client)
            return
        length = 0 if empty else answer.body_bytes()
        if fault in {"short_body", "cut_range", "flip"} and length and status < 300:
            time.sleep(pause_s)
            self._spoil(server, answer, length, fault)
        elif not length:
            time.sleep(pause_s)
            self._client.socket.sendall(answer.text)
        else:
            server.pour(
                self._client, length, rate=self._proxy.rate, pause_s=pause_s, first=answer.text
            )
        if answer.value("connection").lower() == "close":
            raise ClosedError

    def _spoil(self, server: Side, answer: Header, length: int, fault: str) -> None:
        body = bytearray(server.read(length))
        if fault == "flip":
            body[length // 2] ^= 1
        else:
            del body[length // 2 :]
        if fault == "cut_range":
            answer = answer.without("content-length").with_line(f"Content-Length: {len(body)}")
        self._client.socket.sendall(answer.text + body)
        if fault == "short_body":
            raise ClosedError


def main() -> None:
    """Run a proxy until ctrl-C."""
    parser = argparse.ArgumentParser(description="A slow and faulty proxy before an HTTP server.")
    parser.add_argument("--target", required=True, metavar="HOST:PORT")
    parser.add_argument("--port", type=int, default=0, help="0 chooses a free one")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--rate-mb", type=float, default=0.0, help="MB/s a connection; 0: no limit")
    parser.add_argument("--faults", default="{}", help="JSON, the fields of Faults")
    parser.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.parent:
        die_with_parent(arguments.parent)
    host, _, port = arguments.target.rpartition(":")
    proxy = _Proxy(
        (host, int(port)),
        arguments.latency_ms / 1000,
        arguments.rate_mb * 1e6,
        Faults(**json.loads(arguments.faults)),
    )
    with socket.create_server(("127.0.0.1", arguments.port), backlog=256) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        with suppress(KeyboardInterrupt):
            proxy.serve(listener)


if __name__ == "__main__":
    main()
