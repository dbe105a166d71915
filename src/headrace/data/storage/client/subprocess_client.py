"""The client that sends requests to this process's storage subprocess, and starts it.

One subprocess a process (and set of connection variables), shared by all stores. One that dies is
replaced, and unanswered reads are sent to the new one.
"""

from __future__ import annotations

import atexit
import builtins
import dataclasses
import itertools
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from headrace.core.env import connection_variables, sidecar_environment
from headrace.core.errors import CredentialsError, HeadraceError, StorageError, error_from_json
from headrace.core.process.process_kill import kill_process
from headrace.data.storage.client.subprocess_protocol import (
    FrameConnection,
    ReceivedFrame,
    object_of_row,
    write_piece,
)
from headrace.data.storage.store import (
    Buffer,
    ObjectInfo,
    Part,
    PutData,
    StorageConfig,
    is_repeatable,
    pieces_of,
    regrouped,
    size_of,
)
from headrace.data.storage.urls import Location

_SILENCE_S = 30.0  # the subprocess sends a heartbeat every 5 s
_MOST_TRIES = 2
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from headrace.data.storage.client.subprocess_server import main; main()"
)


@dataclass(slots=True, kw_only=True)
class PendingRequest:
    """A request that is not answered yet."""

    opening: dict[str, Any]  # location and settings of its store, as JSON objects
    header: dict[str, Any]  # the request, as a JSON object
    descriptors: Sequence[int] = ()  # files that are sent with it
    repeatable: bool = True  # by another subprocess; an upload's pieces come only once
    answer: Future[ReceivedFrame] = field(default_factory=Future)
    tries: int = 0  # subprocesses that got it

    def send(self) -> Future[ReceivedFrame]:
        """Send it to this process's storage subprocess, started if needed."""
        while not _current().take(self):
            pass
        return self.answer

    def fail(self, error: HeadraceError) -> None:
        """Give it an error as its answer."""
        with suppress(InvalidStateError):  # cancelled: nobody waits any more
            self.answer.set_exception(error)


def server_pids() -> list[int]:
    """Return the ids of this process's running storage subprocesses."""
    with _lock:
        return [server.pid for server in _servers.values() if server.pid is not None]


class _ServerProcess:
    """A storage subprocess, and the thread that starts it and receives from it.

    That thread must start it, because it dies with the *thread* that started it.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_SILENCE_S)
        self.pid: int | None = None
        self._channel = FrameConnection(ours)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, PendingRequest] = {}
        self._stores: dict[str, int] = {}
        self._gone = False
        self._thread = threading.Thread(
            target=self._run, args=(theirs,), name="headrace-helper", daemon=True
        )
        self._thread.start()

    def take(self, request: PendingRequest) -> bool:
        """Send a request; False where this subprocess has ended."""
        with self._lock:
            if self._gone:
                return False
            number = next(self._numbers)
            self._waiting[number] = request
            spec = json.dumps(request.opening, sort_keys=True)
            known = spec in self._stores
            store = self._stores.setdefault(spec, len(self._stores))
            request.tries += 1
            try:
                if not known:
                    self._channel.send({"op": "open", "store": store, **request.opening})
                header = {**request.header, "id": number, "store": store}
                self._channel.send(header, descriptors=request.descriptors)
            except OSError:
                # The receiving thread notices, and sends it to another subprocess.
                self._channel.shut_down()
        return True

    def stop_if_idle(self) -> None:
        """End the subprocess unless requests are open: the connection variables have changed."""
        with self._lock:
            if not self._waiting:
                self._channel.shut_down()

    def stop(self) -> None:
        self._channel.shut_down()
        self._thread.join(timeout=5)

    def abandon(self) -> None:
        """Close a forked child's copy of the parent's connection."""
        self._channel.close()

    def _run(self, theirs: socket.socket) -> None:
        process = None
        try:
            with theirs:
                process = _start(theirs)
            self.pid = process.pid
            self._receive()
        except OSError:
            pass  # reported to open requests below
        finally:
            self._channel.shut_down()
            status = _end(process)
            self._release(status)
            self._channel.close()

    def _receive(self) -> None:
        while True:
            # Silence raises TimeoutError: a stopped or stuck subprocess counts as dead.
            frame = self._channel.receive()
            if frame is None:
                return
            if "id" in frame.header:
                _set_answer(self._waiting.pop(frame.header["id"]), frame)

    def _release(self, status: str) -> None:
        """Send open requests to another subprocess, or fail them."""
        with self._lock:
            self._gone = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
        with _lock:
            for variables in [key for key, server in _servers.items() if server is self]:
                del _servers[variables]
        for request in waiting:
            if request.repeatable and request.tries < _MOST_TRIES and not _exiting.is_set():
                request.send()
                continue
            request.fail(
                StorageError(
                    f"{request.header['target']}: the storage helper process {status} before it "
                    "answered. Try again; if it ends again, look above for its message."
                )
            )


_lock = threading.Lock()
_servers: dict[tuple[tuple[str, str], ...], _ServerProcess] = {}
_exiting = threading.Event()


def _current() -> _ServerProcess:
    variables = connection_variables()
    with _lock:
        if variables not in _servers:
            for other in _servers.values():
                other.stop_if_idle()
            _servers[variables] = _ServerProcess()
        return _servers[variables]


def _start(theirs: socket.socket) -> subprocess.Popen[bytes]:
    # No `Sidecar`: frames carry bytes and descriptors, and the script's own sys.path may be needed.
    descriptor = theirs.fileno()
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(descriptor), str(os.getpid()), json.dumps(sys.path)],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=sidecar_environment(),
        start_new_session=True,  # ctrl-C in a terminal is the parent's to handle
    )


def _end(process: subprocess.Popen[bytes] | None) -> str:
    if process is None:
        return "could not be started"
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        kill_process(process)
        return "stopped answering and was ended"
    code = process.returncode
    return f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"


def _set_answer(request: PendingRequest, frame: ReceivedFrame) -> None:
    error = frame.header.get("error")
    if error is not None:
        request.fail(error_from_json(error))
        return
    with suppress(InvalidStateError):  # cancelled: nobody waits any more
        request.answer.set_result(frame)


def _at_exit() -> None:
    _exiting.set()
    with _lock:
        servers = list(_servers.values())
    for server in servers:
        server.stop()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603  (another thread may have held it at the fork)
    _lock = threading.Lock()
    for server in _servers.values():
        server.abandon()
    _servers.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)

_T = TypeVar("_T")
_PIPE_POLL_MS = 1000
_PIECE_BYTES = 2**20


class SubprocessClient:
    """Requests of one location, made by the storage subprocess; this process may fork."""

    def __init__(self, location: Location, config: StorageConfig) -> None:
        # Keys are whole paths, so stores of one bucket share the subprocess's connections.
        at_root = dataclasses.replace(location, prefix="")
        self._opening = {
            "location": dataclasses.asdict(at_root),
            "config": dataclasses.asdict(config),
        }

    def read(self, key: str, start: int, length: int, target: str) -> Future[Buffer]:
        """Read a range."""
        return self._request(
            "read", key, target, lambda frame: frame.body, start=start, length=length
        )

    def read_part(self, key: str, start: int, length: int, target: str) -> Future[Part]:
        """Read a range up to the object's end, and its description."""
        return self._request("read_part", key, target, _part, start=start, length=length)

    def read_whole(self, key: str, target: str) -> Future[Buffer]:
        """Read an object of any size."""
        return self._request("read_whole", key, target, lambda frame: frame.body)

    def head(self, key: str, target: str) -> Future[ObjectInfo]:
        """Return an object's description."""
        return self._request("head", key, target, lambda frame: _infos(frame)[0])

    def list(
        self, prefix: str, target: str, after: str | None = None
    ) -> Iterator[builtins.list[ObjectInfo]]:
        """Yield the objects below a folder, of the keys after one if that is given."""
        yield self._request("list", prefix, target, _infos, after=after).result()

    def put(self, key: str, data: PutData, target: str) -> None:
        """Write an object, once more if the data are repeatable.

        That is where the subprocess dies, or credentials are refused: it looks for new ones
        whenever it starts.
        """
        if not self._put(key, data, target, last=not is_repeatable(data)):
            self._put(key, data, target, last=True)

    def create(self, key: str, data: bytes, target: str) -> Future[bool]:
        """Write a small object unless it exists; return whether it was written."""
        return self._request(
            "create", key, target, lambda frame: bool(frame.header["written"]), hex=data.hex()
        )

    def delete(self, key: str, target: str) -> Future[None]:
        """Remove an object."""
        return self._request("delete", key, target, lambda _: None)

    def close(self) -> None:
        """Do nothing: the subprocess serves this process's other stores, and ends with it."""

    def _request(
        self, op: str, key: str, target: str, convert: Callable[[ReceivedFrame], _T], **more: Any
    ) -> Future[_T]:
        """Send a request, and return the future of its converted answer."""
        header = {"op": op, "key": key, "target": target, **more}
        result: Future[_T] = Future()
        result.set_running_or_notify_cancel()

        def finish(done: Future[ReceivedFrame]) -> None:
            error = done.exception()
            if error is None:
                result.set_result(convert(done.result()))
            else:
                result.set_exception(error)

        PendingRequest(opening=self._opening, header=header).send().add_done_callback(finish)
        return result

    def _put(self, key: str, data: PutData, target: str, *, last: bool) -> bool:
        # The size of the whole sets that of the parts.
        header = {"op": "put", "key": key, "target": target, "size_bytes": size_of(data)}
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        try:
            try:
                answer = PendingRequest(
                    opening=self._opening,
                    header=header,
                    descriptors=(read_end,),
                    repeatable=False,
                ).send()
            finally:
                os.close(read_end)
            _write(write_end, data, answer)
        finally:
            # Without the end mark that `_write` writes last, the subprocess abandons the upload.
            os.close(write_end)
        error = answer.exception()
        if error is None:
            return True
        if last or type(error) not in {StorageError, CredentialsError}:
            raise error
        return False


def _write(pipe: int, data: PutData, answer: Future[ReceivedFrame]) -> None:
    """Write `data` to the subprocess; stop early where it has already answered (an error)."""
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    try:
        for piece in chain(regrouped(pieces_of(data), _PIECE_BYTES), [b""]):
            for _ in write_piece(pipe, piece):
                if answer.done():
                    return
                poll.poll(_PIPE_POLL_MS)
    except BrokenPipeError:
        return


def _infos(frame: ReceivedFrame) -> builtins.list[ObjectInfo]:
    return [object_of_row(row) for row in frame.header["objects"]]


def _part(frame: ReceivedFrame) -> Part:
    return Part(data=frame.body, info=_infos(frame)[0])
