"""The kernel's boot id: which machine this is, in which of its lives, whatever it is called."""

from __future__ import annotations

from pathlib import Path

_FILE = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the kernel's boot id; "" where it has none."""
    try:
        return _FILE.read_text().strip()
    except OSError:
        return ""
