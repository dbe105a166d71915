"""The sidecar that kills what ranks leave in their process groups, once its parent is gone.

A rank gets a parent-death signal where the process that started it is killed. Its workers get none:
one that waits for a lock or a read would stay, and hold memory, ports and a GPU. Each rank writes
its pid, which is its group's number, to this program's input; that ends with the parent. The parent
writes which groups it has killed itself, as it does before ranks are restarted: some hours later,
other processes may have these numbers.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from headrace.core.process.sidecar import SidecarParent, run_sidecar

_KILLED_S, _POLL_S = 10.0, 0.01
"""A process in an uninterruptible read is left after that."""


def main(parent: SidecarParent) -> None:
    """Read ranks' pids until the parent is gone, and kill their groups."""
    started: dict[int, str] = {}
    while (message := parent.read()) is not None:
        for pid in message.get("ended", ()):
            started.pop(pid, None)
        if "pid" in message:
            started[message["pid"]] = _start_time(message["pid"])
    groups = set(started)
    deadline = time.monotonic() + _KILLED_S
    while groups and time.monotonic() < deadline:
        groups = {pid for pid in groups if _kill_group(pid, started[pid])}
        time.sleep(_POLL_S)


def _start_time(pid: int) -> str:
    """Return when a process was started, in ticks; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _kill_group(leader: int, started: str) -> bool:
    """Kill the process group that a rank led; return whether there was any of it.

    The kernel never reuses the id of a non-empty group as a pid: where another process has it, the
    rank's group is empty.
    """
    if _start_time(leader) not in ("", started):
        return False
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
        return True
    return False


if __name__ == "__main__":
    run_sidecar(main, dies_by=None)
