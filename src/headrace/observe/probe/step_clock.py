"""The step clock: which phase each nanosecond of a rank belongs to, from the hooks' reports.

A rank's time is cut into segments where it asks for a batch. A segment holds the data wait, the
time up to backward (forward), backward, optimizer steps, and the rest. Without a batch in between,
the time from a backward or an optimizer's step to the next backward is forward, too. Segments are
joined into steps: a step ends with the segment in which an optimizer stepped, so accumulated
gradients make a step of several batches, and so do batches of two loaders that every step trains
on. A step that ends a loop (by `break`, by an error, with the script, or where another iterator is
made) ends with its last optimizer step: what follows is time between. Batches without backward are
evaluation if they are requested with gradients off, or come from a loader that is never trained on,
several in a row or one now and then. Where no optimizer steps in hundreds of batches with backward,
or until the end, each of these is a step; without a loader, each backward is. All phases of a row
add up to its wall time.

Pure: times come in, rows go out; nothing here knows torch.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.observe.probe.pending_segments import PendingSegments
from headrace.observe.probe.step_segments import (
    NO_COPIES,
    DeviceCopyCounts,
    Phase,
    RowKind,
    Segment,
)

CopyPlace = tuple[str, int]
"""The source file and the line that copy a tensor to the device."""
CopyCallback = Callable[[CopyPlace, int], None]
"""Called with each copy within a step: where it is made, and its time in nanoseconds."""
RowCallback = Callable[[RowKind, int, Segment], None]
"""Called with each finished row: its kind, its number among rows of this kind, and its time."""


class StepClock:
    """Cuts a rank's time into segments, and segments into steps, whose rows it emits."""

    def __init__(self, emit: RowCallback, on_copy: CopyCallback | None = None) -> None:
        self._emit, self._on_copy = emit, on_copy
        self._numbers: dict[RowKind, int] = {"train": 0, "eval": 0, "between": 0}
        self._current: Segment | None = None
        self._after_optimizer: Segment | None = None
        self._pending = PendingSegments(self._emit_row)
        self._marked_ns = 0
        # The segment at the end of its last backward, if no batch came and no optimizer stepped.
        self._after_backward: Segment | None = None
        self._other_before_ns = 0  # time in phase "other" when it was entered last
        self._with_grad = True  # gradients were on when the segment's batch was requested
        self._only_iterator = False  # the current segment has an iterator but no batch yet
        self._stepped_in_backward = False  # an optimizer, in the backward under way
        self._is_in_collective = False  # one that counts
        self._has_gradients = False  # since the last backward, no optimizer has stepped
        self._backwards_under_way = 0  # backward may call backward, as checkpointing does
        self._optimizer_before_ns: int | None = None  # time in it as the step began
        self._outer_phases: list[Phase] = []  # outer phases that go on after the inner one
        self.phase: Phase = "other"

    @property
    def under_way(self) -> bool:
        """Whether a step, or time between steps, is under way."""
        return self._current is not None

    def iterator_began(self, loader: int, at_ns: int, *, grad: bool) -> None:
        """Begin a data wait for an iterator, which may start workers; `grad`: gradients are on."""
        goes_on = self._pending.goes_on(loader, self._current)
        self._next_segment(loader, at_ns, grad=grad, goes_on=goes_on)
        self._pending.iterator_began(loader, goes_on=goes_on)
        self._only_iterator = True

    def iterator_ended(self, at_ns: int) -> None:
        """End the wait for the iterator."""
        self._spend(at_ns)
        self._enter("other")

    def fetch_began(self, loader: int, at_ns: int, *, grad: bool) -> None:
        """Begin a data wait: the rank asks `loader` for a batch; `grad`: gradients are on."""
        same = self._current is not None and self._current.loader == loader
        if self._only_iterator and same:
            self._spend(at_ns)  # the first batch and the wait for its iterator are one
            self._with_grad &= grad
        else:
            self._next_segment(loader, at_ns, grad=grad, goes_on=grad or same)
        self._only_iterator = False
        self._enter("data_wait")

    def _next_segment(self, loader: int, at_ns: int, *, grad: bool, goes_on: bool) -> None:
        """End the current segment; `goes_on`: in the loop that it belongs to."""
        self._spend(at_ns)
        if self._current is not None:
            # Gradients off at either request mean evaluation.
            with_grad = grad and self._with_grad
            if not goes_on:
                self._end_step_with_its_work()
            self._finish(self._current, grad=with_grad, next_loader=loader)
        self._pending.fetch_began(loader)
        self._begin(loader, at_ns)
        self._with_grad = grad
        self._enter("data_wait")

    def fetch_ended(self, at_ns: int, samples: int, *, ended: bool, grad: bool = True) -> None:
        """End the wait, by a batch or the loader's end; `grad`: if not known as it began."""
        self._spend(at_ns)
        self._with_grad &= grad
        segment = self._segment(at_ns)
        if not ended:
            segment.batches += 1
            segment.samples = samples
            self._pending.fetched(segment.loader)
        else:
            self._pending.ended(segment.loader)
        self._enter("other" if ended else "forward")

    def fetch_failed(self, at_ns: int) -> None:
        """End the wait: an error came in place of a batch; the next request of the loop goes on."""
        self._spend(at_ns)
        if self._current is not None:
            self._only_iterator = not self._current.batches
        self._enter("other")

    def within_began(self, phase: Phase, at_ns: int) -> None:
        """Begin an inner phase: a copy to the device, or a wait for other ranks."""
        if self._current is None:
            return
        self._spend(at_ns)
        self._outer_phases.append(self.phase)
        self.phase = phase

    def within_ended(
        self, at_ns: int, copies: DeviceCopyCounts = NO_COPIES, place: CopyPlace | None = None
    ) -> None:
        """End the inner phase, in which `copies` were made at `place`; the outer one goes on."""
        if self._current is None or not self._outer_phases:  # the script has entered another phase
            return
        began_ns = self._marked_ns
        self._spend(at_ns)
        if self._on_copy is not None and place is not None:
            self._on_copy(place, self._marked_ns - began_ns)
        self._current.syncs += int(self.phase == "sync")
        self._current.copies += copies
        self.phase = self._outer_phases.pop()

    def collective_began(self, at_ns: int, *, brings_data: bool) -> None:
        """Begin a collective of the script's own, in which the rank waits for others.

        It shares gradients if these wait for an optimizer's step; else, if it `brings_data`, it
        brings a batch to a rank that has none.
        """
        if self._has_gradients and self.phase == "other":
            self._is_in_collective = True
            self.within_began("sync", at_ns)
            return
        idle = not self._backwards_under_way and self._optimizer_before_ns is None
        current = self._current
        waits = brings_data and idle and not self._outer_phases
        if current is not None and not current.batches and waits:
            self._is_in_collective = True
            self.within_began("data_wait", at_ns)

    def collective_ended(self, at_ns: int) -> None:
        """End such a wait."""
        if self._is_in_collective:
            self._is_in_collective = False
            self.within_ended(at_ns)

    def backward_began(self, at_ns: int) -> None:
        """Begin backward; the time since the batch came was forward."""
        self._backwards_under_way += 1
        if self._backwards_under_way > 1:
            return
        segment = self._segment(at_ns)
        self._spend(at_ns)
        if self._optimizer_before_ns is not None:  # in a closure that the optimizer calls
            segment.count_as_forward("optimizer", self._optimizer_before_ns)
        elif self.phase == "other":  # no batch came since the last backward: it was forward
            if self._after_backward is not None:
                segment = self._hold_back(self._after_backward, segment)
            segment.count_as_forward("other", self._other_before_ns)
        self._enter("backward")

    def backward_ended(self, at_ns: int, sync_ns: int | None = None) -> None:
        """End backward; `sync_ns` of it was exposed gradient sync, None if unknown."""
        self._backwards_under_way = max(self._backwards_under_way - 1, 0)
        if self._backwards_under_way:
            return
        self._spend(at_ns)
        segment = self._segment(at_ns)
        segment.backwards += 1
        if sync_ns is not None:
            segment.sync_ns += sync_ns
            segment.syncs += 1
        self._enter("other")
        self._has_gradients = not self._stepped_in_backward and self._optimizer_before_ns is None
        if self._stepped_in_backward:
            self._stepped_in_backward, self._after_optimizer = False, segment.copy()
        elif not (segment.batches or segment.optimizers) and self._optimizer_before_ns is None:
            self._after_backward = segment.copy()
        if self._optimizer_before_ns is not None:
            self._optimizer_before_ns = segment.phases_ns.get("optimizer", 0)
            self._enter("optimizer")

    def optimizer_began(self, optimizer: int, at_ns: int) -> None:
        """Begin an optimizer's step; if it steps again without a batch, a new step begins."""
        if self._backwards_under_way:  # optimizers that step during backward are part of it
            return
        self._spend(at_ns)
        self._has_gradients = False
        segment = self._segment(at_ns)
        if optimizer in segment.optimizers and self._after_optimizer is not None:
            segment = self._split(self._after_optimizer, segment)
        self._optimizer_before_ns = segment.phases_ns.get("optimizer", 0)
        self._enter("optimizer")

    def optimizer_ended(self, optimizer: int, at_ns: int) -> None:
        """End an optimizer's step."""
        segment = self._segment(at_ns)
        segment.optimizers |= {optimizer}
        self._after_backward = None
        if self._backwards_under_way:
            self._stepped_in_backward = True
            return
        self._spend(at_ns)
        self._optimizer_before_ns = None
        self._after_optimizer = segment.copy()
        # Without a batch in between, the next step's forward or data wait follows.
        self._enter("other" if segment.loader >= 0 else "forward")

    def forget(self) -> None:
        """Drop what is unfinished: recording was off meanwhile."""
        self._current = self._after_optimizer = self._after_backward = None
        self._pending.forget()
        self._only_iterator = False
        self._backwards_under_way, self._optimizer_before_ns = 0, None
        self._stepped_in_backward = self._is_in_collective = self._has_gradients = False
        self._enter("other")

    def close(self, at_ns: int) -> None:
        """Emit what is left: the rank ends."""
        self._spend(at_ns)
        if self._current is not None:
            self._end_step_with_its_work()
            self._finish(self._current, grad=True, next_loader=-2)
        self._pending.close()
        self._current = None

    def _enter(self, phase: Phase) -> None:
        if phase == "other" and self._current is not None:
            self._other_before_ns = self._current.phases_ns.get("other", 0)
        self.phase = phase
        self._outer_phases.clear()

    def _spend(self, at_ns: int) -> None:
        if self._current is not None:
            phases = self._current.phases_ns
            phases[self.phase] = phases.get(self.phase, 0) + max(0, at_ns - self._marked_ns)
        self._marked_ns = max(at_ns, self._marked_ns)

    def _segment(self, at_ns: int) -> Segment:
        return self._current or self._begin(-1, at_ns)

    def _begin(self, loader: int, at_ns: int) -> Segment:
        self._current = Segment(loader=loader, start_ns=at_ns)
        self._with_grad, self._has_gradients = True, False
        self._after_optimizer, self._after_backward, self._other_before_ns = None, None, 0
        if self._optimizer_before_ns is not None:  # a batch is requested in an optimizer's closure
            self._optimizer_before_ns = 0
        self._marked_ns = at_ns
        return self._current

    def _split(self, before: Segment, whole: Segment) -> Segment:
        """End a step at its last optimizer step; the rest of the segment begins the next step."""
        self._pending.step(before)
        self._after_optimizer, self._current = None, whole.since(before)
        return self._current

    def _hold_back(self, before: Segment, whole: Segment) -> Segment:
        """End a segment at its last backward, where no batch begins the next one."""
        self._finish(before, grad=True, next_loader=before.loader)
        self._after_backward, self._other_before_ns = None, 0
        self._current = whole.since(before)
        return self._current

    def _end_step_with_its_work(self) -> None:
        """End a step whose loop was left at its last optimizer step; the rest is a segment."""
        if self._current is not None and self._after_optimizer is not None:
            self._split(self._after_optimizer, self._current)

    def _finish(self, segment: Segment, *, grad: bool, next_loader: int) -> None:
        if segment.optimizers:
            self._pending.step(segment)
            return
        if segment.backwards:
            self._pending.accumulate(segment)
        elif not segment.batches:
            self._emit_row("between", segment)
        elif not grad:
            self._pending.evaluate(segment)
        else:
            self._pending.hold(segment)
        self._pending.settle(next_loader)

    def _emit_row(self, kind: RowKind, segment: Segment) -> None:
        number = self._numbers[kind]
        self._numbers[kind] = number + 1
        self._emit(kind, number, segment)
