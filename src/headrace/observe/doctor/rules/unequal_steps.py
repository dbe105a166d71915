"""Ranks take different numbers of steps, so some end while others wait for them."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Finding, Remedy

RULE = "unequal-steps"
_STEPS, _SHARE = 3, 0.02


def check(evidence: Evidence) -> Finding | None:
    """Ranks take different numbers of steps, so some end while others wait for them.

    Fires where the numbers differ by at least 3 and 2 %: a run that was stopped differs by a step.
    """
    steps = evidence.steps
    if not evidence.enough or len(steps.ranks) < 2:
        return None
    _, counts = np.unique(steps.rows["rank"], return_counts=True)
    most, least = int(counts.max()), int(counts.min())
    if most - least < max(_STEPS, _SHARE * most):
        return None
    seconds = (most - least) * float(steps.wall_ns.mean()) / 1e9
    return Finding(
        rule=RULE,
        severity="warning",
        title=f"ranks take between {least:,} and {most:,} steps",
        seconds_lost=seconds,
        evidence={"fewest_steps": least, "most_steps": most, "ranks": len(steps.ranks)},
        remedies=(
            Remedy(
                name="equal-shares",
                change="the same number of batches on every rank",
                how="Use DistributedSampler(drop_last=True), or headrace.DataLoader, which shares "
                "out the tail.",
            ),
        ),
    )
