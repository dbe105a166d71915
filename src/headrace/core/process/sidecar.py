"""Sidecars: helper processes beside a script that talk lines of JSON with their parent.

A module with `if __name__ == "__main__": run_sidecar(main)` is a sidecar's program, and `Sidecar`
starts it. Requests, which may hold secrets, go through standard input, as other users see argument
lists. A sidecar ends with its parent: at once by a parent-death signal, or, where it has to finish
work, because its input ends. Neither end shares a session, so that ctrl-C reaches only the script.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, Any, NoReturn

from headrace.core import env
from headrace.core.errors import HeadraceError, error_from_json, error_to_json
from headrace.core.files import write_all
from headrace.core.process.parent_death import die_with_parent, ignore_group_signals
from headrace.core.process.process_kill import kill_process
from headrace.core.process.supervision import start_without_signals

_PIECE_BYTES = 64 * 1024
_POLL_S = 1.0  # a poll that takes longer was a stop of this process
_RUNNING: set[int] = set()
SILENCE_S = 120.0
"""The longest silence of a sidecar that sends heartbeats: a host with too much to do is slow."""
_LAST_WORDS_S = 10.0  # from the end of its output to its own end
_HEARTBEAT_S, _ALIVE = 10.0, {"alive": True}
_SHORT_LIFE_S, _LONGEST_PAUSE_S = 10.0, 60.0  # of a sidecar that fails by itself; between starts
_LONG_LIFE_S = 600.0  # jobs last for weeks: after it an end has nothing to do with those before


def sidecar_pids() -> set[int]:
    """Return the sidecars of this process that have not been ended, which are no ranks."""
    return set(_RUNNING)


def request_line(request: Mapping[str, Any]) -> str:
    """Return the line that a sidecar of this process reads first."""
    return json.dumps({"parent": os.getpid(), "request": request}) + "\n"


class MessageReader:
    """Reads messages, which are lines of JSON, from a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._searched = 0
        self._has_ended = False

    def fileno(self) -> int:
        """Return the pipe's descriptor."""
        return self._descriptor

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until a message, or the end, has come; return False at the timeout.

        Time for which this process was stopped does not count: what stops a whole job (ctrl-Z, a
        container or a batch system that suspends it) stops those that write, too.
        """
        left_s = 0.0 if timeout_s is None else timeout_s
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while self._line_end() < 0 and not self._has_ended:
            if timeout_s is not None:
                began_s = time.monotonic()
                is_there = poll.poll(min(left_s, _POLL_S) * 1000)
                left_s = max(0.0, left_s - min(time.monotonic() - began_s, _POLL_S))
                if not is_there and left_s > 0:
                    continue
                if not is_there and not poll.poll(0):
                    return False
            piece = os.read(self._descriptor, _PIECE_BYTES)
            self._buffer += piece
            self._has_ended = not piece
        return True

    def read(self) -> dict[str, Any] | None:
        """Wait for the next message; None at the end. Raises an error that was sent."""
        self.wait()
        end = self._line_end()
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise error_from_json(message["error"])
        return message

    def read_byte(self) -> int | None:
        """Wait for the next byte, which is a part of no message; None at the end."""
        self._searched = 0
        if not self._buffer:
            self._buffer += os.read(self._descriptor, 1)
        return self._buffer.pop(0) if self._buffer else None

    def _line_end(self) -> int:
        end = self._buffer.find(b"\n", self._searched)
        self._searched = len(self._buffer) if end < 0 else end
        return end


class Sidecar:
    """A sidecar of this process, started at once.

    Args:
        environment: All its variables; None: this process's, without the rank's.
        own_session: Signals to this process's group or terminal do not reach it.
        output: Where it writes; None: messages are read here, and other text goes to stderr.

    Raises OSError (no more processes can be started).
    """

    def __init__(
        self,
        module: str,
        request: Mapping[str, Any],
        *,
        environment: Mapping[str, str] | None = None,
        own_session: bool = True,
        output: IO[bytes] | None = None,
    ) -> None:
        # -P: a folder named headrace in the working folder must not be imported.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=output or subprocess.PIPE,
            stderr=output,
            env=environment or env.sidecar_environment(),
            start_new_session=own_session,
            bufsize=0,
        )
        self.pid = self._process.pid
        _RUNNING.add(self.pid)
        stdout = self._process.stdout
        self._messages = None if stdout is None else MessageReader(stdout.fileno())
        self._write(request_line(request))

    @property
    def input_fd(self) -> int:
        """The pipe that it reads: other processes may write messages, of 4 KiB at most, to it."""
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send it a message; ignored where it has ended."""
        self._write(json.dumps(message) + "\n")

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            write_all(self._process.stdin.fileno(), line.encode())

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Wait for its next message; None where it has ended.

        Raises the error that it reports, and TimeoutError where nothing came in time, not even a
        heartbeat.
        """
        assert self._messages is not None
        while True:
            if not self._messages.wait(timeout_s):
                raise TimeoutError(f"process {self.pid} has said nothing for {timeout_s:.0f} s")
            message = self._messages.read()
            if message != _ALIVE:
                return message

    def last_words(self, patience_s: float = _LAST_WORDS_S) -> str:
        """End it after its last message; return how it has ended, for an error's text."""
        code = self.end(patience_s=patience_s)
        return f"exit code {code}" if code is not None else "it had to be killed"

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until it has ended; return its code, -n for signal n, or None at the timeout."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill it and wait for its end; see `kill_process`."""
        kill_process(self._process)
        _RUNNING.discard(self.pid)

    def end(
        self, message: Mapping[str, Any] | None = None, *, patience_s: float, kills: bool = True
    ) -> int | None:
        """Have it end: send a last message, and close its input; without `kills` it may go on.

        Returns its code, -n for signal n; None where it took too long.
        """
        if message is not None:
            self.send(message)
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self.wait(patience_s)
        if code is not None or kills:
            self.kill()
        return code


class RestartedSidecar:
    """A sidecar that is started again, some times at most, where it ends before it is asked to.

    It must not use a parent-death signal, as threads start it. One that ends soon after its start
    is started again after a pause.

    Args:
        module: Its program, with the request, as for `Sidecar`.
        request: What it is asked.
        restarts: How often it is started again, counted anew once one has lived for `long_life_s`.
        killed: Called with its code, and whether another one takes over.
        is_repeated: Whether it is started again after a code. By default that is where it was
            killed (out of memory, say): one that exits by itself has said why.
        finishes: It has work to do at its end; where it has ended before, another one does that.
        long_life_s: See `restarts`.
    """

    def __init__(
        self,
        module: str,
        request: Mapping[str, Any],
        *,
        restarts: int,
        killed: Callable[[int, bool], None],
        is_repeated: Callable[[int], bool] = lambda code: code < 0,
        finishes: bool = False,
        long_life_s: float = _LONG_LIFE_S,
    ) -> None:
        # The environment of now: torchrun's process later changes its own for the ranks.
        environment = env.sidecar_environment()
        self._start = partial(Sidecar, module, request, environment=environment)
        self._killed = killed
        self._is_repeated = is_repeated
        self._finishes = finishes
        self._lock = threading.Lock()  # guards the decision on another start
        self._is_over = threading.Event()
        self._current = self._start()
        start_without_signals(
            threading.Thread(
                target=self._watch, args=(restarts, long_life_s), name="headrace-sidecar",
                daemon=True,
            )
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """The process that runs now."""
        return self._current.pid

    def end(
        self, message: Mapping[str, Any] | None = None, *, patience_s: float, kills: bool = True
    ) -> int | None:
        """Have it end; see `Sidecar.end`."""
        with self._lock:
            self._is_over.set()
            code = self._current.wait(0)
            if self._finishes and code is not None and self._is_repeated(code):
                self._start_another()
        return self._current.end(message, patience_s=patience_s, kills=kills)

    def _watch(self, restarts: int, long_life_s: float) -> None:
        pause_s, left = 0.0, restarts
        while True:
            begun_s = time.monotonic()
            code = self._current.wait()
            assert code is not None
            lived_s = time.monotonic() - begun_s
            pause_s = 0.0 if lived_s > _SHORT_LIFE_S else min(2 * pause_s + 1.0, _LONGEST_PAUSE_S)
            left = restarts if lived_s > long_life_s else left
            if code >= 0 and left and self._is_repeated(code):
                self._is_over.wait(pause_s)
            with self._lock:  # nothing is printed under the lock: a terminal may block
                if self._is_over.is_set() or not self._is_repeated(code):
                    return
                has_restarted = left > 0 and self._start_another()
            self._killed(code, has_restarted)
            if not has_restarted:
                return
            left -= 1

    def _start_another(self) -> bool:
        try:
            another = self._start()
        except OSError:  # no memory for another process
            return False
        self._current.kill()
        self._current = another
        return True


class SidecarParent(MessageReader):
    """The parent of this process, which is a sidecar."""

    def __init__(self) -> None:
        super().__init__(0)
        # Stray output of libraries must not get among the messages.
        self._out = os.dup(1)
        self._sending = threading.Lock()
        os.dup2(2, 1)
        first = self.read()
        if first is None:  # the parent was killed
            os._exit(0)
        self.pid: int = first["parent"]
        self.request: dict[str, Any] = first["request"]

    def send(self, message: Mapping[str, Any]) -> None:
        """Send it a message; ignored where it has ended. Any thread may."""
        with self._sending, suppress(OSError):
            write_all(self._out, (json.dumps(message) + "\n").encode())

    @contextmanager
    def heartbeats(self) -> Iterator[None]:
        """Send heartbeats during the block, in which the parent waits for an answer.

        They show that this process runs; each request to storage in it has a deadline of its own.
        """
        is_over = threading.Event()

        def send() -> None:
            while not is_over.wait(_HEARTBEAT_S):
                self.send(_ALIVE)

        threading.Thread(target=send, name="headrace-heartbeats", daemon=True).start()
        try:
            yield
        finally:
            is_over.set()

    def send_error(self, error: HeadraceError) -> None:
        """Have its `receive` raise an error."""
        self.send({"error": error_to_json(error)})


def run_sidecar(
    main: Callable[[SidecarParent], int | None],
    *,
    dies_by: signal.Signals | None = signal.SIGKILL,
    blocked: Collection[signal.Signals] = (),
) -> NoReturn:
    """Read the request, run the program of a sidecar, and exit.

    An error of Headrace is sent to the parent, and its exit code is this process's. The exit is at
    once: an orderly one would finalise the interpreter under the threads of an object-store client.

    Args:
        main: The program; its result is the exit code, None for 0.
        dies_by: The signal by which this process dies with the parent's thread; None: it sees by
            itself that its input has ended.
        blocked: Signals that stay blocked, for the program to wait for; other signals to the
            process group are ignored.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    ignore_group_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)  # the launcher waits with more blocked
    parent = SidecarParent()
    code = 1
    try:
        if dies_by is not None:
            die_with_parent(parent.pid, dies_by)
        code = main(parent) or 0
    except HeadraceError as error:
        parent.send_error(error)
        code = error.exit_code
    except BaseException:  # noqa: BLE001 - the interpreter's own handler is not reached
        traceback.print_exc()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
