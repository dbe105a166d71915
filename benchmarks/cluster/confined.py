"""Cores of an emulated host: its processes on one core of this machine, for a share of the time.

By cgroups (version 1, as root): a group's quota of CPU time and its core. What a process starts
later is confined with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_SERVER = "headrace.offload.server"


def _runs(command: list[str], script: str) -> bool:
    """Whether a command line is that of a rank."""
    of_headrace = any("headrace." in each for each in command)
    return not of_headrace and any(each.endswith(script) for each in command)


class Cell:
    """Confines processes.

    Args:
        name: Of its cgroups.
        core: The core that they may use.
        share: The share of its time, 0 to 1.
    """

    def __init__(self, name: str, core: int, share: float) -> None:
        self._folders = [_CGROUPS / kind / name for kind in ("cpu", "cpuset")]
        try:
            for folder in self._folders:
                folder.mkdir()
            cpu, cpuset = self._folders
            (cpu / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (cpu / "cpu.cfs_quota_us").write_text(str(round(_PERIOD_US * share)))
            (cpuset / "cpuset.mems").write_text("0")
            (cpuset / "cpuset.cpus").write_text(str(core))
        except OSError as error:
            self.close()
            raise SystemExit(f"This needs root, and cgroups of version 1: {error}.") from None

    def put(self, process: psutil.Process) -> None:
        """Confine a process, and all that it has started."""
        with suppress(psutil.NoSuchProcess):
            for each in [process, *process.children(recursive=True)]:
                with suppress(ProcessLookupError):
                    for folder in self._folders:
                        (folder / "cgroup.procs").write_text(str(each.pid))

    def close(self) -> None:
        """Remove it; what was in it has ended, or is let go."""
        for folder in self._folders:
            with suppress(OSError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    with suppress(ProcessLookupError):
                        (folder.parent / "cgroup.procs").write_text(pid)
                folder.rmdir()


@contextmanager
def confining(share_here: float, script: str) -> Iterator[Callable[[], None]]:
    """Give what confines a job: its ranks to a share of core 0, servers to core 1, all of it.

    Args:
        share_here: The share, 0 to 1.
        script: The name of the script that ranks run.
    """
    local, auxiliary = (
        Cell(f"headrace-bench-{os.getpid()}-{name}", core, share)
        for name, core, share in (("local", 0, share_here), ("auxiliary", 1, 1.0))
    )

    def confine() -> None:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                command = process.cmdline()
                if _SERVER in command:
                    auxiliary.put(process)
                elif _runs(command, script):
                    local.put(process)

    try:
        yield confine
    finally:
        local.close()
        auxiliary.close()
