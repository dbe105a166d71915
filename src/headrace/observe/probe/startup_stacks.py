"""Where a script is before it asks for its first batch: a sample a second at most, once it is late.

The stack sampler starts with the first request for a batch. A script that hangs before that, as in
a dataset's constructor, in `init_process_group`, in a barrier or while a model is made, has no
other record. Samples are written once a process has imported torch for ten seconds and not begun to
train; a quick start leaves none. They go to a ring of their own, as it is not known yet whether
this process will be a rank: several may be about to, and of these each tells its own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress

from headrace.core.source_location import code_folders
from headrace.observe.probe.probe_thread import ProbeThread
from headrace.observe.probe.recording_session import SESSION, folder_rows, guarded
from headrace.observe.probe.thread_stack import ThreadStack
from headrace.records.layout import RINGS
from headrace.records.ring import SUFFIX, RingWriter
from headrace.records.schema import CODE_FOLDERS, STARTUP_STACKS

_QUICK_START_S = 10.0
_SHORTEST_PERIOD_S, _LONGEST_PERIOD_S, _PERIOD_SHARE = 1.0, 30.0, 1 / 60
"""A sample a second in the first minute, then fewer: a process may run for days and never train."""
_ENDS_S = 1.0  # a thread that waits for what the one that forks holds is left


class StartupSampler:
    """Samples the main thread of this process until the stack sampler does.

    No thread of it lives while the process forks: a forked child of several threads may deadlock,
    and Python warns of it.
    """

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._is_over = False
        self._wakes = threading.Event()
        self._thread: ProbeThread | None = None
        self._waiting: list[tuple[float | str, ...]] = []  # rows, until the start is late
        self._writer: RingWriter | None = None
        self._written_folders: set[tuple[str, str]] = set()
        self._main = threading.main_thread().ident or 0
        self._clock = time.pthread_getcpuclockid(self._main)
        self._last_ns, self._last_cpu_ns = time.monotonic_ns(), time.clock_gettime_ns(self._clock)

    @guarded
    def resume(self) -> None:
        """Start sampling, or go on after a fork."""
        if self._is_over or self._thread is not None or not threading.main_thread().is_alive():
            return
        self._wakes.clear()
        thread = ProbeThread()
        thread.start(self._run)
        self._thread = thread

    def pause(self) -> None:
        """Have the thread end, and wait for it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._wakes.set()
            thread.join(timeout=_ENDS_S)

    def forked(self) -> None:
        """Do nothing more in a forked child: its parent is sampled."""
        self._is_over, self._writer = True, None

    @guarded
    def end(self) -> None:
        """Stop sampling: this process trains now, or ends."""
        if self._is_over:
            return
        self._is_over = True
        self.pause()
        if self._writer is not None:  # an empty stack: nothing is open any more
            now_ns = time.monotonic_ns()
            self._write("", now_ns, 0, 0, 0, now_ns)
            self._writer.close()

    def _run(self) -> None:
        wakes = self._wakes
        with suppress(Exception):  # the script must not feel it
            while not wakes.wait(self._period_s()) and SESSION.role == "rank":
                if SESSION.on and not SESSION.is_claimed_by_another:
                    self._take_sample()

    def _period_s(self) -> float:
        period_s = (time.monotonic() - self._began_s) * _PERIOD_SHARE
        return min(max(period_s, _SHORTEST_PERIOD_S), _LONGEST_PERIOD_S)

    def _take_sample(self) -> None:
        frame = sys._current_frames().get(self._main)  # noqa: SLF001 - documented
        if frame is None:
            return
        now_ns, cpu_ns = time.monotonic_ns(), time.clock_gettime_ns(self._clock)
        text = ThreadStack(frame).text()
        del frame  # else what it holds lives on here
        wall_ns, spent_ns = now_ns - self._last_ns, cpu_ns - self._last_cpu_ns
        row = (text, self._last_ns, 1, wall_ns, min(spent_ns, wall_ns), now_ns)
        self._last_ns, self._last_cpu_ns = now_ns, cpu_ns
        self._waiting.append(row)
        if time.monotonic() - self._began_s < _QUICK_START_S:
            return
        if self._writer is None:
            name = f"{os.uname().nodename}-{os.getpid()}-{now_ns}-start{SUFFIX}"
            self._writer = RingWriter(SESSION.folder / RINGS / name)
        for folder in folder_rows(code_folders()):
            if folder not in self._written_folders:
                self._written_folders.add(folder)
                self._writer.write(CODE_FOLDERS, SESSION.rank, *folder)
        while self._waiting:
            self._write(*self._waiting.pop(0))

    def _write(self, *stack_and_times: float | str) -> None:
        assert self._writer is not None
        known = os.getpid(), SESSION.rank, -1, -1, "start"
        self._writer.write(STARTUP_STACKS, *known, *stack_and_times)


STARTUP_SAMPLER = StartupSampler()
os.register_at_fork(
    before=STARTUP_SAMPLER.pause,
    after_in_parent=STARTUP_SAMPLER.resume,
    after_in_child=STARTUP_SAMPLER.forked,
)
