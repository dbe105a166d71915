"""What a container may use of its host: CPU quota and memory limit, cgroup version 1 and 2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_NO_LIMIT_BYTES = 1 << 60  # version 1 writes a huge number where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the processes of a job may use together.

    Attributes:
        cores: Cores by affinity and quota; may be a fraction.
        core_numbers: The cores that they may run on.
        memory_bytes: The container's limit, else the host's memory.
        memory_used: File that tells what counts against the limit, in bytes; None: no limit.
        cpu_stat: File that tells how long the quota stopped the processes; None: no quota.
    """

    cores: float
    core_numbers: tuple[int, ...]
    memory_bytes: int
    memory_used: Path | None
    cpu_stat: Path | None


def limits(proc: Path = Path("/proc/self")) -> Limits:
    """Return the limits of this process's control groups; the tightest on the way up counts.

    Args:
        proc: The process as /proc shows it.
    """
    core_numbers = tuple(sorted(os.sched_getaffinity(0)))
    cores, cpu_stat = float(len(core_numbers)), None
    memory_bytes, memory_used = psutil.virtual_memory().total, None
    for group in _groups(proc, "cpu"):
        quota = _quota(group)
        if quota is not None:
            cpu_stat = cpu_stat or group / "cpu.stat"
            cores = min(cores, quota)
    for group in _groups(proc, "memory"):
        limit = _memory_limit(group)
        if limit is not None and limit < memory_bytes:
            memory_bytes = limit
            current = group / "memory.current"
            memory_used = current if current.exists() else group / "memory.usage_in_bytes"
    return Limits(
        cores=cores,
        core_numbers=core_numbers,
        memory_bytes=memory_bytes,
        memory_used=memory_used,
        cpu_stat=cpu_stat,
    )


def _groups(proc: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of a controller's groups that hold the process, from the innermost out."""
    lines = _text(proc / "cgroup").splitlines()
    member = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    for line in _text(proc / "mountinfo").splitlines():
        # A line is: two numbers, device, root, mount point, options - type, source, more options.
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(" ", 2), "", "", ""][:3]
        if kind == "cgroup2":
            paths = [path for number, _, path in member if number == "0"]
        elif kind == "cgroup" and controller in options.split(","):
            paths = [path for _, names, path in member if controller in names.split(",")]
        else:
            continue
        root, mount = before.split()[3:5]
        for path in paths:
            yield from _upward(Path(mount), root, path)


def _upward(mount: Path, root: str, path: str) -> Iterator[Path]:
    # In a container the mount shows its own group as the root, and the path may be the host's.
    inside = path.removeprefix(root) if root != "/" else path
    group = mount / inside.lstrip("/")
    if ".." in group.parts or not group.is_dir():
        group = mount
    while True:
        yield group
        if group == mount:
            return
        group = group.parent


def _quota(group: Path) -> float | None:
    words = _text(group / "cpu.max").split()
    if not words:
        words = [
            _text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
        ]  # version 1
    try:
        quota, period = int(words[0]), int(words[1])
    except (ValueError, IndexError):  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _memory_limit(group: Path) -> int | None:
    text = _text(group / "memory.max") or _text(group / "memory.limit_in_bytes")
    try:
        limit = int(text)
    except ValueError:
        return None
    return limit if 0 < limit < _NO_LIMIT_BYTES else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
