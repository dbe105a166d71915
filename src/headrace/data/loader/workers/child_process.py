"""A Python child process with a control connection, which ends when its parent does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headrace.core.errors import LoaderError, LoaderTimeoutError
from headrace.core.process.parent_death import ctrl_c_blocked
from headrace.core.process.process_kill import end_process, kill_process

_END_S = 5.0
_LAST_WORDS_S = 10.0

_LIVE: weakref.WeakSet[ChildProcess] = weakref.WeakSet()


def _close_all_controls() -> None:
    for process in list(_LIVE):
        process.control.close()


# Otherwise the process would outlive its parent: a forked child holds the connection open, too.
os.register_at_fork(after_in_child=_close_all_controls)


class ControlConnection(Connection):
    """A connection that closes its descriptor once.

    The standard library's closes it in `__del__`, and again where another object of the same
    reference cycle calls `close` later: by then the number may be another file's.
    """

    def __del__(self) -> None:
        self.close()


class ChildProcess:
    """A fresh Python process with a control connection, at whose close it ends.

    Args:
        name: For messages: "rank 0: the workers' forkserver".
        main: Its entry, "module:function"; called with the connection's descriptor and `arguments`.
        arguments: Numbers, texts, lists and tuples of them.
        path: Its `sys.path`; by default this process's.
    """

    def __init__(
        self,
        name: str,
        main: str,
        arguments: Sequence[Any],
        *,
        descriptors: Sequence[int],
        environment: Mapping[str, str],
        path: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self._owner = os.getpid()
        ours, theirs = socket.socketpair()
        module, _, function = main.partition(":")
        call_arguments = ", ".join(map(repr, [theirs.fileno(), *arguments]))
        search = [str(Path.cwd()) if entry == "" else entry for entry in path or sys.path]
        code = (
            f"import sys; sys.path[:] = {search!r}; "
            f"from {module} import {function}; {function}({call_arguments})"
        )
        with ctrl_c_blocked():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                pass_fds=[theirs.fileno(), *descriptors],
                stdin=subprocess.DEVNULL,
                env=dict(environment),
            )
        theirs.close()
        self.control = ControlConnection(ours.detach())
        _LIVE.add(self)

    @property
    def is_own(self) -> bool:
        """Whether this process, and not its parent, started it."""
        return os.getpid() == self._owner

    @property
    def lives(self) -> bool:
        """Whether it runs and was started by this process."""
        return self.is_own and self._process.poll() is None

    def request(self, *request: Any) -> None:
        """Send a request; raises LoaderError where the process has ended."""
        try:
            self.control.send(request)
        except OSError:  # ended, or closed here
            raise self._ended() from None

    def report(self, longest_s: float, what_may_last: str) -> tuple[Any, ...]:
        """Return its next report; raises LoaderTimeoutError, or LoaderError where it has ended.

        `what_may_last` is the usual reason for a long wait, for the message.
        """
        try:
            if not self.control.poll(longest_s):
                raise LoaderTimeoutError(
                    f"{self.name} (process {self._process.pid}) did not answer within "
                    f"{longest_s:.0f} s. {what_may_last}"
                )
            report: tuple[Any, ...] = self.control.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        return report

    def end(self) -> None:
        """Kill it at once."""
        _LIVE.discard(self)
        kill_process(self._process)
        self.control.close()

    def close(self) -> None:
        """Close the connection, so that it ends; kills it where it does not in time."""
        _LIVE.discard(self)
        self.control.close()
        # Where it is in the middle of importing the user's modules, it does not notice.
        end_process(self._process, _END_S)

    def _ended(self) -> LoaderError:
        try:
            status = str(self._process.wait(timeout=_LAST_WORDS_S))
        except subprocess.TimeoutExpired:
            status = "unknown"
        return LoaderError(
            f"{self.name} ended with exit status {status}. "
            f"Its last words are above; a status of -9 often means that memory ran out."
        )
