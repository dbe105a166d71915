"""Simulation of a job with many ranks: their loaders, stragglers, and gradient sync.

Each rank has its own loader, whose batches are drawn from those that were measured. Steps are drawn
alike for all ranks, and what one rank's differ by for each of them. After a step all wait for the
slowest, and then gradients are synchronised. A prediction is the measured speed times what the
simulation says of more ranks: by what it is off at the measured number, it is at others, too.

A ring sends 2 (n - 1) / n times the gradients over each connection, however many ranks there are,
in rounds of which there are as many more as log2(n) says, or as n does: sync is taken to grow by
nothing but the first, by the first and log2(n), or in between. Of a run of one rank nothing of this
is known: sync takes nothing to a fifth of a rank's own time, and ranks differ by nothing to all
that steps differ by. Hosts are like those of the run, with as many ranks on each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.observe.whatif.prediction import Estimate, Simulator, interval_width
from headrace.observe.whatif.rank_times import RankTimes
from headrace.observe.whatif.simulation import BatchCosts, Pipeline, SimulationResult, simulate
from headrace.observe.whatif.tables import Floats

MOST_RANKS = 4096
_MOST_DRAWINGS, _FEWEST_DRAWINGS, _MOST_ROWS, _SEED = 24, 4, 2048, 29
_FEWEST_STEPS, _MOST_STEPS = 96, 320
_UNMEASURED_SYNC = (0.0, 0.1, 0.2)
_UNSEEN_A_DOUBLING = 0.01
"""By how much less each doubling of the ranks may give, for what few ranks do not show, such as
networks that many share. Of eight real ranks two had shown all but 0.03 to 0.04
(benchmarks/cluster/scaling.py)."""
_VARIANTS = (0, 1, 2)
"""Of what is not known: the least, what is likely, the most that slows ranks down."""
_MIDDLE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRanks:
    """What is predicted of a number of ranks.

    Attributes:
        ranks: Of the job.
        steps_per_s: Of all ranks together, which step at once.
        efficiency: Speed over that of a rank alone, 0 to 1.
        wait_share: Of step time, waiting for data.
        straggler_share: Waiting for slower ranks.
        sync_share: Sending gradients.
    """

    ranks: int
    steps_per_s: Estimate
    efficiency: Estimate
    wait_share: float
    straggler_share: float
    sync_share: float


class RankSimulator:
    """Simulates a measured run with any number of ranks.

    Args:
        simulator: Of its pipeline.
        times: What its ranks take by themselves.
        changed: Of the pipeline that the ranks have; None: as it was measured.
        alone: Of that of a rank which has a host to itself; None: as `changed`.
        data_is_ready: No rank waits for data: the most that remedies of loaders could give.
    """

    def __init__(
        self, simulator: Simulator, times: RankTimes, *, changed: Simulator | None = None,
        alone: Simulator | None = None, data_is_ready: bool = False,
    ) -> None:  # fmt: skip
        self._times = times
        self._simulator, self._changed = simulator, changed or simulator
        self._data_is_ready = data_is_ready
        self._base = [self._measured_run(variant) for variant in _VARIANTS]
        of_one = alone or self._changed
        self._alone = [self._run(1, variant, of_one) for variant in _VARIANTS]

    def predict(self, ranks: int) -> SimulatedRanks:
        """Return what is predicted of a number of ranks."""
        runs = [self._run(ranks, variant, self._changed) for variant in _VARIANTS]
        speeds = [_ratios(base, run) for base, run in zip(self._base, runs, strict=True)]
        value, low, high = _spread(speeds)
        known = ranks == self._times.ranks and self._changed is self._simulator
        width = interval_width(1.0 if known else value, self._simulator.calibration)
        efficiency = _spread(
            [_ratios(one, run) for one, run in zip(self._alone, runs, strict=True)]
        )
        seen = 1.0 - _UNSEEN_A_DOUBLING * max(np.log2(ranks / self._times.ranks), 0.0)
        low, efficiency = low * seen, (efficiency[0], efficiency[1] * seen, efficiency[2])
        middle = runs[_MIDDLE]
        period_ns = float(middle.period_ns.mean())
        sync_ns = self._sync_ns(ranks, _MIDDLE) / self._batches
        return SimulatedRanks(
            ranks=ranks,
            steps_per_s=Estimate(value, max(low - width, 0.0), high + width).times(
                1e9 / self._times.period_ns
            ),
            efficiency=Estimate(*efficiency).within(0.0, 1.0),
            wait_share=middle.wait_share,
            straggler_share=max(float(middle.joined_ns.mean()) - sync_ns, 0.0) / period_ns,
            sync_share=sync_ns / period_ns,
        )

    @property
    def _batches(self) -> int:
        """Batches of a step."""
        return max(round(self._times.batches), 1)

    def _measured_run(self, variant: int) -> SimulationResult:
        simulator = self._simulator
        return self._simulated(self._times.ranks, variant, simulator, simulator.costs)

    def _run(self, ranks: int, variant: int, simulator: Simulator) -> SimulationResult:
        costs = simulator.costs
        if self._data_is_ready:
            nothing = np.zeros_like(costs.service_ns)
            costs = replace(costs, service_ns=nothing, service_cpu_ns=nothing, demand_ns=nothing)
        return self._simulated(ranks, variant, simulator, costs)

    def _simulated(
        self, ranks: int, variant: int, simulator: Simulator, costs: BatchCosts
    ) -> SimulationResult:
        pipeline = replace(
            simulator.measured.pipeline, coupled_ranks=ranks, batches_a_step=self._batches
        )
        return simulate(pipeline, self._drawn(pipeline, costs, variant))

    def _drawn(self, pipeline: Pipeline, costs: BatchCosts, variant: int) -> BatchCosts:
        """Return costs of some drawings, with a row for each rank of each."""
        ranks, batches_a_step = pipeline.coupled_ranks, pipeline.batches_a_step
        drawings = int(np.clip(_MOST_ROWS // ranks, _FEWEST_DRAWINGS, _MOST_DRAWINGS))
        needed = 4 * pipeline.depth // batches_a_step
        steps = int(np.clip(needed, _FEWEST_STEPS, _MOST_STEPS))
        random = np.random.default_rng(_SEED)
        shape = drawings * ranks, steps * batches_a_step
        made = random.integers(costs.service_ns.size, size=shape)
        own_ns = self._own_ns(random, drawings, ranks, steps, variant) / batches_a_step
        taking_ns = self._simulator.measured.taking_ns
        sync_ns = np.full(shape, self._sync_ns(ranks, variant))
        return replace(
            costs,
            service_ns=costs.service_ns.ravel()[made],
            service_cpu_ns=costs.service_cpu_ns.ravel()[made],
            demand_ns=costs.demand_ns.ravel()[made],
            consume_ns=np.repeat(own_ns, batches_a_step, axis=1) + taking_ns,
            consume_cpu_ns=np.full(shape, float(costs.consume_cpu_ns.mean())),
            sync_ns=sync_ns if ranks > 1 else None,
            queue_ns=None,
        )

    def _own_ns(
        self, random: np.random.Generator, drawings: int, ranks: int, steps: int, variant: int
    ) -> Floats:
        """Return own times, rows x steps."""
        times, shape = self._times, (drawings * ranks, steps)
        drawn: Floats = random.choice(times.step_ns, size=(drawings, steps))
        alike = np.repeat(drawn, ranks, axis=0)
        if len(times.beyond_ns):
            beyond: Floats = random.choice(times.beyond_ns, size=shape)
            return np.asarray(np.maximum(alike + beyond, 0.0))
        # How much of what steps differ by is each rank's own is not known of a single rank.
        share = variant / (len(_VARIANTS) - 1)
        mean = float(times.step_ns.mean())
        each = random.choice(times.step_ns, size=shape)
        mixed = (alike - mean) * np.sqrt(1.0 - share) + (each - mean) * np.sqrt(share)
        return np.asarray(np.maximum(mean + mixed, 0.0))

    def _sync_ns(self, ranks: int, variant: int) -> float:
        """Return the sync of a step."""
        times = self._times
        if ranks == 1:
            return 0.0
        if times.ranks == 1 or times.sync_ns is None:
            share = _UNMEASURED_SYNC[variant] if times.ranks == 1 else 0.0
            return share * float(times.step_ns.mean())
        sent = (1.0 - 1.0 / ranks) / (1.0 - 1.0 / times.ranks)
        rounds = np.log2(ranks) / np.log2(times.ranks)
        return float(times.sync_ns * sent * rounds ** (variant / (len(_VARIANTS) - 1)))


def _ratios(before: SimulationResult, after: SimulationResult) -> Floats:
    """Return speeds over the mean speed before, one a drawing."""
    return np.asarray(float(before.period_ns.mean()) / after.period_ns)


def _spread(ratios: Sequence[Floats]) -> tuple[float, float, float]:
    """Return the middle variant's mean, and the 90 % interval of all."""
    every = np.concatenate(ratios)
    low, high = np.percentile(every, (5, 95))
    value = float(ratios[_MIDDLE].mean())
    return value, min(float(low), value), max(float(high), value)
