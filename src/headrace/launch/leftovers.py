"""What ranks leave running when they end, such as the data workers of one that was killed.

torchrun signals the ranks that still live, and with each its process group. It passes over the
group of a rank that has died, whose processes would keep memory and ports from the next ranks.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_READ_BYTES = 64 * 1024


class Leftovers:
    """The process groups of the ranks of this host, each led by its rank.

    A rank tells its pid before it becomes the script; see `core.tied`. So what it started is
    found after its death, while a daemon that has left its group stays untouched.
    """

    def __init__(self) -> None:
        self._reading, self.told_through = os.pipe()  # written to by way of /proc
        os.set_blocking(self._reading, False)

    def end(self) -> None:
        """Kill what is left of the ranks started so far; all of them must have ended."""
        for pid in self._told():
            # No process gets the number of a group that is not empty. So where one has it, the
            # group was empty, and this is another's.
            if not _is_process(pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)

    def _told(self) -> list[int]:
        text = b""
        with suppress(BlockingIOError):  # that was all
            while True:
                text += os.read(self._reading, _READ_BYTES)
        return [int(line) for line in text.splitlines()]


def _is_process(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
