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

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal, cast

from headrace.records.schema import PHASES

RowKind = Literal["train", "eval", "between"]
Phase = Literal["data_wait", "copy", "forward", "backward", "sync", "optimizer", "other"]
_PHASES = cast("tuple[Phase, ...]", PHASES)


@dataclass(frozen=True, slots=True)
class DeviceCopyCounts:
    """Copies of tensors to the device."""

    count: int = 0
    pageable: int = 0  # of these, from memory that is not page-locked
    blocking: int = 0  # of these, without `non_blocking=True`

    def __add__(self, other: DeviceCopyCounts) -> DeviceCopyCounts:
        return DeviceCopyCounts(
            self.count + other.count, self.pageable + other.pageable, self.blocking + other.blocking
        )

    def __sub__(self, other: DeviceCopyCounts) -> DeviceCopyCounts:
        return DeviceCopyCounts(
            self.count - other.count, self.pageable - other.pageable, self.blocking - other.blocking
        )


NO_COPIES = DeviceCopyCounts()


@dataclass(slots=True)
class Segment:
    """Time of a rank from one request for a batch to the next."""

    loader: int  # that was asked for a batch; -1 if none was
    start_ns: int
    phases_ns: dict[Phase, int] = field(default_factory=dict)
    sync_ns: int = 0  # exposed gradient sync within backward, if measured
    syncs: int = 0  # how often sync was measured, in backward or as a phase of its own
    batches: int = 0
    samples: int = 0  # in the batches; -1 if unknown
    backwards: int = 0  # how often backward ran
    optimizers: frozenset[int] = frozenset()  # identifiers of those that stepped
    copies: DeviceCopyCounts = NO_COPIES

    @property
    def wall_ns(self) -> int:
        """The sum of all phases."""
        return sum(self.phases_ns.values())

    def times_ns(self) -> tuple[int, ...]:
        """Return the time of each of `PHASES`, in order; sync within backward counts as sync."""
        # DDP measures by another clock: no more than backward took counts.
        sync_ns = min(self.sync_ns, self.phases_ns.get("backward", 0))
        phases_ns = self.phases_ns
        if sync_ns:
            phases_ns = phases_ns.copy()
            phases_ns["backward"] -= sync_ns
            phases_ns["sync"] = phases_ns.get("sync", 0) + sync_ns
        return tuple([phases_ns.get(phase, 0) for phase in _PHASES])

    def count_as_forward(self, phase: Phase, kept_ns: int) -> None:
        """Count what a phase has beyond `kept_ns` as forward."""
        phases = self.phases_ns
        spent_ns = phases.get(phase, 0) - kept_ns
        if spent_ns > 0:
            phases[phase] = kept_ns
            phases["forward"] = phases.get("forward", 0) + spent_ns

    def copy(self) -> Segment:
        """Return a copy of the segment."""
        return Segment(  # about 10 us faster than dataclasses.replace, once a step
            loader=self.loader, start_ns=self.start_ns, phases_ns=self.phases_ns.copy(),
            sync_ns=self.sync_ns, syncs=self.syncs, batches=self.batches, samples=self.samples,
            backwards=self.backwards, optimizers=self.optimizers, copies=self.copies,
        )  # fmt: skip

    def since(self, before: Segment) -> Segment:
        """Return what the segment holds beyond an earlier state of it, but for its optimizers."""
        return Segment(
            loader=self.loader,
            start_ns=before.start_ns + before.wall_ns,
            phases_ns={
                phase: spent_ns - before.phases_ns.get(phase, 0)
                for phase, spent_ns in self.phases_ns.items()
            },
            sync_ns=self.sync_ns - before.sync_ns,
            syncs=self.syncs - before.syncs,
            batches=self.batches - before.batches,
            samples=self.samples if self.batches > before.batches else 0,
            backwards=self.backwards - before.backwards,
            copies=self.copies - before.copies,
        )

    def plus(self, other: Segment) -> Segment:
        """Return this segment and the one that follows it as one.

        Of two loaders, the one that was waited for longer counts, with its batches.
        """
        phases = dict(self.phases_ns)
        for phase, spent_ns in other.phases_ns.items():
            phases[phase] = phases.get(phase, 0) + spent_ns
        known = self.samples >= 0 and other.samples >= 0
        same_loader = self.loader == other.loader or not (self.batches and other.batches)
        loader = other.loader if other.batches else self.loader
        batches = self.batches + other.batches
        if not same_loader:
            mostly_self = self.phases_ns.get("data_wait", 0) > other.phases_ns.get("data_wait", 0)
            main = self if mostly_self else other
            loader, batches = main.loader, main.batches
        return Segment(
            loader=loader,
            start_ns=self.start_ns,
            phases_ns=phases,
            sync_ns=self.sync_ns + other.sync_ns,
            syncs=self.syncs + other.syncs,
            batches=batches,
            samples=self.samples + other.samples if known else -1,
            backwards=self.backwards + other.backwards,
            optimizers=self.optimizers | other.optimizers,
            copies=self.copies + other.copies,
        )


CopyPlace = tuple[str, int]
"""The source file and the line that copy a tensor to the device."""
CopyCallback = Callable[[CopyPlace, int], None]
"""Called with each copy within a step: where it is made, and its time in nanoseconds."""
RowCallback = Callable[[RowKind, int, Segment], None]
"""Called with each finished row: its kind, its number among rows of this kind, and its time."""


_MAX_PENDING = 64  # batches without a backward, before they count as evaluation
_MAX_UNSTEPPED = 256
"""Batches with backward before the first optimizer's step; with more, there is no optimizer that
can be seen, as where a script changes its parameters itself."""
_MAX_AHEAD = 16  # the same, for a loader never trained on, once another one was
_MOST_LEFT = 4  # the same, of one that is trained on, as its next iteration begins


class StepClock:
    """Cuts a rank's time into segments, and segments into steps, whose rows it emits."""

    def __init__(self, emit: RowCallback, on_copy: CopyCallback | None = None) -> None:
        self._emit, self._on_copy = emit, on_copy
        self._numbers: dict[RowKind, int] = {"train": 0, "eval": 0, "between": 0}
        self._current: Segment | None = None
        self._after_optimizer: Segment | None = None
        self._pending: list[Segment] = []
        self._lacks_optimizer = False  # batches with backward are steps
        self._trained: set[int] = set()
        self._evaluated: int | None = None  # the loader of the last batch, if it was evaluated
        self._singles: set[int] = set()  # loaders with exactly one batch since the last step
        self._singles_before: set[int] = set()  # the same, before the last step
        self._marked_ns = 0
        # The segment at the end of its last backward, if no batch came and no optimizer stepped.
        self._after_backward: Segment | None = None
        self._other_before_ns = 0  # time in phase "other" when it was entered last
        self._with_grad = True  # gradients were on when the segment's batch was requested
        self._only_iterator = False  # the current segment has an iterator but no batch yet
        self._fetched: dict[int, int] = {}  # batches of each loader's latest iterator, if seen made
        self._stepped_in_backward = False  # an optimizer, in the backward under way
        self._waits_for_batch = False  # that another rank sends
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
        # A script that makes an iterator for each batch goes on with its loop.
        segments = [*self._pending, *([self._current] if self._current is not None else [])]
        of_step = any(segment.loader == loader for segment in segments)
        goes_on = of_step and self._fetched.get(loader) == 1
        self._next_segment(loader, at_ns, grad=grad, goes_on=goes_on)
        untrained = sum(s.loader == loader and not s.backwards for s in self._pending)
        if not goes_on and loader in self._trained and untrained > _MOST_LEFT:
            self._count_evaluation({loader})  # no step has taken them
        self._only_iterator, self._fetched[loader] = True, 0

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
            if segment.loader in self._fetched:
                self._fetched[segment.loader] += 1
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

    def shared_batch_began(self, at_ns: int) -> None:
        """Begin a wait for another rank that sends data: a batch, if this rank has none."""
        idle = not self._backwards_under_way and self._optimizer_before_ns is None
        current = self._current
        if current is not None and not current.batches and idle and not self._outer_phases:
            self._waits_for_batch = True
            self.within_began("data_wait", at_ns)

    def shared_batch_ended(self, at_ns: int) -> None:
        """End such a wait."""
        if self._waits_for_batch:
            self._waits_for_batch = False
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
        self._pending, self._only_iterator = [], False
        self._backwards_under_way, self._optimizer_before_ns = 0, None
        self._stepped_in_backward = self._waits_for_batch = False
        self._enter("other")

    def close(self, at_ns: int) -> None:
        """Emit what is left: the rank ends."""
        self._spend(at_ns)
        if self._current is not None:
            self._end_step_with_its_work()
            self._finish(self._current, grad=True, next_loader=-2)
        # What is accumulated for a step that does not come is time between.
        trained: RowKind = "between" if self._numbers["train"] else "train"
        for segment in self._pending:
            self._emit_row("eval" if not segment.backwards else trained, segment)
        self._pending, self._current = [], None

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
        self._with_grad = True
        self._after_optimizer, self._after_backward, self._other_before_ns = None, None, 0
        if self._optimizer_before_ns is not None:  # a batch is requested in an optimizer's closure
            self._optimizer_before_ns = 0
        self._marked_ns = at_ns
        return self._current

    def _split(self, before: Segment, whole: Segment) -> Segment:
        """End a step at its last optimizer step; the rest of the segment begins the next step."""
        self._step(before)
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
            self._step(segment)
        elif segment.backwards:
            if segment.loader >= 0:
                self._trained.add(segment.loader)
            if self._lacks_optimizer:
                self._emit_row("train", segment)
            else:
                self._pending.append(segment)
        elif not segment.batches:
            self._emit_row("between", segment)
        elif not grad:
            self._emit_row("eval", segment)
            self._evaluated = segment.loader
        else:
            self._pending.append(segment)
        if self._evaluates(next_loader) or len(self._pending) > _MAX_PENDING:
            self._give_up_pending()

    def _evaluates(self, next_loader: int) -> bool:
        """Return whether the last batches are an evaluation: several in a row, none trained on.

        A single batch in every step is part of its data: two loaders are iterated together.
        """
        if not self._pending or self._pending[-1].loader in self._trained:
            return False
        last = self._pending[-1].loader
        in_a_row = sum(segment.loader == last for segment in self._pending)
        if next_loader == last:  # their backward may follow, as some scripts fetch ahead
            goes_on = self._evaluated == last or in_a_row > _MAX_AHEAD
            if goes_on and self._trained:
                self._evaluated = last
            return self._evaluated == last
        before, self._evaluated = self._evaluated, None
        if in_a_row > 1 or last == before:
            return True
        self._singles.add(last)
        return last not in self._singles_before and self._numbers["train"] > 0

    def _count_evaluation(self, loaders: Collection[int]) -> None:
        """Count pending batches of some loaders that nothing was trained on as an evaluation."""
        evaluated = [s for s in self._pending if s.loader in loaders and not s.backwards]
        self._pending = [s for s in self._pending if s.backwards or s.loader not in loaders]
        for segment in evaluated:
            self._emit_row("eval", segment)

    def _step(self, segment: Segment) -> None:
        if segment.loader >= 0:
            self._trained.add(segment.loader)
        for earlier in reversed(self._pending):
            segment = earlier.plus(segment)
        self._pending, self._evaluated, self._lacks_optimizer = [], None, False
        self._singles_before, self._singles = self._singles, set()
        self._emit_row("train", segment)

    def _give_up_pending(self) -> None:
        self._count_evaluation({segment.loader for segment in self._pending})
        with_backward = self._pending
        most = _MAX_PENDING if self._numbers["train"] else _MAX_UNSTEPPED
        if len(with_backward) > most and not self._numbers["train"]:
            self._lacks_optimizer = True
            for segment in with_backward:
                self._emit_row("train", segment)
            with_backward = []
        elif len(with_backward) > most:  # only their sum matters
            with_backward = [functools.reduce(Segment.plus, with_backward)]
        self._pending = with_backward

    def _emit_row(self, kind: RowKind, segment: Segment) -> None:
        number = self._numbers[kind]
        self._numbers[kind] = number + 1
        self._emit(kind, number, segment)
