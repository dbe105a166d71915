"""This process's end of its storage helper: starts it, sends requests, hands out answers.

One helper a process (and set of connection variables), shared by all stores. A helper that dies
is replaced; reads it still owed are asked of the new one.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from headrace.core import errors
from headrace.core.env import child_environment, connection_variables
from headrace.core.errors import HeadraceError, StorageError
from headrace.data.storage.channel import Channel, Frame

_SILENCE_S = 30.0  # the helper sends a beat every 5 s
_MOST_TRIES = 2
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from headrace.data.storage.helper import main; main()"
)


@dataclass(slots=True, kw_only=True)
class Request:
    """One request on its way.

    Attributes:
        opening: Location and settings of its store, as JSON objects.
        header: What is asked.
        descriptors: Files that go with it.
        repeatable: Whether another helper may be asked again; an upload's pieces come only once.
        answer: What came.
        tries: How many helpers were asked.
    """

    opening: dict[str, Any]
    header: dict[str, Any]
    descriptors: Sequence[int] = ()
    repeatable: bool = True
    answer: Future[Frame] = field(default_factory=Future)
    tries: int = 0


def ask(request: Request) -> Future[Frame]:
    """Send a request to this process's helper, which is started where there is none."""
    while not _current().take(request):
        pass
    return request.answer


def helper_pids() -> list[int]:
    """Return the helpers of this process that run."""
    with _lock:
        return [helper.pid for helper in _helpers.values() if helper.pid is not None]


class _HelperProcess:
    """A helper, and the thread that starts it and receives from it.

    The thread starts it because the helper dies with the *thread* that started it.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_SILENCE_S)
        self.pid: int | None = None
        self._channel = Channel(ours)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Request] = {}
        self._stores: dict[str, int] = {}
        self._gone = False
        self._thread = threading.Thread(
            target=self._run, args=(theirs,), name="headrace-helper", daemon=True
        )
        self._thread.start()

    def take(self, request: Request) -> bool:
        """Send a request; False where this helper is gone."""
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
                # The receiving thread notices, and asks another helper.
                self._channel.hang_up()
        return True

    def stop_if_idle(self) -> None:
        """End the helper if nobody waits for it: the connection variables have changed since."""
        with self._lock:
            if not self._waiting:
                self._channel.hang_up()

    def stop(self) -> None:
        """End the helper, and wait until it is gone."""
        self._channel.hang_up()
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
            pass  # told to those who wait, below
        finally:
            self._channel.hang_up()
            status = _end(process)
            self._release(status)
            self._channel.close()

    def _receive(self) -> None:
        while True:
            # Silence raises TimeoutError: a helper that is stopped or stuck is as good as dead.
            frame = self._channel.receive()
            if frame is None:
                return
            if "id" in frame.header:
                _settle(self._waiting.pop(frame.header["id"]), frame)

    def _release(self, status: str) -> None:
        """Ask another helper for what this one still owed, or fail it."""
        with self._lock:
            self._gone = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
        with _lock:
            for variables in [key for key, helper in _helpers.items() if helper is self]:
                del _helpers[variables]
        for request in waiting:
            if request.repeatable and request.tries < _MOST_TRIES and not _exiting.is_set():
                ask(request)
            else:
                _fail(
                    request,
                    StorageError(
                        f"{request.header['target']}: the storage helper process {status} before "
                        "it answered. Try again; if it ends again, look above for its message."
                    ),
                )


_lock = threading.Lock()
_helpers: dict[tuple[tuple[str, str], ...], _HelperProcess] = {}
_exiting = threading.Event()


def _current() -> _HelperProcess:
    variables = connection_variables()
    with _lock:
        if variables not in _helpers:
            for other in _helpers.values():
                other.stop_if_idle()
            _helpers[variables] = _HelperProcess()
        return _helpers[variables]


def _start(theirs: socket.socket) -> subprocess.Popen[bytes]:
    descriptor = theirs.fileno()
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(descriptor), str(os.getpid()), json.dumps(sys.path)],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=child_environment(),
        start_new_session=True,  # ctrl-C in a terminal is the parent's to handle
    )


def _end(process: subprocess.Popen[bytes] | None) -> str:
    if process is None:
        return "could not be started"
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "stopped answering and was ended"
    code = process.returncode
    return f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"


def _settle(request: Request, frame: Frame) -> None:
    error = frame.header.get("error")
    if error is not None:
        kind = getattr(errors, error["kind"], StorageError)
        _fail(request, kind(error["message"]))
        return
    try:
        request.answer.set_result(frame)
    except InvalidStateError:
        return  # cancelled: nobody waits any more


def _fail(request: Request, error: HeadraceError) -> None:
    try:
        request.answer.set_exception(error)
    except InvalidStateError:
        return


def _at_exit() -> None:
    _exiting.set()
    with _lock:
        helpers = list(_helpers.values())
    for helper in helpers:
        helper.stop()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603  (another thread may have held it at the fork)
    _lock = threading.Lock()
    for helper in _helpers.values():
        helper.abandon()
    _helpers.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
