"""The control groups of a process, version 1 and 2: the cores and the memory that they leave it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def cpu_quota(proc: Path) -> float | None:
    """Return the cores that a process's control groups allow, by its folder in /proc; None: all."""
    quotas = [group_quota(group) for group in control_groups(proc, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def group_quota(group: Path) -> float | None:
    """Return the cores that one control group allows; None: all."""
    words = text_of(group / "cpu.max").split()
    if not words:
        # version 1
        words = [text_of(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    try:
        quota, period = int(words[0]), int(words[1])
    except (ValueError, IndexError):  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def memory_left(proc: Path) -> int | None:
    """Return the bytes that a process's control groups leave it, by its folder in /proc.

    None: they set no limit.
    """
    left = [_group_memory_left(group) for group in control_groups(proc, "memory")]
    return min((each for each in left if each is not None), default=None)


def _group_memory_left(group: Path) -> int | None:
    """Return the bytes that one control group leaves; None: it sets no limit.

    What it has read of files counts as left: the kernel keeps that only while nobody needs room.
    """
    limit = _number_in(group / "memory.max", group / "memory.limit_in_bytes")
    used = _number_in(group / "memory.current", group / "memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    words = text_of(group / "memory.stat").split()
    statistics = dict(zip(words[::2], words[1::2], strict=False))
    for name in ("active_file", "inactive_file"):
        # In version 1 those of a group alone, and `total_` those of the groups in it, too.
        used -= int(statistics.get(f"total_{name}", statistics.get(name, "0")))
    return max(limit - used, 0)


def _number_in(*files: Path) -> int | None:
    """Return the number in the first of some files that holds one; None: none does."""
    texts = (text_of(file).strip() for file in files)
    return next((int(text) for text in texts if text.isdecimal()), None)


def control_groups(proc: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of a controller's groups that hold the process, innermost first."""
    lines = text_of(proc / "cgroup").splitlines()
    groups = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    for line in text_of(proc / "mountinfo").splitlines():
        # A line is: two numbers, device, root, mount point, options - type, source, more options.
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(" ", 2), "", "", ""][:3]
        if kind == "cgroup2":
            paths = [path for number, _, path in groups if number == "0"]
        elif kind == "cgroup" and controller in options.split(","):
            paths = [path for _, names, path in groups if controller in names.split(",")]
        else:
            continue
        root, mount = before.split()[3:5]
        for path in paths:
            yield from _upward(Path(mount), root, path)


def _upward(mount: Path, root: str, path: str) -> Iterator[Path]:
    # In a container the mount's root is its own group, while the path may be the host's.
    inside = path.removeprefix(root) if root != "/" else path
    group = mount / inside.lstrip("/")
    if ".." in group.parts or not group.is_dir():
        group = mount
    while True:
        yield group
        if group == mount:
            return
        group = group.parent


def text_of(path: Path) -> str:
    """Return a file's text; "" where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
