"""The launcher's end of the sidecars of channels."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from headrace.core.console import print_status
from headrace.core.errors import LaunchError
from headrace.core.process.sidecar import Sidecar
from headrace.data.channels.messages import END, ChannelsRequest

_LISTING_S = 120.0


class ActiveChannels:
    """Channels that are available until they are ended."""

    def failure(self) -> str | None:
        """Return why the script did not get all their data; None if no failure is known."""
        return None

    def end(self, exit_code: int) -> None:
        """End them, given the script's exit code."""
        raise NotImplementedError


class ChannelSidecar(Sidecar):
    """A sidecar of channels.

    Args:
        module: The module that it runs, below `headrace.data.channels`.
        request: Its request.
    """

    def __init__(self, module: str, request: ChannelsRequest) -> None:
        super().__init__(f"headrace.data.channels.{module}", asdict(request))

    def answer(self) -> dict[str, Any]:
        """Wait for its answer, and return it; there is no deadline.

        Raises:
            UsageError: An invalid channel.
            StorageError: A channel cannot be read, or stored on the disk.
            LaunchError: The sidecar failed.
        """
        try:
            answer = self.receive()
        except KeyboardInterrupt:
            self.kill()
            print_status(
                "\nheadrace: interrupted while channels were copied; what is whole stays\n"
            )
            sys.exit(130)
        if answer is None:
            raise LaunchError(
                f"The process that brings channels ended with {self.wait()}; what it said is above."
            )
        return answer

    def end_with_change_check(self, exit_code: int) -> None:
        """End it; unless the job was stopped, let it report changes first."""
        if self.end(END if exit_code < 128 else None, patience_s=_LISTING_S) is None:
            print_status(
                "headrace: whether channels changed meanwhile is not known: no answer in time\n"
            )
