"""Two runs against each other: which took longer a step, in which phase, and beyond noise or not.

Steps that follow one another are alike, so they are resampled in blocks. A difference counts where
the 90 % interval of the ratio of mean step times leaves out 1.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headrace.core.errors import RecordsError
from headrace.observe.whatif.steps import TrainSteps, read_steps
from headrace.observe.whatif.tables import Floats, Tables
from headrace.records.schema import PHASES

FEWEST_STEPS = 10
_BLOCK_STEPS = 8
_MOST_BLOCKS = 2000
_RESAMPLES = 2000
_INTERVAL = (5.0, 95.0)  # percent


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChange:
    """One phase in both runs, milliseconds a step."""

    phase: str
    before_ms: float
    after_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How one run's steps compare with another's.

    Attributes:
        before_ms: Mean step of the first, milliseconds.
        after_ms: Mean step of the second.
        speedup: before / after: above 1 the second is faster.
        low: Lower end of its 90 % interval.
        high: Upper end.
        before_steps: Steps of the first that count, over all ranks.
        after_steps: Steps of the second.
        phases: Every phase that takes time in either.
    """

    before_ms: float
    after_ms: float
    speedup: float
    low: float
    high: float
    before_steps: int
    after_steps: int
    phases: tuple[PhaseChange, ...]

    @property
    def differ(self) -> bool:
        """Whether they differ beyond noise."""
        return not self.low <= 1.0 <= self.high

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's own types."""
        return {**asdict(self), "phases": [asdict(each) for each in self.phases],
                "differ": self.differ}  # fmt: skip


def compare(before: Tables, after: Tables) -> Comparison:
    """Compare two runs.

    Args:
        before: Records of the first.
        after: Records of the second.

    Raises:
        RecordsError: One of them has too few steps.
    """
    one, other = _steps(before, "first"), _steps(after, "second")
    ratios = _resampled(one.wall_ns, seed=1) / _resampled(other.wall_ns, seed=2)
    low, high = np.percentile(ratios, _INTERVAL)
    changes = (
        PhaseChange(
            phase=phase,
            before_ms=float(one.phase_ns(phase).mean() / 1e6),
            after_ms=float(other.phase_ns(phase).mean() / 1e6),
        )
        for phase in PHASES
    )
    return Comparison(
        before_ms=float(one.wall_ns.mean() / 1e6),
        after_ms=float(other.wall_ns.mean() / 1e6),
        speedup=float(one.wall_ns.mean() / other.wall_ns.mean()),
        low=float(low),
        high=float(high),
        before_steps=len(one),
        after_steps=len(other),
        phases=tuple(each for each in changes if max(each.before_ms, each.after_ms) > 0),
    )


def _steps(tables: Tables, which: str) -> TrainSteps:
    steps = read_steps(tables)
    if len(steps) < FEWEST_STEPS:
        raise RecordsError(
            f"The {which} run has {len(steps)} training steps after its warm-up; to compare runs "
            f"takes {FEWEST_STEPS}. Let it train longer."
        )
    return steps


def _resampled(wall_ns: Floats, seed: int) -> Floats:
    """Return means of so many samples as long as the original, drawn in blocks of neighbours."""
    count = len(wall_ns)
    # Of a long run the blocks are longer, so that there are never more than so many of them.
    length = max(min(_BLOCK_STEPS, count), -(-count // _MOST_BLOCKS))
    blocks = -(-count // length)
    begins = np.random.default_rng(seed).integers(0, count, size=(_RESAMPLES, blocks))
    around = np.append(0.0, np.cumsum(np.append(wall_ns, wall_ns[:length])))
    sums = around[begins + length] - around[begins]
    means: Floats = sums.sum(axis=1) / (blocks * length)
    return means
