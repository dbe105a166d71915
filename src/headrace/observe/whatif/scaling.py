"""Scaling of a pipeline to more ranks on its host, which share the cores.

One rank's CPU time was measured, in its workers and in the rank itself; N ranks need N times that
of the same cores.

Threads of a worker need more where they outnumber the cores: they mostly spin while they wait for
each other, for as long as those they wait for are not on a core. How much depends on how short the
work is between two waits, which one rank's run does not show, as its threads had a core each. So
the estimate is a range from nothing to the most that was seen, with its geometric mean as value.

Not counted is what a run with fewer ranks does not show: gradient sync, memory bandwidth, storage
shared by the ranks, and moments at which all want a core. The interval's lower end allows for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.prediction import PipelineChange, Simulator
from headrace.observe.whatif.simulation import FULL

MAX_SPIN_FACTOR = 20.0
"""Most CPU time of threads that outnumber the cores, over that of their work.

There is no natural bound: a thread spins until the one waited for had its turn on a core, some
milliseconds, however short the work between two waits. Two threads in each of two workers took 9
times for elementwise operations on two cores, those of BLAS 6 to 8 times, and operations of a
millisecond 15 times; this is a third more."""
THREADED_FACTOR = 1.5
"""Workers whose CPU time is so many times that of their main threads are multithreaded."""
_MORE_THREADS, _MORE_SHARE = 0.5, 0.05
"""Threads outnumber the cores if they are more by so many, or by such a share of the cores, because
their number is a ratio of CPU times."""
_FREE_CORES_SHARE = 0.1
"""If no more than this share of the cores is used, threads are assumed not to spin. They did at
0.13, 0.2 and 0.46 in reference case A, with 12, 2.7 and 13 times the CPU time of one rank's: a
thread that finds another's core taken keeps its own by spinning, and so on."""
_UNCOUNTED_SHARE = 0.35
"""The largest reduction of the predicted speed of more ranks by what is not counted, times the
share of the cores that they use: gradient sync, and moments at which all want a core although there
are enough on average. Two ranks on two cores reached 0.80 to 0.96 of the prediction in nine cases
of ten (benchmarks/remedies/ranks.py)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 90 % interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """Return the estimate with all three multiplied."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def within(self, lowest: float, highest: float) -> Estimate:
        """Return the estimate with all three clipped to a range."""
        value, low, high = np.clip((self.value, self.low, self.high), lowest, highest)
        return Estimate(float(value), float(low), float(high))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRun:
    """A run with a given number of ranks on its host."""

    ranks: int
    batches_per_s: Estimate  # of all ranks together
    efficiency: Estimate  # a rank's speed over that of one rank alone, 0 to 1
    wait_share: Estimate  # data wait over step time, 0 to 1
    spin_factor: Estimate  # workers' CPU time over that measured: 1 if each thread has a core


def spin_estimate(simulator: Simulator, ranks: int) -> Estimate:
    """Return the factor on the CPU time of workers, due to spinning, with a number of ranks."""
    more = ranks / simulator.measured.ranks
    if more <= 1.0 or not are_threads_crowded(simulator, more):
        return Estimate(1.0, 1.0, 1.0)
    # On full cores, spinning was measured already: it grows at most with the ranks.
    most = more if _busy(simulator) >= FULL else MAX_SPIN_FACTOR
    return Estimate(float(np.sqrt(most)), 1.0, most)


def are_threads_crowded(simulator: Simulator, more: float = 1.0) -> bool:
    """Return whether workers' threads outnumber the cores at `more` times the ranks: may spin."""
    threads, pipeline = simulator.costs.threads, simulator.measured.pipeline
    spare = max(_MORE_THREADS / simulator.measured.ranks, _MORE_SHARE * pipeline.cores)
    outnumbered = pipeline.workers * threads * more > pipeline.cores + spare
    return (
        threads >= THREADED_FACTOR and outnumbered and _busy(simulator) * more > _FREE_CORES_SHARE
    )


def _busy(simulator: Simulator) -> float:
    """Return the share of its cores that a pipeline uses."""
    used_ns = float((simulator.costs.demand_ns + simulator.costs.consume_cpu_ns).mean())
    return used_ns / (float(simulator.before.period_ns.mean()) * simulator.measured.pipeline.cores)


def with_ranks(simulator: Simulator, ranks: int) -> Simulator:
    """Return a simulator of the same pipeline with a number of ranks on the host."""
    spin = spin_estimate(simulator, ranks)
    return simulator.changed(PipelineChange(ranks=ranks, spin_factor=spin.value))


def scale_ranks(simulator: Simulator, ranks: int, wait_share: float) -> ScaledRun:
    """Return the predicted run with a number of ranks; for the measured one, what was measured."""
    spin = spin_estimate(simulator, ranks)
    predictions = [
        simulator.predict(PipelineChange(ranks=ranks, spin_factor=factor))
        for factor in sorted({spin.low, spin.value, spin.high})
    ]
    likely = predictions[len(predictions) // 2]
    alone = simulator.predict(PipelineChange(ranks=1)).speedup
    more = ranks / simulator.measured.ranks
    margin = 1.0 - _UNCOUNTED_SHARE * min(_busy(simulator) * more, 1.0) if more > 1.0 else 1.0
    # The end with most spinning is an extreme already: no margin is added to it.
    speed = Estimate(
        likely.speedup,
        min(likely.low * margin, predictions[-1].speedup),
        max(predictions[0].high, likely.high),
    )
    one_rank = 1e9 / float(simulator.measured.period_ns.mean())
    # Reading a ready batch counts as the rank's own time in the simulation, but as data wait in the
    # measurement: it costs the same for each batch, however many ranks there are.
    extra = wait_share - simulator.before.wait_share
    waits = likely.wait_share + extra * speed.value
    # The rank's own time in a step stays: the faster the steps, the less of them is wait.
    own = (1.0 - waits) / max(speed.value, 1e-9)
    return ScaledRun(
        ranks=ranks,
        batches_per_s=speed.times(one_rank * ranks),
        efficiency=speed.times(1.0 / max(alone, 1e-9)).within(0.0, 1.0),
        wait_share=Estimate(waits, 1.0 - own * speed.high, 1.0 - own * speed.low).within(0.0, 1.0),
        spin_factor=spin,
    )
