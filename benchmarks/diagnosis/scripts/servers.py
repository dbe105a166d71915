"""Storage that answers late: servers in processes of their own."""

from __future__ import annotations

import http.server
import multiprocessing
import socketserver
import time
from contextlib import contextmanager

_SAMPLE = bytes(range(256)) * 48


class _Objects(http.server.BaseHTTPRequestHandler):
    """Gives the same object under every name, after a while."""

    latency_s = 0.0

    def do_GET(self) -> None:
        """Answer."""
        time.sleep(self.latency_s)
        self.send_response(200)
        self.send_header("Content-Length", str(len(_SAMPLE)))
        self.end_headers()
        self.wfile.write(_SAMPLE)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Rows(socketserver.StreamRequestHandler):
    """Gives a row for every line with a number, after a while."""

    latency_s = 0.0

    def handle(self) -> None:
        """Answer until the client goes."""
        while self.rfile.readline():
            time.sleep(self.latency_s)
            self.wfile.write(_SAMPLE[:1024])
            self.wfile.flush()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64


def _serve(handler, latency_s: float, port) -> None:
    handler.latency_s = latency_s
    with _Server(("127.0.0.1", 0), handler) as server:
        port.send(server.server_address[1])
        server.serve_forever()


@contextmanager
def _started(handler, latency_s: float):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(handler, latency_s, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def object_store(latency_s: float):
    """Serve objects over HTTP; the context gives the port."""
    return _started(_Objects, latency_s)


def row_store(latency_s: float):
    """Serve rows of 1,024 bytes over TCP, one for each line sent; the context gives the port."""
    return _started(_Rows, latency_s)
