"""The file that names the auxiliary hosts to a rank; it is written anew as they come and go."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.core.errors import LaunchError

HOSTS_FILE = "auxiliary-hosts.json"
_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryHost:
    """Where a station listens.

    Attributes:
        name: The host's, for messages.
        address: As ranks reach it.
        port: The station's.
    """

    name: str
    address: str
    port: int


class HostsFileWatcher:
    """Looks at a hosts file now and then.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed_ns = 0
        self._look_s = 0.0

    def news(self, now_s: float) -> HostsFile | None:
        """Return what the file says, where it is time to look and it says something new."""
        if now_s < self._look_s:
            return None
        self._look_s = now_s + _POLL_S
        with suppress(OSError, LaunchError):
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._changed_ns:
                found = HostsFile.read(self._path)
                self._changed_ns = changed_ns
                return found
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsFile:
    """What is in the file.

    Attributes:
        key: The job's, by which stations know its ranks; in hexadecimal digits.
        folder: The job's folder on this host; stations stand in theirs.
        cores: How many cores the hosts have together, those that are not there yet among them.
        strands: Among how many workers on these hosts an iterable dataset is shared, all ranks
            together: the same as long as the job lasts, whoever comes and goes.
        coming: How many more hosts are about to be there.
        hosts: Those that are there.
    """

    key: str
    folder: str
    cores: int
    strands: int = 0
    coming: int = 0
    hosts: tuple[AuxiliaryHost, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, path: Path) -> HostsFile:
        """Return what is in a file; raises LaunchError where it cannot be read."""
        try:
            fields = json.loads(path.read_bytes())
            hosts = tuple(AuxiliaryHost(**each) for each in fields.pop("hosts"))
            return cls(**fields, hosts=hosts)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LaunchError(f"{path} does not tell of auxiliary hosts: {error}.") from error
