"""The stack sampler: where the working thread is, about 50 times a second, with its CPU time.

A sampler thread reads the frames of the thread that works. A sample counts for the wall time since
the last one, and for the working thread's CPU time in it: a line with wall time and no CPU time was
waiting. Native code that holds the interpreter delays a sample; the CPU clock, read afterwards,
makes up for it. If that clock stands still, the thread has not moved, and no frame is read.

A thread that wants the interpreter lock gets it when the other gives it up: by default after 5 ms,
or at its next call that releases it, which would then be blamed for the time of all lines before.
So the interpreter's switch interval is made shorter.

A sample takes ten microseconds where the code is in the processor's caches, and up to twenty times
as long where it is not, as always when all cores are busy. So the cost of samples is measured, and
their rate is as high as a share of the time allows.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from headrace.observe.probe.probe_thread import ProbeThread
from headrace.observe.probe.recording_session import SESSION
from headrace.observe.probe.slow_steps import SlowStepSamples
from headrace.observe.probe.startup_stacks import STARTUP_SAMPLER
from headrace.observe.probe.thread_stack import StackKey, StackTexts, ThreadStack
from headrace.observe.probe.timing_rates import SAMPLING_PERIOD_S, SamplingRate
from headrace.records.schema import SLOW_STEP_STACKS, STACKS, Table

_OFF_S = 0.25  # how often a sampler that is switched off checks the switch
_FLUSH_S = 1.0
_SETTLE_S = 0.2  # `records.recent` counts on it
_SWITCH_S = 0.0002
_USUAL_SWITCH_S = 0.005  # Python's default; another value is the script's choice
_LONGEST_SAMPLE_S = 1.0
_LAST_WAIT_S = 10.0  # less than the launcher waits at the end; the event log waits as long
_MAX_STACKS = 512  # distinct ones in one flush; more are summed without their lines

PhaseRequest = Callable[[Callable[[str], None]], None]
"""Calls its argument, now or later, with what the thread does at this moment."""


class _SampleSums:
    """Sums of the samples since the last flush, by phase and stack, for a table of stacks."""

    def __init__(self, table: Table, texts: StackTexts) -> None:
        self._table = table
        self._seen: dict[tuple[str, StackKey], tuple[ThreadStack | None, list[int]]] = {}
        self._texts = texts

    def add(self, lines: ThreadStack, wall_ns: int, cpu_ns: int, phase: str) -> None:
        """Add a sample."""
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
        """Write the sums since `start_ns`."""
        seen, self._seen, end_ns = self._seen, {}, time.monotonic_ns()
        for (phase, _), (lines, (samples, wall_ns, cpu_ns)) in list(seen.items()):
            SESSION.write(
                self._table, os.getpid(), SESSION.rank, SESSION.loader, SESSION.worker, phase,
                "" if lines is None else self._texts.of(lines), start_ns, samples, wall_ns, cpu_ns,
                end_ns,
            )  # fmt: skip


class StackSampler:
    """Samples the thread that creates it (`watched`), until that thread or the process ends.

    It sleeps between samples and cannot be woken: a wait that can be interrupted costs more. What
    the thread does is a phase of a step, "work" or "idle". `settle`, called a few times a second
    and before sums are written, answers the requests for it. `slow_steps` is told of each sample,
    and keeps those of a rank's slow steps.
    """

    def __init__(
        self,
        request_phase: PhaseRequest,
        settle: Callable[[], object],
        slow_steps: SlowStepSamples | None,
    ) -> None:
        self._thread = ProbeThread()
        self._request_phase = request_phase
        self._settle = settle
        self.watched = threading.get_ident()
        self.has_thread_ended = False
        # Taken in this thread, now: for a thread that has ended the call may crash.
        self._clock = time.pthread_getcpuclockid(self.watched)
        self._sampling_lock = threading.Lock()  # held while sampling or writing
        self._is_stopping = self._is_over = False
        self._rate = SamplingRate()
        texts = StackTexts()
        self._sums = _SampleSums(STACKS, texts)
        self._slow_sums = _SampleSums(SLOW_STEP_STACKS, texts)
        self._slow_steps = slow_steps
        self._lines: ThreadStack | None = None
        self._sampled_cpu_ns: int | None = None
        self._sampled_ns = self._flushed_ns = self._settled_ns = 0
        self._restart()

    def start(self) -> None:
        """Sample, in a thread, until the watched one or the process ends."""
        self._thread.start(self._run)

    def join(self, timeout: float) -> None:
        """Wait until sampling has ended, for so many seconds at most."""
        self._thread.join(timeout)

    def _run(self) -> None:
        pause_s = SAMPLING_PERIOD_S
        try:
            while not self._is_over:
                time.sleep(pause_s)
                with self._sampling_lock:
                    if self._is_stopping:
                        self._end()
                    else:
                        pause_s = self._take_sample()
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault("StackSampler", error)

    def stop(self) -> None:
        """Stop sampling, and write the sums."""
        self._is_stopping = True
        if not self._sampling_lock.acquire(timeout=_LONGEST_SAMPLE_S):
            return  # during a sample: it ends after that
        try:
            self._end()
        finally:
            self._sampling_lock.release()

    def _take_sample(self) -> float:
        """Take a sample; return the pause until the next one, in seconds."""
        if not SESSION.working:
            self._end()
            return 0.0
        if not SESSION.on:
            self._flush()
            self._was_off = True
            return _OFF_S
        if self._was_off:
            self._restart()
            self._rate.pause_began()
            return SAMPLING_PERIOD_S
        now_ns, cpu_now_ns = time.monotonic_ns(), self._cpu_ns()
        if cpu_now_ns is None or self._sampled_cpu_ns is None:
            self.has_thread_ended = True  # its identifier may be reused
            self._end()
            return 0.0
        cpu_ns = cpu_now_ns - self._sampled_cpu_ns
        if self._lines is None or cpu_ns:
            frame = sys._current_frames().get(self.watched)  # noqa: SLF001 - documented
            self._lines = None if frame is None else ThreadStack(frame)
            del frame  # else what it holds lives, and ends, here instead of in the script's thread
        if self._lines is not None:
            self._request_phase(
                partial(self._add, now_ns, self._lines, now_ns - self._sampled_ns, cpu_ns)
            )
        self._sampled_ns, self._sampled_cpu_ns = now_ns, cpu_now_ns
        self._rate.sample_taken()
        self._settle_and_flush(now_ns)
        self._rate.pause_began()
        return self._rate.pause_s(deep=SESSION.deep)

    def _add(self, at_ns: int, lines: ThreadStack, wall_ns: int, cpu_ns: int, phase: str) -> None:
        self._sums.add(lines, wall_ns, cpu_ns, phase)
        if self._slow_steps is not None:
            keep = partial(self._slow_sums.add, lines, wall_ns, cpu_ns, phase)
            self._slow_steps.sampled(at_ns, keep)

    def _settle_and_flush(self, now_ns: int) -> None:
        """Settle requests and write sums, if due."""
        if now_ns - self._flushed_ns >= _FLUSH_S * 1e9:
            self._flush()
            self._flushed_ns = self._settled_ns = now_ns
        elif now_ns - self._settled_ns >= _SETTLE_S * 1e9:
            self._settle()
            self._settled_ns = now_ns

    def _restart(self) -> None:
        """Start sampling now: what happened before is unknown."""
        self._was_off = False
        self._sampled_ns = self._flushed_ns = self._settled_ns = time.monotonic_ns()
        self._sampled_cpu_ns = self._cpu_ns()
        self._lines = None

    def _cpu_ns(self) -> int | None:
        """Return the CPU time of the sampled thread; None if it has ended."""
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
        SESSION.write_code_folders()
        self._sums.flush(self._flushed_ns)
        self._slow_sums.flush(self._flushed_ns)


_RUNNING: list[StackSampler] = []


def start_sampler(
    request_phase: PhaseRequest,
    settle: Callable[[], object] = lambda: None,
    slow_steps: SlowStepSamples | None = None,
) -> None:
    """Start sampling this thread, in place of another one; see StackSampler."""
    stop_sampler()
    STARTUP_SAMPLER.end()
    if sys.getswitchinterval() == _USUAL_SWITCH_S:
        sys.setswitchinterval(_SWITCH_S)
    sampler = StackSampler(request_phase, settle, slow_steps)
    _RUNNING.append(sampler)
    sampler.start()


def is_sampled(thread: int | None = None) -> bool:
    """Return whether this process samples `thread`, or any thread, that has not ended."""
    for sampler in _RUNNING:
        if not sampler.has_thread_ended and (thread is None or thread == sampler.watched):
            return True
    return False


def stop_sampler(*, wait: bool = False) -> None:
    """Stop sampling in this process, write the sums, and `wait` for the thread: about a pause."""
    for sampler in _RUNNING:
        sampler.stop()
        if wait:
            sampler.join(timeout=_LAST_WAIT_S)
    _RUNNING.clear()


# In a forked child the sampler is an object without its thread.
os.register_at_fork(after_in_child=_RUNNING.clear)
