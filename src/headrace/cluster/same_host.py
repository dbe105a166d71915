"""Identity of a host across processes: the kernel's boot id and a marker file."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_MARKER_NAME = ".headrace-mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMarker:
    """A marker that other processes find if they share this machine and its file system."""

    boot: str  # the machine's boot id
    path: str
    content: str  # random


@contextmanager
def host_marker(folder: Path) -> Iterator[HostMarker]:
    """Write a marker file in a folder for the block; raises OSError where that is not writable."""
    path = folder / _MARKER_NAME
    content = secrets.token_hex(8)
    path.write_text(content)
    try:
        yield HostMarker(boot=boot_id(), path=str(path), content=content)
    finally:
        path.unlink(missing_ok=True)


def is_same_host(marker: HostMarker) -> bool:
    """Return whether this process shares the marker's machine and file system."""
    try:
        return marker.boot == boot_id() and Path(marker.path).read_text() == marker.content
    except OSError:
        return False


def boot_id() -> str:
    """Return the kernel's boot id; "" where it has none."""
    try:
        return _BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""
