"""Which batches an iteration is made of: by the plan, by a given sampler, or by iteration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from headrace.data.loader.making import Order
from headrace.plan.plan import Plan


class Orders(Protocol):
    """The batches of one epoch, from where it is resumed."""

    @property
    def world(self) -> int:
        """The world size."""
        ...

    def __iter__(self) -> Iterator[Order]:
        """Iterate over the orders that are still to be delivered."""
        ...

    def position_after(self, delivered: int) -> int:
        """Return the epoch's position after so many deliveries: all that resuming needs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOrders:
    """The plan's batches for one rank; a position counts samples over all ranks.

    Attributes:
        plan: The plan of the epoch, from the position where it is resumed.
        rank: This rank.
        world: The world size.
        single: Each batch is one sample as it is.
    """

    plan: Plan
    rank: int
    world: int
    single: bool = False

    def __iter__(self) -> Iterator[Order]:
        """Iterate over this rank's part of each global batch."""
        first_batch = self.plan.start // self.plan.global_batch
        for number in range(self.plan.num_batches(self.world)):
            samples = self.plan.batch(number, self.rank, self.world).tolist()
            yield Order(
                draws=(first_batch + number) * self.world + self.rank,
                epoch=self.plan.epoch,
                indices=samples,
                seed_ids=samples,
                single=self.single,
            )

    def position_after(self, delivered: int) -> int:
        """Return the global position after so many deliveries."""
        return self.plan.position_after(delivered - 1, self.world) if delivered else self.plan.start


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOrders:
    """A given batch sampler's batches, as they are; a position counts this rank's batches.

    Attributes:
        batches: Yields lists of indices; or single indices where `single`.
        epoch: The epoch.
        start: How many batches were delivered before: they are passed over by their indices.
        single: Each batch is one sample as it is.
        rank: This rank: samplers of different ranks draw differently.
        world: The world size.
    """

    batches: Iterable[Any]
    epoch: int
    start: int = 0
    single: bool = False
    rank: int = 0
    world: int = 1

    def __iter__(self) -> Iterator[Order]:
        """Iterate over the sampler's batches. A sample's seed derives from its place in them."""
        place = 0
        for number, batch in enumerate(self.batches):
            indices = [batch] if self.single else list(batch)
            places = range(place, place + len(indices))
            place += len(indices)
            if number >= self.start:
                yield Order(
                    draws=number * self.world + self.rank,
                    epoch=self.epoch,
                    indices=indices,
                    seed_ids=[each * self.world + self.rank for each in places],
                    single=self.single,
                )

    def position_after(self, delivered: int) -> int:
        """Return how many batches of the sampler are delivered."""
        return self.start + delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class IterableOrders:
    """Orders for an iterable dataset, which itself knows what comes next.

    Attributes:
        epoch: The epoch.
        start: How many batches were delivered before; they are made again and passed over.
        rank: This rank.
        world: The world size.
    """

    epoch: int
    start: int = 0
    rank: int = 0
    world: int = 1

    def __iter__(self) -> Iterator[Order]:
        """Iterate without end; the stream ends when every worker is exhausted."""
        for number in count():
            yield Order(draws=number * self.world + self.rank, epoch=self.epoch)

    def position_after(self, delivered: int) -> int:
        """Return how many batches are delivered."""
        return self.start + delivered
