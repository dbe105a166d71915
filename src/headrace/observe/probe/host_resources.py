"""What a host has for a job: limits of the control groups, its own disks and network cards.

The limits are the CPU quota and memory limit of the control groups, version 1 and 2.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

from headrace.core.cgroups import control_groups, group_quota, text_of

_NO_LIMIT_BYTES = 1 << 60  # version 1 has a huge number where there is no limit


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """What the processes of a job may use together."""

    cores: float  # by affinity and quota; may be a fraction
    core_numbers: tuple[int, ...]
    memory_bytes: int  # the container's limit, or else the host's memory
    memory_used: Path | None  # file with the bytes that count against the limit; None: no limit
    cpu_stat: Path | None  # file with the time for which the quota stopped them; None: no quota
    cpu_pressure: Path | None  # file with the time in which any lacked a core; None: not measured


def read_limits(host_memory_bytes: int, proc: Path = Path("/proc/self")) -> ResourceLimits:
    """Return the limits of this process's control groups: the tightest of all levels."""
    core_numbers = tuple(sorted(os.sched_getaffinity(0)))
    cores, cpu_stat = float(len(core_numbers)), None
    memory_bytes, memory_used = host_memory_bytes, None
    for group in control_groups(proc, "cpu"):
        quota = group_quota(group)
        if quota is not None:
            cpu_stat = cpu_stat or group / "cpu.stat"
            cores = min(cores, quota)
    for group in control_groups(proc, "memory"):
        limit = _memory_limit(group)
        if limit is not None and limit < memory_bytes:
            memory_bytes = limit
            current = group / "memory.current"
            memory_used = current if current.exists() else group / "memory.usage_in_bytes"
    return ResourceLimits(
        cores, core_numbers, memory_bytes, memory_used, cpu_stat, _cpu_pressure_file(proc)
    )


def _cpu_pressure_file(proc: Path) -> Path | None:
    """Return the pressure file of the innermost control group, or else of the host.

    See Documentation/accounting/psi.rst of Linux; a kernel may be built or booted without it.
    """
    files = [group / "cpu.pressure" for group in control_groups(proc, "cpu")]
    host = proc.parent / "pressure/cpu"
    return next((file for file in (*files, host) if text_of(file).startswith("some ")), None)


def pressure_ns(file: Path | None) -> int:
    """Return the time so far in which some thread waited for a core, by a pressure file."""
    first = "" if file is None else text_of(file).partition("\n")[0]
    total_us = first.rpartition("total=")[2]
    return int(total_us) * 1000 if total_us.isdecimal() else 0


def _memory_limit(group: Path) -> int | None:
    text = text_of(group / "memory.max") or text_of(group / "memory.limit_in_bytes")
    try:
        limit = int(text)
    except ValueError:
        return None
    return limit if 0 < limit < _NO_LIMIT_BYTES else None


_ETHERNET = 1  # ARPHRD_ETHER
_VIRTUAL_DISKS = ("loop", "zram", "ram")  # files, and memory


@functools.cache
def is_disk(name: str, block: Path = Path("/sys/block")) -> bool:
    """Return whether it is a whole physical disk: no partition, and not built on other disks."""
    disk = block / name.replace("/", "!")
    if not disk.exists() or name.startswith(_VIRTUAL_DISKS):
        return False
    return not any((disk / "slaves").glob("*"))  # volumes, RAID and encryption have them


@functools.lru_cache(maxsize=8)
def own_interfaces(
    names: tuple[str, ...],
    net: Path = Path("/sys/class/net"),
    routes: Path = Path("/proc/net/route"),
) -> tuple[str, ...]:
    """Return the interfaces through which bytes leave the host; all, if that is unknown.

    A bond, bridge or tunnel counts the bytes of its cards again. A container has no card: there,
    the Ethernet of the default route counts.
    """
    cards = [
        name
        for name in names
        if (net / name / "device").exists()
        or (name in _default_routes(routes) and _is_ethernet(net / name))
    ]
    return tuple(cards or names)


def _default_routes(routes: Path) -> set[str]:
    try:
        lines = [line.split() for line in routes.read_text().splitlines()[1:]]
        return {name for name, destination, *_ in lines if int(destination, 16) == 0}
    except (OSError, ValueError):
        return set()


def _is_ethernet(interface: Path) -> bool:
    """Return whether it is Ethernet that leads out of a container and is built on no other."""
    try:
        kind, number, other_end = (
            int((interface / name).read_text()) for name in ("type", "ifindex", "iflink")
        )
    except (OSError, ValueError):
        return False
    return kind == _ETHERNET and number != other_end and not any(interface.glob("lower_*"))
