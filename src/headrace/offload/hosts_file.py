"""The file that names the auxiliary hosts to a rank, rewritten as they come and go."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.core.errors import LaunchError

_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryHost:
    """The address of an offload server, and its host's name for messages."""

    name: str
    address: str
    port: int


class HostsFileWatcher:
    """A hosts file that is read again when it has changed, checked once a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed_ns = 0
        self._next_poll_s = 0.0

    def news(self, now_s: float) -> HostsFile | None:
        """Return the file's content if it has changed, else None."""
        if now_s < self._next_poll_s:
            return None
        self._next_poll_s = now_s + _POLL_S
        with suppress(OSError, LaunchError):
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._changed_ns:
                content = HostsFile.read(self._path)
                self._changed_ns = changed_ns
                return content
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsFile:
    """The content of a hosts file."""

    key: str  # by which servers and ranks authenticate, in hexadecimal digits
    folder: str  # of the job on the rank's host; servers work in their copies of it
    cores: int  # of all hosts, including those whose server is not up yet
    # Partitions of an iterable dataset for these hosts, over all ranks: the same as long as the job
    # lasts, whichever hosts come and go.
    strands: int = 0
    coming: int = 0  # number of servers that are starting up
    hosts: tuple[AuxiliaryHost, ...] = ()  # servers that are up

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, path: Path) -> HostsFile:
        """Return the content of a file; raises LaunchError where it cannot be read."""
        try:
            fields = json.loads(path.read_bytes())
            hosts = tuple(AuxiliaryHost(**each) for each in fields.pop("hosts"))
            return cls(**fields, hosts=hosts)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LaunchError(f"{path} does not tell of auxiliary hosts: {error}.") from error
