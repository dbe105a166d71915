"""The launcher's end of the process that copies channels and holds them while the job runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from headrace.core import env
from headrace.core.errors import LaunchError
from headrace.data.copies.request import END, CopyAnswer, CopyRequest
from headrace.launch.holding import holds, holds_no_more
from headrace.launch.told import tell

_LISTING_S = 120.0  # to look whether anything has changed, at the end


class Copies:
    """Channels that lie on this host until the job ends.

    Args:
        request: Which ones; nothing is copied before `make`.
    """

    def __init__(self, request: CopyRequest) -> None:
        self._request = request
        self._process: subprocess.Popen[str] | None = None

    def make(self) -> Mapping[str, Path]:
        """Copy the channels and return where each one lies.

        It takes as long as that does; each request has a deadline. Whatever ends this process ends
        the copying.

        Raises:
            UsageError: A channel that cannot be.
            StorageError: One that cannot be read, or the disk cannot take.
            LaunchError: The process that copies has failed.
        """
        # A session of its own: ctrl-C comes to us, and it is to live while the script saves.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "headrace.data.copies.process", "--parent",
             str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env=env.child_environment(),
        )  # fmt: skip
        holds(self._process.pid)
        try:
            line = self._ask(self._request.to_json())
        except KeyboardInterrupt:
            self._kill()
            tell("\nheadrace: interrupted while channels were copied; what is whole stays\n")
            sys.exit(130)
        if not line:
            code = self._process.wait()
            raise LaunchError(
                f"The process that copies channels ended with {code}; what it said is above."
            )
        answer = CopyAnswer.from_json(line)
        error = answer.error()
        if error is not None:
            self._process.wait()
            raise error
        return {name: Path(folder) for name, folder in answer.folders.items()}

    def end(self, exit_code: int) -> None:
        """Let the channels go; where the job was not stopped, tell what has changed meanwhile."""
        process = self._process
        if process is None or process.stdin is None:
            return
        self._process = None
        holds_no_more(process.pid)
        with suppress(OSError):  # it is gone already
            if exit_code < 128:
                process.stdin.write(f"{END}\n")
            process.stdin.close()
        try:
            process.wait(_LISTING_S)
        except subprocess.TimeoutExpired:
            tell("headrace: whether channels changed meanwhile is not known: no answer in time\n")
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _ask(self, request: str) -> str:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{request}\n")
            self._process.stdin.flush()
        return self._process.stdout.readline()

    def _kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
