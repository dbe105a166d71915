"""The launcher's end of a channel sidecar, and the registry of running sidecars."""

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
    """Channels that are available until they are ended."""

    def failure(self) -> str | None:
        """Return why the script did not get all their data; None if no failure is known."""

    def end(self, exit_code: int) -> None:
        """End them.

        Args:
            exit_code: The script's exit code.
        """


def sidecar_pids() -> set[int]:
    """Return the children of this process that serve channels until it ends."""
    return set(_SIDECAR_PIDS)


def add_sidecars(*pids: int) -> None:
    """Register sidecars."""
    _SIDECAR_PIDS.update(pids)


def remove_sidecars(*pids: int) -> None:
    """Unregister sidecars."""
    _SIDECAR_PIDS.difference_update(pids)


_LISTING_S = 120.0


class ChannelSidecar:
    """A sidecar process; it ends with this one.

    Args:
        module: The module that it runs.
        request: Its request.
    """

    def __init__(self, module: str, request: ChannelsRequest) -> None:
        self._module = module
        self._request = request
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and send the request."""
        # A session of its own: ctrl-C must not end it while the script saves.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", self._module, "--parent", str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env=env.child_environment(),
        )  # fmt: skip
        add_sidecars(self._process.pid)
        self.send(self._request.to_json())

    def start_and_wait(self) -> ChannelsAnswer:
        """Start it and return its answer; there is no deadline.

        Raises:
            UsageError: An invalid channel.
            StorageError: A channel cannot be read, or stored on the disk.
            LaunchError: The sidecar failed.
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
        """Send it a line; ignored where it has ended."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(f"{line}\n")
                self._process.stdin.flush()

    def answer(self) -> ChannelsAnswer:
        """Wait for its answer; raises the answer's error, or LaunchError where it has ended."""
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
        """Wait for its next line; None where it has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return ChannelsAnswer.from_json(line) if line else None

    def end_with_change_check(self, exit_code: int) -> None:
        """End it; unless the job was stopped, let it report changes first."""
        if exit_code < 128:
            self.send(END)
        if not self.end(_LISTING_S):
            print_status(
                "headrace: whether channels changed meanwhile is not known: no answer in time\n"
            )

    def end(self, patience_s: float) -> bool:
        """End it; return False where it had to be killed."""
        process = self._process
        if process is None or process.stdin is None:
            return True
        self._process = None
        remove_sidecars(process.pid)
        with suppress(OSError):  # it has ended already
            process.stdin.close()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return False
        return True
