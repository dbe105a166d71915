"""The messages between the launcher and the sidecars of channels: requests and answers as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.core import errors
from headrace.core.errors import HeadraceError, StorageError

END = "end"
"""The command to a sidecar when the job has ended."""
SERVE = "serve"
"""The command to the sidecar of pipes when their folder exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRequest:
    """A channel that is needed on this host.

    Attributes:
        name: The channel's name.
        url: The URL of its objects; may contain secrets.
        folder: The cache folder of its copy; for a channel in pipes, the pipes' folder.
        number: The share of its objects for this host, from 0 on.
        of: The number of shares.
    """

    name: str
    url: str
    folder: str
    number: int = 0
    of: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelsRequest:
    """Channels, and the space for them.

    Attributes:
        channels: The channels.
        limit_bytes: Limit of each cache; None for the disk's.
    """

    channels: tuple[ChannelRequest, ...]
    limit_bytes: int | None = None

    def to_json(self) -> str:
        """Return one line that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ChannelsRequest:
        """Return the request that `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        channels = tuple(ChannelRequest(**each) for each in fields["channels"])
        return cls(**{**fields, "channels": channels})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelsAnswer:
    """The answer to a request.

    Attributes:
        folders: The folder of each channel, by name; empty for pipes.
        kind: The class name of the error; None if there was none.
        message: The error's message.
    """

    folders: Mapping[str, str]
    kind: str | None = None
    message: str = ""

    def to_json(self) -> str:
        """Return one line that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ChannelsAnswer:
        """Return the answer that `to_json` wrote."""
        return cls(**json.loads(text))

    @classmethod
    def of(cls, error: HeadraceError) -> ChannelsAnswer:
        """Return the answer for an error."""
        return cls(folders={}, kind=type(error).__name__, message=str(error))

    def error(self) -> HeadraceError | None:
        """Return the error; None if there was none."""
        if self.kind is None:
            return None
        kind = getattr(errors, self.kind, StorageError)
        return kind(self.message) if issubclass(kind, HeadraceError) else StorageError(self.message)
