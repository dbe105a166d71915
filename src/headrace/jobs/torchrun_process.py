"""The process in which torchrun runs a job, as `headrace run` starts and hears it.

It is started before the launcher's own modules are imported where the command line looks like
torchrun's: the import of torch in the one and those imports in the other then run side by side.
This module therefore imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

_FLAGS_OF_TORCHRUN = (
    "--nproc", "--nnodes", "--standalone", "--rdzv", "--max-restarts", "--max_restarts", "--node",
    "--master", "--engine", "--group", "--distribution", "--driver",
)  # fmt: skip
"""Beginnings of flags with which torchrun starts the script; others are found by parsing."""
_READ_S = 5.0
_BLOCKED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD}


class TorchrunProcess:
    """The torchrun process of a job: one request goes to it, and lines of JSON come from it.

    The first line announces the run folder, the second that the ranks have ended.
    """

    def __init__(self) -> None:
        request_fd, self._request_fd = os.pipe()
        self._announce_fd, announce_fd = os.pipe()
        # -u: the ranks' output is shown at once, also into a pipe.
        command = [sys.executable, "-u", "-P", "-m", "headrace.jobs.torchrun"]
        # Blocked: see `signals_blocked`; the child unblocks them once it is ready for them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            self.child = subprocess.Popen(
                [*command, "--parent", str(os.getpid()), "--announce", str(announce_fd),
                 "--request", str(request_fd), "--"],
                pass_fds=[announce_fd, request_fd],
                start_new_session=True,  # ctrl-C reaches only this process, which passes it on once
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(request_fd)
        os.close(announce_fd)
        self.announced: dict[str, Any] | None = None  # the run folder; None: not yet
        self._reader: threading.Thread | None = None

    def begin(
        self,
        argv: Sequence[str],
        run_dir: str | None,
        at_begin: Callable[[dict[str, Any]], object],
        at_end: Callable[[dict[str, Any]], object],
    ) -> None:
        """Have it run a job; call this with signals blocked, as its thread inherits that.

        `argv` is what follows `headrace run`; a `run_dir` takes precedence over it. In that thread
        `at_begin` is called with what is announced first, and `at_end` with the same once the ranks
        have ended.
        """
        request = json.dumps({"argv": list(argv), "run_dir": run_dir}).encode()
        with os.fdopen(self._request_fd, "wb") as pipe:
            pipe.write(request + b"\n")
        self._reader = threading.Thread(
            target=self._read, args=[at_begin, at_end], name="headrace-torchrun", daemon=True
        )
        self._reader.start()

    def discard(self) -> None:
        """End it before it was given a job."""
        os.close(self._request_fd)
        os.close(self._announce_fd)
        self.child.kill()
        with suppress(subprocess.TimeoutExpired):  # a disk that does not answer holds it
            self.child.wait(_READ_S)

    def ended(self) -> None:
        """Wait for what it announced last, once it has ended."""
        assert self._reader is not None  # `begin` has started it
        self._reader.join(_READ_S)  # no longer: a process that outlives it might hold the pipe

    def _read(
        self,
        at_begin: Callable[[dict[str, Any]], object],
        at_end: Callable[[dict[str, Any]], object],
    ) -> None:
        with os.fdopen(self._announce_fd, "rb") as pipe:
            for line in pipe:
                if self.announced is None:
                    announced: dict[str, Any] = json.loads(line)
                    self.announced = announced
                    at_begin(announced)
                else:
                    at_end(self.announced)


_early: list[TorchrunProcess] = []


def start_early(arguments: Sequence[str]) -> None:
    """Start the process if a command line of `headrace` seems to need it."""
    if looks_like_torchruns(arguments):
        _early.append(TorchrunProcess())


def take_or_start() -> TorchrunProcess:
    """Return the process that was started early, or a new one."""
    return _early.pop() if _early else TorchrunProcess()


def discard_early() -> None:
    """End the process that was started early, if it was not needed."""
    while _early:
        _early.pop().discard()


def looks_like_torchruns(arguments: Sequence[str]) -> bool:
    """Whether a command line of `headrace` has flags of torchrun's or of a cluster before a script.

    A wrong guess costs a start of Python, nothing else.
    """
    if not arguments or arguments[0] != "run":
        return False
    flags = []
    for word in arguments[1:]:
        if word.endswith((".py", ".sh")) or word == "-m":
            break
        flags.append(word)
    if {"--dry-run", "--dry_run", "--help"} & set(flags):
        return False
    return any(word.startswith(_FLAGS_OF_TORCHRUN) for word in flags)
