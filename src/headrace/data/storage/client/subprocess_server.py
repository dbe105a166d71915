"""The storage subprocess: object-store requests for a process that may fork.

It is started with one end of a socket pair and ends when the other end closes or its parent dies.
Requests run concurrently; each answer has its request's number.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any

from headrace.core.errors import HeadraceError, error_to_json
from headrace.core.process.parent_death import die_with_parent
from headrace.data.storage.client.direct import DirectClient
from headrace.data.storage.client.fork_state import declare_leaf
from headrace.data.storage.client.subprocess_protocol import (
    FrameConnection,
    ReceivedFrame,
    object_row,
    read_pieces,
)
from headrace.data.storage.store import Buffer, ObjectInfo, RetryPolicy, StorageConfig
from headrace.data.storage.urls import Location

HEARTBEAT_S = 5.0
_NOTHING = memoryview(b"")


def main() -> None:
    """Serve the socket whose descriptor is argument 1, for the process of argument 2."""
    die_with_parent(int(sys.argv[2]))
    # Ctrl-C reaches every process of a terminal; the parent decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    declare_leaf()
    _Server(FrameConnection(socket.socket(fileno=int(sys.argv[1])))).serve()
    # At once: uploads in progress must not become objects without their writer.
    os._exit(0)


class _Server:
    """Answers the requests of one connection."""

    def __init__(self, channel: FrameConnection) -> None:
        self._channel = channel
        self._clients: dict[int, DirectClient] = {}
        self._locations: dict[int, tuple[Location, StorageConfig]] = {}
        self._outbox: SimpleQueue[tuple[dict[str, Any], Buffer]] = SimpleQueue()

    def serve(self) -> None:
        threading.Thread(target=self._send_answers, daemon=True).start()
        try:
            while (frame := self._channel.receive()) is not None:
                self._handle(frame)
        except OSError:
            return

    def _handle(self, frame: ReceivedFrame) -> None:
        header = frame.header
        if header["op"] == "open":
            location = Location(**header["location"])
            self._locations[header["store"]] = (location, _config(header["config"]))
            return
        try:
            self._start(header, frame.descriptors)
        except HeadraceError as error:
            self._answer(header["id"], {"error": _named(error)})

    def _start(self, header: dict[str, Any], descriptors: Any) -> None:
        client, number = self._client(header["store"]), header["id"]
        key, target = header["key"], header["target"]
        match header["op"]:
            case "read":
                read = client.read(key, header["start"], header["length"], target)
                self._when_done(number, read, lambda data: ({}, data))
            case "read_part":
                part = client.read_part(key, header["start"], header["length"], target)
                self._when_done(number, part, lambda part: (_objects(part.info), part.data))
            case "read_whole":
                whole = client.read_whole(key, target)
                self._when_done(number, whole, lambda data: ({}, data))
            case "head":
                head = client.head(key, target)
                self._when_done(number, head, lambda info: (_objects(info), _NOTHING))
            case "create":
                made = client.create(key, bytes.fromhex(header["hex"]), target)
                self._when_done(number, made, lambda written: ({"written": written}, _NOTHING))
            case "delete":
                gone = client.delete(key, target)
                self._when_done(number, gone, lambda _: ({}, _NOTHING))
            case "list":
                pages = client.list(key, target, header["after"])
                self._in_thread(number, lambda: _objects(*chain.from_iterable(pages)))
            case "put":
                pieces, size_bytes = read_pieces(descriptors[0]), header["size_bytes"]
                self._in_thread(
                    number, lambda: client.put(key, pieces, target, size_bytes=size_bytes)
                )

    def _client(self, store: int) -> DirectClient:
        if store not in self._clients:
            self._clients[store] = DirectClient(*self._locations[store])
        return self._clients[store]

    def _when_done(
        self, number: int, future: Future[Any], pack: Callable[[Any], tuple[dict[str, Any], Buffer]]
    ) -> None:
        def answer(done: Future[Any]) -> None:
            error = done.exception()
            if error is None:
                self._answer(number, *pack(done.result()))
            else:
                self._answer(number, {"error": _named(error)})

        future.add_done_callback(answer)

    def _in_thread(self, number: int, work: Callable[[], dict[str, Any] | None]) -> None:
        def run() -> None:
            try:
                answer = work() or {}
            except (HeadraceError, EOFError) as error:
                answer = {"error": _named(error)}
            self._answer(number, answer)

        threading.Thread(target=run, daemon=True).start()

    def _answer(self, number: int, header: dict[str, Any], body: Buffer = _NOTHING) -> None:
        self._outbox.put(({"id": number, **header}, body))

    def _send_answers(self) -> None:
        # Not from the event loop: a parent that reads slowly must not delay its timers.
        while True:
            try:
                header, body = self._outbox.get(timeout=HEARTBEAT_S)
            except Empty:
                header, body = {"beat": True}, _NOTHING
            try:
                self._channel.send(header, body)
            except OSError:
                os._exit(0)


def _config(fields: dict[str, Any]) -> StorageConfig:
    return StorageConfig(**{**fields, "retry": RetryPolicy(**fields["retry"])})


def _objects(*infos: ObjectInfo) -> dict[str, Any]:
    return {"objects": [object_row(info) for info in infos]}


def _named(error: BaseException) -> dict[str, str]:
    if isinstance(error, HeadraceError):
        return error_to_json(error)
    # Another error's text may contain anything, even secrets.
    return {"kind": "StorageError", "message": f"The helper failed ({type(error).__name__})."}


if __name__ == "__main__":
    main()
