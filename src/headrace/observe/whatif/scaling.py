"""Scaling of the same pipeline to more ranks on its host, which share its cores.

What one rank needs of the CPU was measured, in its workers and in the rank itself; N ranks need N
times that of the same cores.

Threads of a worker need more where they outnumber the cores. They wait for each other, and mostly
spinning: each spins while those it waits for are not on a core. How much depends on how short the
work is between two waits, which one rank's run does not show, as its threads had a core each. So
that is a range, from nothing to the most that was seen, and in between its middle.

Not counted is what a run with fewer ranks does not show: gradient sync, memory bandwidth, storage
that the ranks share, and that all may want a core at once. The interval's lower end allows for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.prediction import PipelineChange, Simulator
from headrace.observe.whatif.simulation import FULL

MAX_SPIN_FACTOR = 20.0
"""Threads that outnumber the cores take at most so many times the CPU time of their work.

It has no bound of its own: who waits spins until the one waited for had its turn on a core, some
milliseconds, however short the work between two waits. Two threads in each of two workers took 9
times for elementwise operations on two cores, those of BLAS 6 to 8 times, and operations of a
millisecond 15 times; this is a third more."""
THREADED_FACTOR = 1.5
"""Workers that use so many times the CPU time of their main threads have threads to spare."""
_MORE_THREADS, _MORE_SHARE = 0.5, 0.05
"""So many threads more than the host's cores outnumber them, or such a share, where that is more:
their number is a ratio of CPU times."""
_FREE_CORES_SHARE = 0.1
"""Threads that outnumber cores of which this share is used are taken to let each other be. They
did not at 0.13, 0.2 and 0.46 in reference case A, with 12, 2.7 and 13 times the CPU time of one
rank's: who finds the other's core taken holds on to its own, and so on."""
_UNCOUNTED_SHARE = 0.35
"""What is not counted takes from the foretold speed of more ranks so much, at most, times the share
of the cores that they use: gradient sync, and the moments in which all want a core although there
are enough for all on average. Two ranks on two cores had 0.80 to 0.96 of what was foretold in nine
cases of ten (benchmarks/remedies/ranks.py)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 90 % interval.

    Attributes:
        value: The number.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """Return it with all three multiplied."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def within(self, lowest: float, highest: float) -> Estimate:
        """Return it with all three cut to what can be."""
        value, low, high = np.clip((self.value, self.low, self.high), lowest, highest)
        return Estimate(float(value), float(low), float(high))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRun:
    """A run with so many ranks on its host.

    Attributes:
        ranks: Ranks on the host.
        batches_per_s: Of all of them together.
        efficiency: What each gets of what one alone would, 0 to 1.
        wait_share: Data wait over step time, 0 to 1.
        spin_factor: So many times the measured CPU time that workers take then, as their threads
            wait for each other: 1 where each finds a core.
    """

    ranks: int
    batches_per_s: Estimate
    efficiency: Estimate
    wait_share: Estimate
    spin_factor: Estimate


def spin_estimate(simulator: Simulator, ranks: int) -> Estimate:
    """Return so many times what CPU time the threads of workers take with so many ranks.

    Args:
        simulator: The measured pipeline.
        ranks: Ranks on the host.
    """
    more = ranks / simulator.measured.ranks
    if more <= 1.0 or not are_threads_crowded(simulator, more):
        return Estimate(1.0, 1.0, 1.0)
    # On full cores they spun when they were measured: at most as many times more of them wait.
    most = more if _busy(simulator) >= FULL else MAX_SPIN_FACTOR
    return Estimate(float(np.sqrt(most)), 1.0, most)


def are_threads_crowded(simulator: Simulator, more: float = 1.0) -> bool:
    """Tell whether workers' threads outnumber the cores, so that they may spin.

    Args:
        simulator: A pipeline.
        more: So many times its ranks.
    """
    threads, pipeline = simulator.load.threads, simulator.measured.pipeline
    spare = max(_MORE_THREADS / simulator.measured.ranks, _MORE_SHARE * pipeline.cores)
    outnumbered = pipeline.workers * threads * more > pipeline.cores + spare
    return (
        threads >= THREADED_FACTOR and outnumbered and _busy(simulator) * more > _FREE_CORES_SHARE
    )


def _busy(simulator: Simulator) -> float:
    """Return the share of its cores that a pipeline uses."""
    used_ns = float((simulator.load.demand_ns + simulator.load.consume_cpu_ns).mean())
    return used_ns / (float(simulator.before.period_ns.mean()) * simulator.measured.pipeline.cores)


def with_ranks(simulator: Simulator, ranks: int) -> Simulator:
    """Return a simulator of the same pipeline with so many ranks on the host.

    Args:
        simulator: The measured pipeline.
        ranks: Ranks on the host.
    """
    spun = spin_estimate(simulator, ranks)
    return simulator.changed(PipelineChange(ranks=ranks, spin_factor=spun.value))


def scale_ranks(simulator: Simulator, ranks: int, wait_share: float) -> ScaledRun:
    """Return what so many ranks would give.

    Args:
        simulator: The measured pipeline.
        ranks: Ranks on the host; as many as were measured give what was measured.
        wait_share: The measured data wait over step time, 0 to 1.
    """
    spun = spin_estimate(simulator, ranks)
    told = [
        simulator.predict(PipelineChange(ranks=ranks, spin_factor=factor))
        for factor in sorted({spun.low, spun.value, spun.high})
    ]
    likely = told[len(told) // 2]
    alone = simulator.predict(PipelineChange(ranks=1)).speedup
    more = ranks / simulator.measured.ranks
    left = 1.0 - _UNCOUNTED_SHARE * min(_busy(simulator) * more, 1.0) if more > 1.0 else 1.0
    # The most that is spun is an end already; nothing is added to it.
    speed = Estimate(
        likely.speedup, min(likely.low * left, told[-1].speedup), max(told[0].high, likely.high)
    )
    one_rank = 1e9 / float(simulator.measured.period_ns.mean())
    # Taking a batch that lies ready counts as the rank's own time in the simulation, and as data
    # wait where it is measured: it costs the same each batch, however many ranks there are.
    extra = wait_share - simulator.wait_share()
    waits = likely.wait_share + extra * speed.value
    # The rank's own time in a step stays: the faster steps come, the less of them is wait.
    own = (1.0 - waits) / max(speed.value, 1e-9)
    return ScaledRun(
        ranks=ranks,
        batches_per_s=speed.times(one_rank * ranks),
        efficiency=speed.times(1.0 / max(alone, 1e-9)).within(0.0, 1.0),
        wait_share=Estimate(waits, 1.0 - own * speed.high, 1.0 - own * speed.low).within(0.0, 1.0),
        spin_factor=spun,
    )
