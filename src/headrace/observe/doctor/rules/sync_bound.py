"""Gradient sync that backward does not hide takes a large part of the step."""

from __future__ import annotations

from headrace.observe.doctor.evidence import SERIOUS, Evidence
from headrace.observe.doctor.model import Finding
from headrace.observe.doctor.remedies import predicted, without

RULE = "sync-bound"


def sync_share(evidence: Evidence) -> float | None:
    """Return the exposed sync over step time of the rank with the least; None: not measured."""
    steps = evidence.steps
    if len(steps) == 0:
        return None
    measured = steps.rows["sync_measured"] > 0
    shares = [
        steps.of(measured & (steps.rows["rank"] == rank)).share("sync")
        for rank in steps.ranks
        if (measured & (steps.rows["rank"] == rank)).any()
    ]
    return min(shares, default=None)


def check(evidence: Evidence) -> Finding | None:
    """Gradient sync that backward does not hide takes a large part of the step.

    Fires at 10 % of step time on the rank that syncs least: a rank that comes last waits for
    nobody, so what it spends is the network's. Only steps in which sync was measured count.
    """
    share = sync_share(evidence)
    if not evidence.enough or share is None or share < SERIOUS:
        return None
    seconds = share * evidence.steps.total_seconds
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=f"gradient sync takes {share:.0%} of step time beyond what backward hides",
        seconds_lost=seconds,
        evidence={
            "sync_share": share,
            "measured_steps": int((evidence.steps.rows["sync_measured"] > 0).sum()),
            "ranks": len(evidence.steps.ranks),
        },
        remedies=(
            predicted(
                "sync-less",
                "half the syncs",
                without(evidence, evidence.steps.wall_ns * share / 2),
                "Accumulate gradients of two batches under no_sync(), sync in bfloat16 with a "
                "communication hook, or double the batch size.",
            ),
        ),
    )
