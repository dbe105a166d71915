"""How long a rank and its workers wait for a core where Linux has more processes than cores.

Cores that suffice on average are all taken at moments. A process that wakes then shares a core with
one that runs there, half and half, until one of them sleeps: the scheduler moves none of them in
the milliseconds that a rank computes at a time, so that it does not get an equal part of all cores.
With one to three processes more than two cores the estimated time of each one's work was
0.94 to 1.17 times the measured one (benchmarks/remedies/core_waits.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.simulation import BatchCosts, BatchDemand, Pipeline, SimulationResult
from headrace.observe.whatif.tables import Floats

_ROUNDS, _TOLERANCE = 12, 0.01
"""A process that waits is there for longer, so that others wait more: estimated anew so often, or
until no wait changes by more."""


@dataclass(frozen=True, slots=True)
class CoreWaits:
    """Waits for a core over CPU time, one a drawing."""

    consumer: Floats
    workers: Floats

    def beyond(self, other: CoreWaits) -> CoreWaits:
        """Return what of these is more than some other ones."""
        return CoreWaits(
            np.maximum(self.consumer - other.consumer, 0.0),
            np.maximum(self.workers - other.workers, 0.0),
        )


def core_waits(
    pipeline: Pipeline, costs: BatchCosts, result: SimulationResult, ranks: int = 1
) -> CoreWaits:
    """Return how long the consumer and its workers wait for cores in a simulation.

    Each process is assumed to compute for its share of the time, independently of the others.

    Args:
        pipeline: Of one rank, with its part of the host's cores.
        costs: Of its batches.
        result: How it runs with them.
        ranks: So many on the host do the same.
    """
    nothing = np.zeros_like(result.period_ns)
    waits = CoreWaits(nothing, nothing)
    workers, cores = pipeline.workers * ranks, pipeline.cores * ranks
    if not workers or workers + ranks <= cores:
        return waits
    demand, count = BatchDemand.of(costs), max(round(cores), 1)
    made = demand.made_ns * result.local_share / (result.period_ns * pipeline.workers)
    used = demand.used_ns / result.period_ns
    for _ in range(_ROUNDS):
        worker = np.clip(made * (1.0 + waits.workers), 0.0, 1.0)
        consumer = np.clip(used * (1.0 + waits.consumer), 0.0, 1.0)
        before, waits = (
            waits,
            CoreWaits(
                _mean(_of_newcomer, count, (worker, workers), (consumer, ranks - 1)),
                _mean(_of_others, count, (worker, workers - 1), (consumer, ranks)),
            ),
        )
        changes = waits.consumer - before.consumer, waits.workers - before.workers
        if np.abs(changes).max() <= _TOLERANCE:
            break
    return waits


def _mean(wait: Callable[[int, int], float], cores: int, *others: tuple[Floats, int]) -> Floats:
    """Return the mean wait beside others: the share of the time that each is there, how many."""
    odds = np.ones((len(others[0][0]), 1))  # that 0, 1, ... are there at once, a row a drawing
    for share, processes in others:
        there = share[:, None]
        for _ in range(processes):
            odds = np.pad(odds * (1.0 - there), ((0, 0), (0, 1))) + np.pad(
                odds * there, ((0, 0), (1, 0))
            )
    return np.asarray(odds @ np.array([wait(each, cores) for each in range(odds.shape[1])]))


def _of_newcomer(others: int, cores: int) -> float:
    """Return the wait of a process that wakes beside others: they are spread over the cores."""
    return float(others // cores)


def _of_others(others: int, cores: int) -> float:
    """Return the mean wait of processes of which each runs beside others, the last of them new."""
    on_each, more = divmod(others + 1, cores)
    every = (cores - more) * on_each * (on_each - 1) + more * (on_each + 1) * on_each
    return (every - _of_newcomer(others, cores)) / others if others else 0.0
