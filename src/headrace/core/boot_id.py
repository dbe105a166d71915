"""The kernel's boot id: which machine this is, in which of its lives, whatever it is called.

Containers of one machine have its boot id, and process ids of their own: each is a host.
"""

from __future__ import annotations

from pathlib import Path

_FILE = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


def boot_id() -> str:
    """Return the kernel's boot id; "" where it has none."""
    try:
        return _FILE.read_text().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Return the kernel's name of this process's pid namespace; "" where it is not known."""
    try:
        return str(_PID_NAMESPACE.readlink())
    except OSError:
        return ""


def host_id() -> str:
    """Return what processes have in common whose process ids mean the same to each of them."""
    return f"{boot_id()} {pid_namespace()}".strip()
