"""The batch specs of an iteration (from a plan, a sampler or an iterable), and its state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, Protocol

from headrace.core.errors import CheckpointError
from headrace.data.loader.batch_builder import BatchSpec
from headrace.sampling.plan import Plan, PlanState


class BatchSpecs(Protocol):
    """The batches of one epoch, from where it is resumed."""

    @property
    def world(self) -> int:
        """The world size."""

    def __iter__(self) -> Iterator[BatchSpec]:
        """Iterate over the specs of the batches still to be delivered."""

    def position_after(self, delivered: int) -> int:
        """Return the epoch's position after `delivered` batches: all that resuming needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBatchSpecs:
    """The plan's batches for one rank; a position counts samples over all ranks."""

    plan: Plan  # of the epoch, from the position where it is resumed
    rank: int
    world: int  # the world size
    single: bool = False  # each batch is one uncollated sample

    def __iter__(self) -> Iterator[BatchSpec]:
        """Iterate over the specs of this rank's part of each global batch."""
        first_batch = self.plan.start // self.plan.global_batch
        for number in range(self.plan.num_batches(self.world)):
            samples = self.plan.batch(number, self.rank, self.world).tolist()
            yield BatchSpec(
                draws=(first_batch + number) * self.world + self.rank,
                epoch=self.plan.epoch,
                indices=samples,
                seed_ids=samples,
                single=self.single,
            )

    def position_after(self, delivered: int) -> int:
        """Return the global position after `delivered` batches."""
        return self.plan.position_after(delivered - 1, self.world) if delivered else self.plan.start


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerBatchSpecs:
    """The batches of a given sampler, unchanged; a position counts this rank's batches."""

    batches: Iterable[Any]  # lists of indices; single ones where `single`
    epoch: int
    start: int = 0  # batches delivered before, which are skipped by their indices
    single: bool = False  # each batch is one uncollated sample
    rank: int = 0  # samplers of different ranks draw differently
    world: int = 1

    def __iter__(self) -> Iterator[BatchSpec]:
        """Iterate over the sampler's batches; a sample's seed derives from its place among them."""
        place = 0
        for number, batch in enumerate(self.batches):
            indices = [batch] if self.single else list(batch)
            places = range(place, place + len(indices))
            place += len(indices)
            if number >= self.start:
                yield BatchSpec(
                    draws=number * self.world + self.rank,
                    epoch=self.epoch,
                    indices=indices,
                    seed_ids=[each * self.world + self.rank for each in places],
                    single=self.single,
                )

    def position_after(self, delivered: int) -> int:
        """Return the number of the sampler's batches that are delivered."""
        return self.start + delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class IterableBatchSpecs:
    """The batch specs of an iterable dataset, which itself decides what comes next."""

    epoch: int
    start: int = 0  # batches delivered before, which are made again and skipped
    rank: int = 0
    world: int = 1

    def __iter__(self) -> Iterator[BatchSpec]:
        """Iterate without end; the stream ends when every worker is exhausted."""
        for number in count():
            yield BatchSpec(draws=number * self.world + self.rank, epoch=self.epoch)

    def position_after(self, delivered: int) -> int:
        """Return the number of batches that are delivered."""
        return self.start + delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCount:
    """The position in an epoch of a given sampler or of an iterable dataset."""

    epoch: int
    position: int  # how many of this rank's batches were delivered
    seed: int
    world: int
    batch_size: int  # on this rank
    workers: int  # that share an iterable dataset; 0 for a sampler
    shuffled: int = 0  # window in which a Ray Dataset is shuffled, in samples; 0: it is not

    def check_same(self, loader: BatchCount) -> None:
        """Raise CheckpointError unless a loader counts in the same batches."""
        names = {
            "world": "rank(s)",
            "batch_size": "sample(s) a batch",
            "workers": "worker(s)",
            "shuffled": "sample(s) shuffled together",
        }
        changed = [name for name in names if getattr(self, name) != getattr(loader, name)]
        if changed:
            was, now = (
                ", ".join(f"{getattr(count, name)} {names[name]}" for name in changed)
                for count in (self, loader)
            )
            raise CheckpointError(
                f"This state was taken with {was}, and the loader has {now}. The place of a given "
                "sampler, or of an iterable dataset, is a number of batches, which are others "
                "then. Make the loader as it was; a map-style dataset without a sampler goes on "
                "at any of these."
            )


LoaderState = PlanState | BatchCount


def state_to_dict(state: LoaderState) -> dict[str, Any]:
    """Return the state as plain numbers and strings."""
    if isinstance(state, PlanState):
        return {"kind": "plan", **state.to_dict()}
    return {"kind": "batches", **asdict(state)}


def state_from_dict(entries: Mapping[str, Any], *, planned: bool) -> LoaderState:
    """Return the state that `state_to_dict` wrote, of the same kind; raises CheckpointError."""
    rest = dict(entries)
    kind = rest.pop("kind", None)
    if kind != ("plan" if planned else "batches"):
        has = "no sampler of its own" if planned else "its own sampler or an iterable dataset"
        raise CheckpointError(
            f"This state is of kind {kind!r}, but the loader has {has}. Make the loader with the "
            f"arguments of the run that saved the state."
        )
    if kind == "plan":
        return PlanState.from_dict(rest)
    try:
        return BatchCount(**rest)
    except TypeError as error:
        raise CheckpointError(f"This is no state of a loader: {error}.") from None
