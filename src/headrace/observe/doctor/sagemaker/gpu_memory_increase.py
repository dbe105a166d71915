"""Memory in use on a GPU jumps up."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.model import Finding, NotEvaluated
from headrace.observe.doctor.sagemaker.recorded import PATIENCE, Recorded, issue
from headrace.observe.whatif.tables import Floats

RULE = "GPUMemoryIncrease"
_INCREASE, _WINDOW = 5.0, 10


def check(recorded: Recorded) -> Finding | NotEvaluated | None:
    """Memory in use on a GPU jumps up.

    Fires where the mean of a GPU's last 10 samples, in percent of its memory, is more than 5
    points above the mean of those before the last two, after more than 1,000 samples
    (GPUMemoryIncrease: increase 5, window 10, patience 1000). These are the windows of
    Debugger's source. It sees jumps; growth that goes on for hours is what Headrace's own
    `memory-growth` looks for.
    """
    missing = recorded.missing(RULE)
    if missing is not None:
        return missing
    if recorded.gpu_memory is None:
        return NotEvaluated(RULE, "the size of the GPUs' memory was not recorded")
    for place, gpu in enumerate(recorded.gpu_numbers):
        used = recorded.gpu_memory[:, place]
        increase = _increase(used[np.isfinite(used)])[PATIENCE - _WINDOW :]
        if len(increase) and increase.max() > _INCREASE:
            return issue(
                RULE,
                f"memory in use on GPU {gpu} jumps by {increase.max():.1f} points, on average "
                "over 10 samples",
                gpu=gpu,
                increase_percent=float(increase.max()),
                jumps=int((increase > _INCREASE).sum()),
                highest_percent=float(np.nanmax(used)),
            )
    return None


def _increase(used: Floats) -> Floats:
    """Return for each sample from the eleventh on how far the mean rose."""
    if len(used) <= _WINDOW:
        return np.zeros(0)
    sums = np.concatenate([[0.0], np.cumsum(used)])
    ends = np.arange(_WINDOW + 1, len(used) + 1)
    last = (sums[ends] - sums[ends - _WINDOW]) / _WINDOW
    before = (sums[ends - 2] - sums[ends - _WINDOW - 1]) / (_WINDOW - 1)
    increase: Floats = last - before
    return increase
