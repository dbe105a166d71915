"""Segments of a rank's time, from one request for a batch to the next, and their sums.

Pure: times come in; nothing here knows torch.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def joined(segments: Sequence[Segment]) -> Segment:
    """Return segments that follow each other as one.

    Of several loaders, the one that was waited for longest counts, with its batches.
    """
    if len(segments) == 1:
        return segments[0]
    first, waits_ns, batches = segments[0], dict[int, int](), dict[int, int]()
    whole = Segment(loader=first.loader, start_ns=first.start_ns)
    phases = whole.phases_ns
    for segment in segments:
        for phase, spent_ns in segment.phases_ns.items():
            phases[phase] = phases.get(phase, 0) + spent_ns
        if segment.batches:
            loader = segment.loader
            batches[loader] = batches.get(loader, 0) + segment.batches
            waits_ns[loader] = waits_ns.get(loader, 0) + segment.phases_ns.get("data_wait", 0)
        if segment.samples and whole.samples >= 0:
            whole.samples = whole.samples + segment.samples if segment.samples > 0 else -1
        if segment.syncs:
            whole.sync_ns += segment.sync_ns
            whole.syncs += segment.syncs
        if segment.copies is not NO_COPIES:  # adding takes longer than the rest
            whole.copies += segment.copies
        whole.backwards += segment.backwards
        whole.optimizers |= segment.optimizers
    if batches:
        whole.loader = max(reversed(waits_ns), key=waits_ns.__getitem__)
        whole.batches = batches[whole.loader]
    return whole
