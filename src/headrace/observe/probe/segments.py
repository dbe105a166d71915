"""Segments of a rank's time: their phases, batches and copies."""

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
    """Copies of tensors to the device."""

    count: int = 0
    pageable: int = 0  # of these, from memory that is not page-locked
    blocking: int = 0  # of these, without `non_blocking=True`

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

    def copy(self) -> Segment:
        """Return a copy of the segment."""
        return Segment(  # about 10 us faster than dataclasses.replace, once a step
            loader=self.loader, start_ns=self.start_ns, phases_ns=self.phases_ns.copy(),
            sync_ns=self.sync_ns, syncs=self.syncs, batches=self.batches, samples=self.samples,
            backwards=self.backwards, optimizers=self.optimizers, copies=self.copies,
        )  # fmt: skip

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


RowCallback = Callable[[RowKind, int, Segment], None]
"""Called with each finished row: its kind, its number among rows of this kind, and its time."""
