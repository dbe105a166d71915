"""The launcher's end of a process beside the script, which brings channels while the job runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

from headrace.core import env
from headrace.core.errors import LaunchError
from headrace.data.copies.request import END, CopyAnswer, CopyRequest
from headrace.launch.channels.holding import holds, holds_no_more
from headrace.launch.told import tell

_LISTING_S = 120.0


class Beside:
    """Such a process. Whatever ends this one ends it.

    Args:
        module: What it runs.
        request: What it is asked for.
    """

    def __init__(self, module: str, request: CopyRequest) -> None:
        self._module = module
        self._request = request
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and ask."""
        # A session of its own: ctrl-C comes to us, and it is to live while the script saves.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", self._module, "--parent", str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env=env.child_environment(),
        )  # fmt: skip
        holds(self._process.pid)
        self.tell(self._request.to_json())

    def start_and_wait(self) -> CopyAnswer:
        """Start it and return its answer, however long that takes.

        Raises:
            UsageError: A channel that cannot be.
            StorageError: One that cannot be read, or the disk cannot take.
            LaunchError: The process has failed.
        """
        self.start()
        assert self._process is not None
        try:
            return self.answer()
        except KeyboardInterrupt:
            self._process.kill()
            self._process.wait()
            tell("\nheadrace: interrupted while channels were copied; what is whole stays\n")
            sys.exit(130)

    def tell(self, line: str) -> None:
        """Tell it something; where it is gone, nobody hears."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(f"{line}\n")
                self._process.stdin.flush()

    def answer(self) -> CopyAnswer:
        """Wait for its answer to what it was told; raises what that says, or LaunchError."""
        answer = self.news()
        if answer is None:
            assert self._process is not None
            raise LaunchError(
                f"The process that brings channels ended with {self._process.wait()}; what it said "
                "is above."
            )
        error = answer.error()
        if error is not None:
            raise error
        return answer

    def news(self) -> CopyAnswer | None:
        """Wait until it says something, and return that; None: it is gone."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return CopyAnswer.from_json(line) if line else None

    def end_with_a_look(self, exit_code: int) -> None:
        """Let it go; where the job was not stopped, once it has told what changed meanwhile."""
        if exit_code < 128:
            self.tell(END)
        if not self.end(_LISTING_S):
            tell("headrace: whether channels changed meanwhile is not known: no answer in time\n")

    def end(self, patience_s: float) -> bool:
        """Let it go; return whether it went in time: it is killed where it did not."""
        process = self._process
        if process is None or process.stdin is None:
            return True
        self._process = None
        holds_no_more(process.pid)
        with suppress(OSError):  # it is gone already
            process.stdin.close()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return False
        return True
