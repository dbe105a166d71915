"""Which phase each nanosecond of a rank belongs to: arithmetic on what the hooks report.

A rank's time is cut where it asks for a batch. Such a segment holds the wait, what follows up to
backward (forward), backward, optimizer steps, and the rest. Segments are put together to steps: a
step ends with the segment in which an optimizer stepped, so accumulated gradients make a step of
several batches. Batches without backward, asked for with gradients off or from a loader that is
never trained on, are evaluation. All phases of a row add up to its wall time.

Pure: times come in, rows go out; nothing here knows torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

RowKind = Literal["train", "eval", "between"]
Phase = Literal["data_wait", "copy", "forward", "backward", "optimizer", "other"]

_MOST_PENDING = 64  # batches that may wait for a backward before they are taken for evaluation


@dataclass(slots=True)
class Segment:
    """Time of a rank from asking for a batch to asking for the next.

    Attributes:
        loader: The loader that was asked; -1 where none was.
        start_ns: When it began.
        phases_ns: Nanoseconds by phase.
        sync_ns: Of backward: exposed gradient sync, where it was measured.
        syncs: How often it was measured.
        batches: Batches in it.
        samples: Samples in them; -1 where unknown.
        backwards: How often backward ran.
        optimizers: Which optimizers stepped.
    """

    loader: int
    start_ns: int
    phases_ns: dict[Phase, int] = field(default_factory=dict)
    sync_ns: int = 0
    syncs: int = 0
    batches: int = 0
    samples: int = 0
    backwards: int = 0
    optimizers: frozenset[int] = frozenset()

    @property
    def wall_ns(self) -> int:
        """All of it: the phases add up."""
        return sum(self.phases_ns.values())

    def copy(self) -> Segment:
        """Return the segment as it is now."""
        return Segment(
            self.loader,
            self.start_ns,
            self.phases_ns.copy(),
            self.sync_ns,
            self.syncs,
            self.batches,
            self.samples,
            self.backwards,
            self.optimizers,
        )

    def plus(self, other: Segment) -> Segment:
        """Return this segment and the one that follows it as one."""
        phases = dict(self.phases_ns)
        for phase, spent_ns in other.phases_ns.items():
            phases[phase] = phases.get(phase, 0) + spent_ns
        known = self.samples >= 0 and other.samples >= 0
        return Segment(
            loader=other.loader if other.batches else self.loader,
            start_ns=self.start_ns,
            phases_ns=phases,
            sync_ns=self.sync_ns + other.sync_ns,
            syncs=self.syncs + other.syncs,
            batches=self.batches + other.batches,
            samples=self.samples + other.samples if known else -1,
            backwards=self.backwards + other.backwards,
            optimizers=self.optimizers | other.optimizers,
        )


Emit = Callable[[RowKind, int, Segment], None]
"""Told of each finished row: its kind, its number among those of this kind, and its time."""


class StepClock:
    """Cuts a rank's time into segments, and segments into steps.

    Args:
        emit: Called with each finished row.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._numbers: dict[RowKind, int] = {"train": 0, "eval": 0, "between": 0}
        self._current: Segment | None = None
        self._after_optimizer: Segment | None = None
        self._pending: list[Segment] = []
        self._trained: set[int] = set()
        self._marked_ns = 0
        self._only_iterator = False  # the current segment has an iterator and no batch yet
        self._backwards_under_way = 0  # backward may call backward: checkpointing does
        self._optimizer_had_ns: int | None = None  # of this phase, as the step under way began
        self.phase: Phase = "other"

    def iterator_began(self, loader: int, at_ns: int, *, grad: bool) -> None:
        """The rank asks `loader` for an iterator, which may start its workers: it waits for data.

        `grad` says whether gradients are on where it asks.
        """
        self._next_segment(loader, at_ns, grad=grad)
        self._only_iterator = True

    def iterator_ended(self, at_ns: int) -> None:
        """The rank has the iterator."""
        self._spend(at_ns)
        self.phase = "other"

    def fetch_began(self, loader: int, at_ns: int, *, grad: bool) -> None:
        """The rank asks `loader` for a batch; `grad`: gradients are on where it asks."""
        current = self._current
        if self._only_iterator and current is not None and current.loader == loader:
            self._spend(at_ns)  # the first batch and the wait for its iterator are one
        else:
            self._next_segment(loader, at_ns, grad=grad)
        self._only_iterator = False
        self.phase = "data_wait"

    def _next_segment(self, loader: int, at_ns: int, *, grad: bool) -> None:
        self._spend(at_ns)
        if self._current is not None:
            self._finish(self._current, grad=grad, next_loader=loader)
        self._begin(loader, at_ns)
        self.phase = "data_wait"

    def fetch_ended(self, at_ns: int, samples: int, *, ended: bool) -> None:
        """The rank has its batch, or learns that there is none."""
        self._spend(at_ns)
        segment = self._segment(at_ns)
        if not ended:
            segment.batches += 1
            segment.samples = samples
        self.phase = "other" if ended else "forward"

    def copied(self, began_ns: int, at_ns: int) -> None:
        """A tensor was copied to the device."""
        before = self.phase
        self._spend(began_ns)
        self.phase = "copy"
        self._spend(at_ns)
        self.phase = before

    def backward_began(self, at_ns: int) -> None:
        """Backward begins; the time since the batch came was forward."""
        self._backwards_under_way += 1
        if self._backwards_under_way > 1:
            return
        segment = self._segment(at_ns)
        self._spend(at_ns)
        if self._optimizer_had_ns is not None:  # within a closure that the optimizer calls
            spent_ns = segment.phases_ns.get("optimizer", 0) - self._optimizer_had_ns
            segment.phases_ns["optimizer"] = self._optimizer_had_ns
            segment.phases_ns["forward"] = segment.phases_ns.get("forward", 0) + spent_ns
        self.phase = "backward"

    def backward_ended(self, at_ns: int, sync_ns: int | None = None) -> None:
        """Backward has ended; of it `sync_ns` were exposed gradient sync, None where not known."""
        self._backwards_under_way = max(self._backwards_under_way - 1, 0)
        if self._backwards_under_way:
            return
        self._spend(at_ns)
        segment = self._segment(at_ns)
        segment.backwards += 1
        if sync_ns is not None:
            segment.sync_ns += sync_ns
            segment.syncs += 1
        self.phase = "other"
        if self._optimizer_had_ns is not None:
            self._optimizer_had_ns = segment.phases_ns.get("optimizer", 0)
            self.phase = "optimizer"

    def optimizer_began(self, optimizer: int, at_ns: int) -> None:
        """An optimizer begins its step; stepping again without a batch, it begins a new one."""
        if self._backwards_under_way:  # optimizers that step as gradients come are backward's
            return
        self._spend(at_ns)
        segment = self._segment(at_ns)
        if optimizer in segment.optimizers and self._after_optimizer is not None:
            segment = self._split(self._after_optimizer, segment)
        self._optimizer_had_ns = segment.phases_ns.get("optimizer", 0)
        self.phase = "optimizer"

    def optimizer_ended(self, optimizer: int, at_ns: int) -> None:
        """The optimizer has made its step."""
        segment = self._segment(at_ns)
        segment.optimizers |= {optimizer}
        if self._backwards_under_way:
            return
        self._spend(at_ns)
        self._optimizer_had_ns = None
        self._after_optimizer = segment.copy()
        # Without a batch in between, what follows is the next step's forward, or its data wait.
        self.phase = "other" if segment.loader >= 0 else "forward"

    def forget(self) -> None:
        """Drop what is not finished: recording was off, and what happened meanwhile is unknown."""
        self._current, self._after_optimizer, self._pending = None, None, []
        self._only_iterator = False
        self._backwards_under_way, self._optimizer_had_ns = 0, None
        self.phase = "other"

    def close(self, at_ns: int) -> None:
        """The rank ends."""
        self._spend(at_ns)
        if self._current is not None:
            self._finish(self._current, grad=True, next_loader=-2)
        for segment in self._pending:
            self._tell("eval" if not segment.backwards else "between", segment)
        self._pending, self._current = [], None

    def _spend(self, at_ns: int) -> None:
        if self._current is not None:
            phases = self._current.phases_ns
            phases[self.phase] = phases.get(self.phase, 0) + max(0, at_ns - self._marked_ns)
        self._marked_ns = max(at_ns, self._marked_ns)

    def _segment(self, at_ns: int) -> Segment:
        return self._current or self._begin(-1, at_ns)

    def _begin(self, loader: int, at_ns: int) -> Segment:
        self._current = Segment(loader=loader, start_ns=at_ns)
        self._after_optimizer = None
        if self._optimizer_had_ns is not None:  # a batch asked for within an optimizer's closure
            self._optimizer_had_ns = 0
        self._marked_ns = at_ns
        return self._current

    def _split(self, before: Segment, whole: Segment) -> Segment:
        """End a step at its last optimizer step; the rest of the segment begins the next one."""
        rest = {
            phase: spent_ns - before.phases_ns.get(phase, 0)
            for phase, spent_ns in whole.phases_ns.items()
        }
        self._step(before)
        self._current = Segment(
            loader=whole.loader,
            start_ns=before.start_ns + before.wall_ns,
            phases_ns=rest,
            sync_ns=whole.sync_ns - before.sync_ns,
            syncs=whole.syncs - before.syncs,
            batches=whole.batches - before.batches,
            samples=whole.samples if whole.batches > before.batches else 0,
            backwards=whole.backwards - before.backwards,
        )
        self._after_optimizer = None
        return self._current

    def _finish(self, segment: Segment, *, grad: bool, next_loader: int) -> None:
        if segment.optimizers:
            self._step(segment)
        elif segment.backwards:
            self._trained.add(segment.loader)
            self._pending.append(segment)
        elif not segment.batches:
            self._tell("between", segment)
        elif not grad:
            self._tell("eval", segment)
        else:
            self._pending.append(segment)
        moved_on = next_loader != segment.loader and segment.loader not in self._trained
        if moved_on or len(self._pending) > _MOST_PENDING:
            self._give_up_pending()

    def _step(self, segment: Segment) -> None:
        if segment.loader >= 0:
            self._trained.add(segment.loader)
        for earlier in reversed(self._pending):
            segment = earlier.plus(segment)
        self._pending = []
        self._tell("train", segment)

    def _give_up_pending(self) -> None:
        kept = []
        for segment in self._pending:
            if segment.backwards:
                kept.append(segment)
            else:
                self._tell("eval", segment)
        self._pending = kept

    def _tell(self, kind: RowKind, segment: Segment) -> None:
        number = self._numbers[kind]
        self._numbers[kind] = number + 1
        self._emit(kind, number, segment)
