"""The process that collects an attempt's records, and another where that is killed.

What the job writes meanwhile waits in its rings, which hold some seconds of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from headrace.core import env
from headrace.launch.failure import describe_end
from headrace.launch.told import tell

_CLOSE_S = 60.0
_MOST_STARTS = 10


class Collecting:
    """The collecting process of one attempt, from now on.

    Args:
        records: The attempt's records folder.
        attempt: The attempt's number.
    """

    def __init__(self, records: Path, attempt: int) -> None:
        self._records, self._attempt = records, attempt
        # As it is now: later that of torchrun's process is changed, for the ranks.
        self._environment = env.child_environment({})
        self._turn = threading.Lock()  # of who decides whether there is another
        self._is_over = False
        self._process = self._start()
        threading.Thread(target=self._watch, name="headrace-collecting", daemon=True).start()

    def finish(self) -> None:
        """Have the records closed; where that takes too long, they are read as they are."""
        with self._turn:
            self._is_over = True
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=_CLOSE_S)
        except subprocess.TimeoutExpired:
            tell(f"headrace: the records in {self._records} are not closed yet\n")

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                sys.executable, "-P", "-m", "headrace.observe.probe.host",
                "--folder", str(self._records), "--attempt", str(self._attempt),
                "--parent", str(os.getpid()),
            ],
            stdin=subprocess.PIPE,
            env=self._environment,
            # What ends the job by its process group or terminal must not end the records.
            start_new_session=True,
        )  # fmt: skip

    def _watch(self) -> None:
        """Start another for each that is killed: by the kernel, say, which wanted its memory."""
        for starts_left in reversed(range(_MOST_STARTS)):
            returncode = self._process.wait()
            with self._turn:  # nothing is told meanwhile: a terminal may stand still
                if self._is_over or returncode >= 0:  # one that ends by itself has said why
                    return
                follows = starts_left > 0 and self._start_another()
            said = f"headrace: the process that collects records was {describe_end(returncode)}"
            if not follows:
                tell(f"{said}; what the job does from now on is not recorded\n")
                return
            tell(f"{said}; another takes over\n")

    def _start_another(self) -> bool:
        try:
            self._process = self._start()
        except OSError:  # no memory for it either
            return False
        return True
