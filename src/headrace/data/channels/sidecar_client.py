"""The launcher's end of a channel sidecar, and the sidecars that run until the job ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Protocol

from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import LaunchError
from headrace.data.channels.messages import END, ChannelsAnswer, ChannelsRequest

_SIDECAR_PIDS: set[int] = set()


class ActiveChannels(Protocol):
    """Channels that are there until they are let go."""

    def failure(self) -> str | None:
        """Return why the script did not get all of them; None: nothing is known of that."""

    def end(self, exit_code: int) -> None:
        """Let them go.

        Args:
            exit_code: How the script ended.
        """


def sidecar_pids() -> set[int]:
    """Return this process's children that hold channels until it ends."""
    return set(_SIDECAR_PIDS)


def add_sidecars(*pids: int) -> None:
    """Note children that do."""
    _SIDECAR_PIDS.update(pids)


def remove_sidecars(*pids: int) -> None:
    """Forget children that did."""
    _SIDECAR_PIDS.difference_update(pids)


_LISTING_S = 120.0


class ChannelSidecar:
    """Such a process. Whatever ends this one ends it.

    Args:
        module: What it runs.
        request: What it is asked for.
    """

    def __init__(self, module: str, request: ChannelsRequest) -> None:
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
        add_sidecars(self._process.pid)
        self.send(self._request.to_json())

    def start_and_wait(self) -> ChannelsAnswer:
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
            print_status(
                "\nheadrace: interrupted while channels were copied; what is whole stays\n"
            )
            sys.exit(130)

    def send(self, line: str) -> None:
        """Tell it something; where it is gone, nobody hears."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(f"{line}\n")
                self._process.stdin.flush()

    def answer(self) -> ChannelsAnswer:
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

    def news(self) -> ChannelsAnswer | None:
        """Wait until it says something, and return that; None: it is gone."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return ChannelsAnswer.from_json(line) if line else None

    def end_with_change_check(self, exit_code: int) -> None:
        """Let it go; where the job was not stopped, once it has told what changed meanwhile."""
        if exit_code < 128:
            self.send(END)
        if not self.end(_LISTING_S):
            print_status(
                "headrace: whether channels changed meanwhile is not known: no answer in time\n"
            )

    def end(self, patience_s: float) -> bool:
        """Let it go; return whether it went in time: it is killed where it did not."""
        process = self._process
        if process is None or process.stdin is None:
            return True
        self._process = None
        remove_sidecars(process.pid)
        with suppress(OSError):  # it is gone already
            process.stdin.close()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return False
        return True
