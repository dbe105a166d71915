"""The part of a step that does not grow with the batch.

Where steps took different numbers of samples, their own time is fitted by a line over the samples,
and what is left at none is the fixed part. Elsewhere nothing tells it apart.
"""

from __future__ import annotations

import numpy as np

from headrace.observe.whatif.steps import TrainSteps

_FEWEST_STEPS = 20
_SPREAD = 0.1
"""The samples of a step must deviate so much from their mean, as a share of it, for a line."""
_DRAWINGS, _SEED = 200, 23
_INTERVAL = (5.0, 95.0)  # percent


def fixed_cost_ns(steps: TrainSteps) -> tuple[float, float] | None:
    """Return the fixed cost of a batch, lower and upper end; None where steps do not tell.

    Args:
        steps: The train steps that count.
    """
    batches = np.maximum(steps.rows["batches"].astype(np.float64), 1.0)
    samples = steps.rows["samples"].astype(np.float64) / batches
    own = (steps.wall_ns - steps.data_wait_ns) / batches
    known = samples > 0
    samples, own = samples[known], own[known]
    if len(samples) < _FEWEST_STEPS or samples.std() < _SPREAD * samples.mean():
        return None
    drawn = np.random.default_rng(_SEED).integers(len(own), size=(_DRAWINGS, len(own)))
    x, y = samples[drawn], own[drawn]
    away = x - x.mean(axis=1, keepdims=True)
    slope = (away * y).sum(axis=1) / np.maximum((away**2).sum(axis=1), 1e-9)
    fixed = np.clip(y.mean(axis=1) - slope * x.mean(axis=1), 0.0, y.mean(axis=1))
    low, high = np.percentile(fixed, _INTERVAL)
    return float(low), float(high)
