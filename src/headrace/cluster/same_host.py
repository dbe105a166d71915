"""Whether two processes see one machine and one file system: boot id and marker file."""

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
    """What a process leaves for others to find.

    Attributes:
        boot: Names the machine, since it was started.
        path: A file.
        content: What is in it.
    """

    boot: str
    path: str
    content: str


@contextmanager
def host_marker(folder: Path) -> Iterator[HostMarker]:
    """Leave a mark in a folder of this machine meanwhile; OSError where that cannot be written."""
    path = folder / _MARKER_NAME
    content = secrets.token_hex(8)
    path.write_text(content)
    try:
        yield HostMarker(boot=boot_id(), path=str(path), content=content)
    finally:
        path.unlink(missing_ok=True)


def is_same_host(mark: HostMarker) -> bool:
    """Tell whether this process runs where the mark was left: a container beside it does not."""
    try:
        return mark.boot == boot_id() and Path(mark.path).read_text() == mark.content
    except OSError:
        return False


def boot_id() -> str:
    """Return what names this machine, since it was started; "" where nothing does."""
    try:
        return _BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""
