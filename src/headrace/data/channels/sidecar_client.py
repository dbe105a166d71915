"""The sidecars of channels: what they are asked for, and the launcher's end of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.core.console import print_status, write_status
from headrace.core.errors import LaunchError
from headrace.core.process.sidecar import SILENCE_S, Sidecar

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
    """A sidecar of channels; it runs a module below `headrace.data.channels`."""

    def __init__(self, module: str, request: ChannelsRequest) -> None:
        super().__init__(f"headrace.data.channels.{module}", asdict(request))

    def answer(self) -> dict[str, Any]:
        """Wait for its answer, and return it; a copy takes as long as it takes.

        UsageError: an invalid channel. StorageError: one cannot be read, or stored on the disk.
        LaunchError: the sidecar failed, or sent not even a heartbeat for two minutes.
        """
        try:
            answer = self.receive(SILENCE_S)
        except TimeoutError as silence:
            self.kill()
            raise LaunchError(
                f"The process that brings channels does not answer: {silence}. It was killed; "
                "what is whole stays. Was it stopped, or is this host out of memory? Start the job "
                "again."
            ) from None
        except KeyboardInterrupt:
            self.kill()
            write_status(
                "\nheadrace: interrupted while channels were copied; what is whole stays\n"
            )
            sys.exit(130)
        if answer is None:
            raise LaunchError(
                f"The process that brings channels has ended ({self.last_words()}); what it said "
                "is above."
            )
        return answer

    def end_with_change_check(self, exit_code: int) -> None:
        """End it; unless the job was stopped, let it report changes first."""
        if self.end(END if exit_code < 128 else None, patience_s=_LISTING_S) is None:
            print_status("whether channels changed meanwhile is not known: no answer in time")


END = {"job": "ended"}
"""The message to a sidecar when the job has ended."""
SERVE = {"pipes": "serve"}
"""The message to the sidecar of pipes when their folder exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRequest:
    """A channel that is needed on this host."""

    name: str
    url: str  # of its objects; may contain secrets
    folder: str  # the cache folder of its copy; for a channel in pipes, the pipes' folder
    number: int = 0  # the share of its objects for this host, from 0 on
    of: int = 1  # the number of shares


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelsRequest:
    """Channels, and the space for them."""

    channels: tuple[ChannelRequest, ...]
    limit_bytes: int | None = None  # of each cache; None for the disk's

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ChannelsRequest:
        """Return the request of which `dataclasses.asdict` made a JSON object."""
        channels = tuple(ChannelRequest(**each) for each in fields["channels"])
        return cls(channels=channels, limit_bytes=fields["limit_bytes"])
