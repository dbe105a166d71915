"""Where each global batch begins and ends, and which slice of it a rank takes. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The rest of an epoch, cut into global batches.

    The tail is what is left after the last whole batch. It is dropped, or it is a batch of its own,
    or, being smaller than the world size, it joins the batch before it, so that every rank makes
    equally many steps and none gets an empty batch.

    Attributes:
        num_samples: n, the samples of the whole epoch.
        start: The position where batch 0 begins, 0 to n.
        size: B, the samples of a global batch.
        drop_last: Whether the tail is dropped.
    """

    num_samples: int
    start: int
    size: int
    drop_last: bool

    @property
    def tail(self) -> int:
        """Samples after the last whole batch."""
        return (self.num_samples - self.start) % self.size

    def count(self, world: int) -> int:
        """Return how many batches there are, the same for each rank."""
        whole = (self.num_samples - self.start) // self.size
        return whole + (not self.drop_last and self.tail >= world)

    def bounds(self, batch: int, world: int) -> tuple[int, int]:
        """Return the positions [first, last) of a batch."""
        first = self.start + batch * self.size
        joined = batch + 1 == self.count(world) and not self.drop_last
        return first, self.num_samples if joined else first + self.size

    def position_after(self, batch: int, world: int) -> int:
        """Return the position where the epoch goes on after a batch, n after the last one."""
        if batch + 1 >= self.count(world):
            return self.num_samples
        return self.start + (batch + 1) * self.size

    def left_out(self, world: int) -> int:
        """Return how many samples come in no batch."""
        count = self.count(world)
        last = self.bounds(count - 1, world)[1] if count else self.start
        return self.num_samples - last


def slice_of(length: int, rank: int, world: int) -> slice:
    """Return the slice of a batch of `length` samples that a rank takes, as even as it goes."""
    return slice(length * rank // world, length * (rank + 1) // world)
