"""How a loader's workers share its batches: by who made them.

torch's loader asks workers in turn. A worker whose part of an iterable dataset has ended, or is
empty, makes no more of them: the others make the rest, and more workers would not help them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.tables import Columns, Ints

_UNEQUAL = 0.9
"""If equal shares were smaller than this share of the busiest worker's, shares are unequal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShares:
    """The shares of a loader's workers in its batches, over all epochs and ranks."""

    workers: int  # of each rank
    idle: int  # of these, the fewest that made no batch in any epoch of a rank
    largest: float  # share of the busiest worker, 0 to 1
    even: float  # the same at the most equal shares: epochs have a remainder, too
    busiest: int  # its number, in most epochs

    @property
    def effective(self) -> float:
        """Among how many workers the batches would be shared equally at the busiest one's pace."""
        return self.workers * self.even / max(self.largest, 1e-9)

    @property
    def unequal(self) -> bool:
        """Whether the busiest worker makes more than its share."""
        return self.workers > 1 and self.effective < _UNEQUAL * self.workers


def read_worker_shares(batches: Columns, fetches: Columns, workers: int) -> WorkerShares | None:
    """Return who made a loader's batches; None without workers, or batches of theirs.

    Args:
        batches: The loader's rows of `batches`.
        fetches: Its rows of `fetches`.
        workers: How many it has.
    """
    made = batches.where(batches["worker"] >= 0)
    if workers < 1 or not made.count:
        return None
    total, most, even = 0, 0, 0
    idle, busiest = workers, np.zeros(workers, dtype=np.int64)
    for rank in np.unique(made["rank"]):
        mine = made.having(rank=rank)
        epochs = _epochs_of(mine["start_ns"], fetches.having(rank=rank))
        for epoch in np.unique(epochs):
            numbers = mine["worker"][epochs == epoch]
            counts = np.bincount(numbers[numbers < workers], minlength=workers)
            if counts.sum() < 2 * workers:  # too few to tell: an epoch that had just begun
                continue
            total, most = total + int(counts.sum()), most + int(counts.max())
            even += -(-int(counts.sum()) // workers)
            idle = min(idle, int((counts == 0).sum()))
            busiest[counts.argmax()] += 1
    if not total:
        return None
    return WorkerShares(
        workers=workers, idle=idle, largest=most / total, even=even / total,
        busiest=int(busiest.argmax()),
    )  # fmt: skip


def _epochs_of(start_ns: Ints, fetches: Columns) -> Ints:
    """Return the epoch of each batch: it was begun after the last request of the epoch before."""
    epochs = np.unique(fetches["epoch"])
    last_ns = [fetches["start_ns"][fetches["epoch"] == epoch].max() for epoch in epochs[:-1]]
    return np.searchsorted(np.sort(np.array(last_ns, dtype=np.int64)), start_ns, side="right")
