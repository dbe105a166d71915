"""Messages between the launcher and the sidecars of channels: requests and answers as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.core import errors
from headrace.core.errors import HeadraceError, StorageError

END = "end"
"""What the copying process is told when the job has ended."""
SERVE = "serve"
"""What the process of pipes is told when their folder is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRequest:
    """A channel that is to lie on this host.

    Attributes:
        name: What it is called.
        url: Where its objects are; never printed as it is.
        folder: The folder of the cache in which its copy lies; of a channel in pipes, theirs.
        number: Which share of them this host gets, from 0 on.
        of: How many shares there are.
    """

    name: str
    url: str
    folder: str
    number: int = 0
    of: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelsRequest:
    """Channels, and how much they may take.

    Attributes:
        channels: All of them.
        limit_bytes: How much each cache may hold; None: what the disk does.
    """

    channels: tuple[ChannelRequest, ...]
    limit_bytes: int | None = None

    def to_json(self) -> str:
        """Return one line that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ChannelsRequest:
        """Return the request that `to_json` told."""
        told: dict[str, Any] = json.loads(text)
        channels = tuple(ChannelRequest(**each) for each in told["channels"])
        return cls(**{**told, "channels": channels})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelsAnswer:
    """What came of a request.

    Attributes:
        folders: Where each channel lies, by its name; nothing of pipes.
        kind: The error's class where it failed; None: it did not.
        message: What the error says.
    """

    folders: Mapping[str, str]
    kind: str | None = None
    message: str = ""

    def to_json(self) -> str:
        """Return one line that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ChannelsAnswer:
        """Return the answer that `to_json` told."""
        return cls(**json.loads(text))

    @classmethod
    def of(cls, error: HeadraceError) -> ChannelsAnswer:
        """Return the answer that tells an error."""
        return cls(folders={}, kind=type(error).__name__, message=str(error))

    def error(self) -> HeadraceError | None:
        """Return the error that it tells; None: it did not fail."""
        if self.kind is None:
            return None
        kind = getattr(errors, self.kind, StorageError)
        return kind(self.message) if issubclass(kind, HeadraceError) else StorageError(self.message)
