"""The log of a rank: reports of what its hooks saw, from which rows of steps are made later."""

from __future__ import annotations

from collections.abc import Callable

from headrace.observe.probe.report_queue import FaultCallback, LockFactory, ReportQueue
from headrace.observe.probe.slow_steps import SlowStepSamples
from headrace.observe.probe.step_clock import RowCallback, StepClock
from headrace.observe.probe.step_segments import RowKind, Segment

_LONGEST_WAIT_S = 1.0
_LAST_WAIT_S = 10.0  # at the end there is no later time


class EventLog(ReportQueue):
    """The reports of a rank, by the host's clock, and the steps that have ended.

    Args:
        emit: Gets each row.
        on_fault: Gets the place of a report that failed, and its error.
        new_lock: Makes a lock among threads.
    """

    def __init__(self, emit: RowCallback, on_fault: FaultCallback, new_lock: LockFactory) -> None:
        super().__init__(StepClock(self._emit_row), on_fault, new_lock)
        self._emit = emit
        self.steps_ended = 0
        self.slow_steps = SlowStepSamples()

    def forked(self) -> None:
        """Start again in a forked child; unfinished steps belong to the parent."""
        super().forked()
        self.slow_steps.forget()

    def request_phase(self, receive_phase: Callable[[str], None]) -> None:
        """Have `receive_phase` called, later, with the rank's phase at this moment."""
        self.waiting.append((lambda clock, _: receive_phase(clock.phase), 0))

    def settle_now(self) -> None:
        """Process what is queued, after a thread that is doing so has finished."""
        self.settle(wait_s=_LONGEST_WAIT_S)

    def close(self, at_ns: int, *, recording: bool) -> None:
        """End the rank's log; if not `recording`, drop what is unfinished."""
        if not self.settle(wait_s=_LAST_WAIT_S):
            late = TimeoutError(f"the last steps are lost: not worked out in {_LAST_WAIT_S:.0f} s")
            self._on_fault("EventLog.close", late)
            return  # another thread holds the clock
        if recording:
            self.clock.close(at_ns)
        else:
            self.clock.forget()

    def _emit_row(self, kind: RowKind, number: int, segment: Segment) -> None:
        self._emit(kind, number, segment)
        self.slow_steps.row_ended(segment.start_ns, segment.wall_ns, trains=kind == "train")
        self.steps_ended += int(kind == "train")
