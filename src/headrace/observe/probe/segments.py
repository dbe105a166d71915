"""Segments of a rank's time: their phases, and what happened in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, cast

from headrace.records.schema import PHASES

RowKind = Literal["train", "eval", "between"]
Phase = Literal["data_wait", "copy", "forward", "backward", "sync", "optimizer", "other"]
_PHASES = cast("tuple[Phase, ...]", PHASES)


@dataclass(frozen=True, slots=True)
class DeviceCopyCounts:
    """Copies of tensors to the device.

    Attributes:
        count: How many.
        pageable: Of these, how many from memory that is not page-locked.
        blocking: Of these, how many without `non_blocking=True`.
    """

    count: int = 0
    pageable: int = 0
    blocking: int = 0

    def __add__(self, other: DeviceCopyCounts) -> DeviceCopyCounts:
        return DeviceCopyCounts(
            self.count + other.count,
            self.pageable + other.pageable,
            self.blocking + other.blocking,
        )

    def __sub__(self, other: DeviceCopyCounts) -> DeviceCopyCounts:
        return DeviceCopyCounts(
            self.count - other.count,
            self.pageable - other.pageable,
            self.blocking - other.blocking,
        )


NO_COPIES = DeviceCopyCounts()


@dataclass(slots=True)
class Segment:
    """Time of a rank from asking for a batch to asking for the next.

    Attributes:
        loader: The loader that was asked; -1 where none was.
        start_ns: When it began.
        phases_ns: Nanoseconds by phase.
        sync_ns: Of backward: exposed gradient sync, where it was measured.
        syncs: How often it was measured, in backward or as a phase of its own.
        batches: Batches in it.
        samples: Samples in them; -1 where unknown.
        backwards: How often backward ran.
        optimizers: Which optimizers stepped.
        copies: Copies to the device in it.
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
    copies: DeviceCopyCounts = NO_COPIES

    @property
    def wall_ns(self) -> int:
        """All of it: the phases add up."""
        return sum(self.phases_ns.values())

    def times_ns(self) -> tuple[int, ...]:
        """Return the time of each of `PHASES`, in their order; what was sync is not backward's."""
        # What DDP measures by another clock cannot be more than backward took.
        sync_ns = min(self.sync_ns, self.phases_ns.get("backward", 0))
        phases_ns = self.phases_ns
        if sync_ns:
            phases_ns = phases_ns.copy()
            phases_ns["backward"] -= sync_ns
            phases_ns["sync"] = phases_ns.get("sync", 0) + sync_ns
        return tuple([phases_ns.get(each, 0) for each in _PHASES])

    def copy(self) -> Segment:
        """Return the segment as it is now."""
        return Segment(  # some 10 us less than dataclasses.replace, once a step
            loader=self.loader, start_ns=self.start_ns, phases_ns=self.phases_ns.copy(),
            sync_ns=self.sync_ns, syncs=self.syncs, batches=self.batches, samples=self.samples,
            backwards=self.backwards, optimizers=self.optimizers, copies=self.copies,
        )  # fmt: skip

    def plus(self, other: Segment) -> Segment:
        """Return this segment and the one that follows it as one.

        Of two loaders it is that which was waited for longer; its batches count.
        """
        phases = dict(self.phases_ns)
        for phase, spent_ns in other.phases_ns.items():
            phases[phase] = phases.get(phase, 0) + spent_ns
        known = self.samples >= 0 and other.samples >= 0
        one = self.loader == other.loader or not (self.batches and other.batches)
        loader = other.loader if other.batches else self.loader
        batches = self.batches + other.batches
        if not one:
            waited = self.phases_ns.get("data_wait", 0) > other.phases_ns.get("data_wait", 0)
            longer = self if waited else other
            loader, batches = longer.loader, longer.batches
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


RowCallback = Callable[[RowKind, int, Segment], None]
"""Told of each finished row: its kind, its number among those of this kind, and its time."""
