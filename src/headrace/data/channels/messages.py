"""The messages from the launcher to the sidecars of channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
