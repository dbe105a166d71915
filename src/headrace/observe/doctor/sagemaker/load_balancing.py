"""The GPUs of a host are not used alike."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from headrace.observe.doctor.model import Finding, NotEvaluated
from headrace.observe.doctor.sagemaker.recorded import Recorded, issue
from headrace.observe.whatif.tables import Floats

RULE = "LoadBalancing"
_THRESHOLD = 0.5
_EDGES = np.arange(0.0, 101.0, 2.0)


def check(recorded: Recorded) -> Finding | NotEvaluated | None:
    """The GPUs of a host are not used alike.

    Fires where the Jensen-Shannon distance between two GPUs' histograms of utilisation, in bins
    of 2 %, is above 0.5, after more than 1,000 samples (LoadBalancing: threshold 0.5, patience
    1000). Debugger leaves samples above 98 % out; here they count. It sees utilisation, never
    time: which rank the others wait for is what Headrace's own `slow-rank` tells.
    """
    missing = recorded.missing(RULE, gpus=2)
    if missing is not None:
        return missing
    shares = [_histogram(recorded.gpus[:, place]) for place in range(len(recorded.gpu_numbers))]
    distance, one, other = max(
        (_distance(shares[one], shares[other]), one, other)
        for one, other in combinations(range(len(shares)), 2)
    )
    if distance <= _THRESHOLD:
        return None
    names = recorded.gpu_numbers[one], recorded.gpu_numbers[other]
    means = [float(np.nanmean(recorded.gpus[:, place])) for place in (one, other)]
    return issue(
        RULE,
        f"GPU {names[0]} and GPU {names[1]} are not used alike: {means[0]:.0f}% and "
        f"{means[1]:.0f}% on average",
        distance=distance,
        gpu=names[0],
        other_gpu=names[1],
        gpu_mean_percent=means[0],
        other_gpu_mean_percent=means[1],
    )


def _histogram(used: Floats) -> Floats:
    counts, _ = np.histogram(used[np.isfinite(used)], bins=_EDGES)
    shares: Floats = counts / max(counts.sum(), 1)
    return shares


def _distance(one: Floats, other: Floats) -> float:
    """Return the Jensen-Shannon distance, by the natural logarithm: 0 to 0.83."""
    middle = (one + other) / 2
    return float(np.sqrt(max((_entropy(one, middle) + _entropy(other, middle)) / 2, 0.0)))


def _entropy(shares: Floats, of: Floats) -> float:
    there = shares > 0
    return float((shares[there] * np.log(shares[there] / of[there])).sum())
