"""The stack sampler: where the thread at work is, up to 50 times a second, with its CPU time.

A thread of the process looks at the other's frames. What it saw counts for the wall time since it
looked last, and for the other's own CPU clock over that time: where a line took wall time and no
CPU, it waited. Native code that holds the interpreter delays a look; the clock, read then, makes up
for it. A thread whose clock stands still is where it was: no frame is looked at.

A thread that wants the interpreter gets it when the other gives it up, and that may be long after
the line it should have seen: by default after 5 ms, or at the next call that releases it, which
would then be blamed for all that came before. So the interpreter is set to switch sooner.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType

from headrace.observe.probe.recording_session import SESSION
from headrace.observe.probe.sampling_rates import SAMPLING_PERIOD_S, SamplingRate
from headrace.records.schema import STACKS

_OFF_S = 0.25  # how often a sampler that is switched off looks whether it is on again
_FLUSH_S = 1.0
_SETTLE_S = 0.2  # `records.recent` counts on it
_SWITCH_S = 0.0002
_USUAL_SWITCH_S = 0.005  # what Python sets; another value is the script's choice
_LONGEST_LOOK_S = 1.0
_LAST_WAIT_S = 10.0  # and the journal likewise: less than a launcher gives at the end
_PROBE_FOLDER = f"{Path(__file__).parent}/"
_MAX_FRAMES = 48
_MAX_STACKS = 512  # different ones in one flush; what comes on top is added up without its lines

PhaseRequest = Callable[[Callable[[str], None]], None]
"""Tells what it is handed, now or later, what the thread does at this moment."""
_Stack = tuple[int | None, ...]  # identity of the code and line, from the innermost frame out


class _Lines:
    """Where a thread is: codes and lines, from the innermost frame out.

    Codes are told apart by identity, and kept so that it stays their own. To hash one takes a look
    at all that is in it, again each time.

    Args:
        frame: The innermost frame.
    """

    __slots__ = ("codes", "stack")

    def __init__(self, frame: FrameType) -> None:
        codes: list[CodeType] = []
        lines: list[int | None] = []
        outer: FrameType | None = frame
        while outer is not None and len(codes) < _MAX_FRAMES:
            codes.append(outer.f_code)
            lines.append(outer.f_lineno)
            outer = outer.f_back
        self.codes = codes
        self.stack: _Stack = (*map(id, codes), *lines)

    def text(self) -> str:
        """Return the lines as they are recorded: those of the probe's hooks left out."""
        lines = self.stack[len(self.codes) :]
        every = list(zip(reversed(self.codes), reversed(lines), strict=True))
        scripts = [each for each in every if not each[0].co_filename.startswith(_PROBE_FOLDER)]
        return "\n".join(
            f"{code.co_filename}:{line or 0}:{code.co_qualname}"  # None: between two lines
            for code, line in scripts or every
        )


class _SampleSums:
    """Where a thread was seen since the last flush, and how often."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, _Stack], tuple[_Lines | None, list[int]]] = {}
        self._texts: dict[_Stack, tuple[_Lines, str]] = {}

    def add(self, lines: _Lines, wall_ns: int, cpu_ns: int, phase: str) -> None:
        """Add a look."""
        found = self._seen.get((phase, lines.stack))
        if found is None:
            if len(self._seen) >= _MAX_STACKS:
                found = self._seen.setdefault((phase, ()), (None, [0, 0, 0]))
            else:
                found = self._seen[phase, lines.stack] = (lines, [0, 0, 0])
        sums = found[1]
        sums[0] += 1
        sums[1] += wall_ns
        sums[2] += min(cpu_ns, wall_ns)

    def flush(self, start_ns: int) -> None:
        """Write what was seen since a moment."""
        seen, self._seen, end_ns = self._seen, {}, time.monotonic_ns()
        for (phase, _), (lines, (samples, wall_ns, cpu_ns)) in list(seen.items()):
            SESSION.write(
                STACKS, os.getpid(), SESSION.rank, SESSION.loader, SESSION.worker, phase,
                "" if lines is None else self._text(lines), start_ns, samples, wall_ns, cpu_ns,
                end_ns,
            )  # fmt: skip

    def _text(self, lines: _Lines) -> str:
        known = self._texts.get(lines.stack)
        if known is not None:
            return known[1]
        text = lines.text()
        if len(self._texts) < 8 * _MAX_STACKS:
            self._texts[lines.stack] = (lines, text)
        return text


class StackSampler(threading.Thread):
    """Samples the thread that makes it, until that or the process ends.

    It sleeps between looks, and is not woken: a wait that can be ended sooner costs more.

    Args:
        ask: Asks what the thread is doing: a phase of a step, or work and idle.
        settle: Called some times a second, and before what was seen is written; answers what was
            asked until then.

    Attributes:
        watched: The thread that is looked at, by its identifier.
        has_thread_ended: Whether that thread has ended.
    """

    def __init__(self, ask: PhaseRequest, settle: Callable[[], None]) -> None:
        super().__init__(name="headrace-stacks", daemon=True)
        self._ask = ask
        self._settle = settle
        self.watched = threading.get_ident()
        self.has_thread_ended = False
        # Of this very thread, now: asking for that of a thread that has ended may crash.
        self._clock = time.pthread_getcpuclockid(self.watched)
        self._turn = threading.Lock()  # of who looks, or writes what was seen
        self._is_told = self._is_over = False
        self._pace = SamplingRate()
        self._seen = _SampleSums()
        self._lines: _Lines | None = None
        self._looked_cpu_ns: int | None = None
        self._looked_ns = self._flushed_ns = self._settled_ns = 0
        self._begin_anew()

    def run(self) -> None:
        """Look until the process ends."""
        pause_s = SAMPLING_PERIOD_S
        try:
            while not self._is_over:
                time.sleep(pause_s)
                with self._turn:
                    if self._is_told:
                        self._end()
                    else:
                        pause_s = self._look()
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("StackSampler", error)

    def stop(self) -> None:
        """Look no more, and write what was seen."""
        self._is_told = True
        if not self._turn.acquire(timeout=_LONGEST_LOOK_S):
            return  # in the middle of a look: it ends after that
        try:
            self._end()
        finally:
            self._turn.release()

    def _look(self) -> float:
        """Look once; return how long to wait until the next time, in seconds."""
        if not SESSION.working:
            self._end()
            return 0.0
        if not SESSION.on:
            self._flush()
            self._was_off = True
            return _OFF_S
        if self._was_off:
            self._begin_anew()
            self._pace.resting()
            return SAMPLING_PERIOD_S
        now_ns, cpu_now_ns = time.monotonic_ns(), self._cpu_ns()
        if cpu_now_ns is None or self._looked_cpu_ns is None:
            self.has_thread_ended = True  # another may have its identifier
            self._end()
            return 0.0
        cpu_ns = cpu_now_ns - self._looked_cpu_ns
        if self._lines is None or cpu_ns:
            self._lines = self._lines_now()
        if self._lines is not None:
            self._ask(partial(self._seen.add, self._lines, now_ns - self._looked_ns, cpu_ns))
        self._looked_ns, self._looked_cpu_ns = now_ns, cpu_now_ns
        self._pace.looked()
        self._settle_and_flush(now_ns)
        self._pace.resting()
        return self._pace.pause_s(deep=SESSION.deep)

    def _settle_and_flush(self, now_ns: int) -> None:
        """Do what is due now and then."""
        if now_ns - self._flushed_ns >= _FLUSH_S * 1e9:
            self._flush()
            self._flushed_ns = self._settled_ns = now_ns
        elif now_ns - self._settled_ns >= _SETTLE_S * 1e9:
            self._settle()
            self._settled_ns = now_ns

    def _begin_anew(self) -> None:
        """Look from now on: what was before is unknown."""
        self._was_off = False
        self._looked_ns = self._flushed_ns = self._settled_ns = time.monotonic_ns()
        self._looked_cpu_ns = self._cpu_ns()
        self._lines = None

    def _lines_now(self) -> _Lines | None:
        frame = sys._current_frames().get(self.watched)  # noqa: SLF001 - the documented way
        return None if frame is None else _Lines(frame)

    def _cpu_ns(self) -> int | None:
        """Return the CPU time of the thread that is looked at; None once it has ended."""
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:
            return None

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._flush()

    def _flush(self) -> None:
        self._settle()
        self._seen.flush(self._flushed_ns)


_RUNNING: list[StackSampler] = []


def start_sampler(ask: PhaseRequest, settle: Callable[[], None] = lambda: None) -> None:
    """Begin to sample this thread, and end the sampling of another, where there is one.

    Args:
        ask: Asks what the thread is doing; see StackSampler.
        settle: Answers what was asked.
    """
    stop_sampler()
    if sys.getswitchinterval() == _USUAL_SWITCH_S:
        sys.setswitchinterval(_SWITCH_S)
    sampler = StackSampler(ask, settle)
    _RUNNING.append(sampler)
    sampler.start()


def is_sampled(thread: int | None = None) -> bool:
    """Whether this process samples a thread, or that one, that has not ended."""
    for sampler in _RUNNING:
        if not sampler.has_thread_ended and (thread is None or thread == sampler.watched):
            return True
    return False


def stop_sampler(*, wait: bool = False) -> None:
    """End the sampling of this process, where there is one, and write what was seen.

    Args:
        wait: Until its thread has ended, too: on a machine that can do so, a pause and a look.
    """
    for sampler in _RUNNING:
        sampler.stop()
        if wait:
            sampler.join(timeout=_LAST_WAIT_S)
    _RUNNING.clear()


# A forked child has the parent's sampler as an object alone: the thread is not there.
os.register_at_fork(after_in_child=_RUNNING.clear)
