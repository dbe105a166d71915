"""The event log of a rank: what the hooks report, noted at once and worked out a little later.

To note takes a microsecond. To work out phases and to write rows takes fifty, and a few times that
where the processor has other things in its caches, as between the steps of a script that waits for
its device. So that is done for all steps of a fifth of a second in one go, by the thread that
samples stacks, while the script's own thread is at its step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from headrace.observe.probe.device_clock import HostReport
from headrace.observe.probe.recording_session import SESSION
from headrace.observe.probe.segments import RowCallback, RowKind, Segment
from headrace.observe.probe.step_clock import StepClock
from headrace.records.schema import STEPS

_MAX_PENDING_EVENTS = 256  # some 40 steps; what comes on top is worked out by the thread that notes
_EVENTS_A_TURN = 16  # of these: twice what a step notes
_LONGEST_WAIT_S = 1.0
_LAST_WAIT_S = 10.0  # there is no later time


class EventLog:
    """The reports of a rank, and the clock that makes rows of them.

    Args:
        emit: Called with each row.

    Attributes:
        waiting: What was noted: each report, with the time that it is of.
        steps_ended: Training steps whose rows were told.
    """

    def __init__(self, emit: RowCallback) -> None:
        self._emit = emit
        self._clock = StepClock(self._emit_row)
        self._lock = threading.Lock()  # of who works it out; to note, none is needed
        self.waiting: deque[tuple[HostReport, int]] = deque()
        self.steps_ended = 0

    def forked(self) -> None:
        """Begin anew in a forked child: what the parent had under way is the parent's."""
        self._lock = threading.Lock()
        self.waiting.clear()
        self._clock.forget()

    def request_phase(self, tell: Callable[[str], None]) -> None:
        """Have `tell` called, later, with what the rank does at this moment."""
        self.waiting.append((lambda clock, _: tell(clock.phase), 0))

    def settle(self) -> None:
        """Work out what was noted until now; where another thread is at it, leave it that one."""
        self._settle()

    def settle_now(self) -> None:
        """Likewise, once a thread that is at it has done its part."""
        self._settle(wait_s=_LONGEST_WAIT_S)

    def limit_backlog(self) -> None:
        """Where so much is noted that it would pile up, work out a little of it."""
        if len(self.waiting) > _MAX_PENDING_EVENTS:
            self._settle(most=_EVENTS_A_TURN)

    def close(self, at_ns: int, *, recording: bool) -> None:
        """The rank ends; not `recording`: what happened lately is unknown."""
        if not self._settle(wait_s=_LAST_WAIT_S):
            late = TimeoutError(f"the last steps are lost: not worked out in {_LAST_WAIT_S:.0f} s")
            SESSION.fault("Journal.close", late)
            return  # another thread is at the clock
        if recording:
            self._clock.close(at_ns)
        else:
            self._clock.forget()

    def _settle(self, *, most: int | None = None, wait_s: float = 0.0) -> bool:
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            waiting, clock = self.waiting, self._clock
            there = len(waiting)  # no more than that: the rank may go on noting
            for _ in range(there if most is None else min(most, there)):
                report, at_ns = waiting.popleft()
                try:
                    report(clock, at_ns)
                except Exception as error:  # noqa: BLE001 - the script must not feel it
                    SESSION.fault("Journal", error)
        finally:
            self._lock.release()
        return True

    def _emit_row(self, kind: RowKind, number: int, segment: Segment) -> None:
        self._emit(kind, number, segment)
        self.steps_ended += int(kind == "train")


def write_row(kind: RowKind, number: int, segment: Segment) -> None:
    """Write a row of `steps`."""
    copies = segment.copies
    SESSION.write(
        STEPS, SESSION.rank, number, kind, segment.loader, segment.start_ns, segment.wall_ns,
        *segment.times_ns(), segment.batches, segment.samples, int(segment.syncs > 0),
        copies.count, copies.pageable, copies.blocking,
    )  # fmt: skip
