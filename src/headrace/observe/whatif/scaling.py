"""The same pipeline with more ranks on its host: they share its cores.

What one rank needs of the CPU was measured, in its workers and in the rank itself; N ranks need N
times that of the same cores. Not counted is what a run with fewer ranks does not show: gradient
sync, memory bandwidth, and storage that the ranks share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.prediction import Change, Simulator


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
class Scaled:
    """A run with so many ranks on its host.

    Attributes:
        ranks: Ranks on the host.
        batches_per_s: Of all of them together.
        efficiency: What each gets of what one alone would, 0 to 1.
        wait_share: Data wait over step time, 0 to 1.
    """

    ranks: int
    batches_per_s: Estimate
    efficiency: Estimate
    wait_share: Estimate


def with_ranks(simulator: Simulator, ranks: int) -> Simulator:
    """Return a simulator of the same pipeline with so many ranks on the host.

    Args:
        simulator: The measured pipeline.
        ranks: Ranks on the host.
    """
    return simulator.changed(Change(ranks=ranks))


def scaled(simulator: Simulator, ranks: int, wait_share: float) -> Scaled:
    """Return what so many ranks would give.

    Args:
        simulator: The measured pipeline.
        ranks: Ranks on the host; as many as were measured give what was measured.
        wait_share: The measured data wait over step time, 0 to 1.
    """
    prediction = simulator.predict(Change(ranks=ranks))
    alone = simulator.predict(Change(ranks=1)).speedup
    speed = Estimate(prediction.speedup, prediction.low, prediction.high)
    one_rank = 1e9 / float(simulator.measured.period_ns.mean())
    # Taking a batch that lies ready counts as the rank's own time in the simulation, and as data
    # wait where it is measured: it costs the same each batch, however many ranks there are.
    extra = wait_share - simulator.wait_share()
    waits = prediction.wait_share + extra * speed.value
    # The rank's own time in a step stays: the faster steps come, the less of them is wait.
    own = (1.0 - waits) / max(speed.value, 1e-9)
    return Scaled(
        ranks=ranks,
        batches_per_s=speed.times(one_rank * ranks),
        efficiency=speed.times(1.0 / max(alone, 1e-9)).within(0.0, 1.0),
        wait_share=Estimate(waits, 1.0 - own * speed.high, 1.0 - own * speed.low).within(0.0, 1.0),
    )
