"""The event log of a rank: reports of the hooks, queued at once and processed a little later.

Queueing a report takes a microsecond. Working out phases and writing rows takes fifty, and several
times that where the processor's caches hold other data, as between the steps of a script that waits
for its device. So the thread that samples stacks does that for a fifth of a second's steps at once,
while the script's own thread is in its step.
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

# About 40 steps; beyond that, the thread that reports processes some itself.
_MAX_PENDING_EVENTS = 256
_EVENTS_A_TURN = 16  # twice the number of reports in a step
_LONGEST_WAIT_S = 1.0
_LAST_WAIT_S = 10.0  # at the end there is no later time


class EventLog:
    """The queued reports of a rank, each with its time, and the clock that makes rows of them."""

    def __init__(self, emit: RowCallback) -> None:
        self._emit = emit
        self._clock = StepClock(self._emit_row)
        self._lock = threading.Lock()  # for processing; queueing needs no lock
        self.waiting: deque[tuple[HostReport, int]] = deque()
        self.steps_ended = 0

    def forked(self) -> None:
        """Start again in a forked child; unfinished steps belong to the parent."""
        self._lock = threading.Lock()
        self.waiting.clear()
        self._clock.forget()

    def request_phase(self, receive_phase: Callable[[str], None]) -> None:
        """Have `receive_phase` called, later, with the rank's phase at this moment."""
        self.waiting.append((lambda clock, _: receive_phase(clock.phase), 0))

    def settle_now(self) -> None:
        """Process what is queued, after a thread that is doing so has finished."""
        self.settle(wait_s=_LONGEST_WAIT_S)

    def limit_backlog(self) -> None:
        """Process a few reports if too many are queued."""
        if len(self.waiting) > _MAX_PENDING_EVENTS:
            self.settle(most=_EVENTS_A_TURN)

    def close(self, at_ns: int, *, recording: bool) -> None:
        """End the rank's log; if not `recording`, drop what is unfinished."""
        if not self.settle(wait_s=_LAST_WAIT_S):
            late = TimeoutError(f"the last steps are lost: not worked out in {_LAST_WAIT_S:.0f} s")
            SESSION.fault("Journal.close", late)
            return  # another thread holds the clock
        if recording:
            self._clock.close(at_ns)
        else:
            self._clock.forget()

    def settle(self, *, most: int | None = None, wait_s: float = 0.0) -> bool:
        """Process what is queued; return False if another thread did so for too long."""
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            waiting, clock = self.waiting, self._clock
            count = len(waiting)  # the rank may add more meanwhile
            for _ in range(count if most is None else min(most, count)):
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
