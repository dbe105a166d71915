"""The accelerator is the limit: healthy.

Fires where data wait is below 5 % of step time, gradient sync below 10 %, and what is left is the
model's (forward, backward, optimizer at least half of step time, or a GPU that is used 80 %): then
nothing that feeds the accelerator can give more than a few per cent. Without a loader nothing marks
where forward begins, so there the ranks must have been seen in the model's code.
"""

from __future__ import annotations

from headrace.observe.doctor.activity import runs_model
from headrace.observe.doctor.evidence import SERIOUS, WARNING, Evidence
from headrace.observe.doctor.gpus import gpu_utilisation
from headrace.observe.doctor.model import Finding
from headrace.observe.doctor.rules.sync_bound import sync_share

RULE = "compute-bound"
_MODEL_SHARE, _GPU_BUSY = 0.5, 0.8


def check(evidence: Evidence) -> Finding | None:
    """Return the finding, where the rule fires."""
    if not evidence.enough or evidence.data_wait_share >= WARNING:
        return None
    if (sync_share(evidence) or 0.0) >= SERIOUS:
        return None
    steps = evidence.steps
    if _model_share(evidence) < _MODEL_SHARE and (gpu_utilisation(evidence) or 0.0) < _GPU_BUSY:
        return None
    return Finding(
        rule=RULE,
        severity="info",
        title=f"the accelerator is the limit: {steps.share('data_wait'):.1%} waits for data",
        seconds_lost=0.0,
        evidence={
            "data_wait_share": steps.share("data_wait"),
            "step_ms": float(steps.wall_ns.mean() / 1e6),
            "steps": len(steps),
        },
    )


def _model_share(evidence: Evidence) -> float:
    steps = evidence.steps
    if evidence.loader is not None:
        return sum(steps.share(phase) for phase in ("forward", "backward", "optimizer"))
    seen = [(sighting.wall_ns, runs_model(sighting)) for sighting in evidence.rank_seen]
    total = sum(wall_ns for wall_ns, _ in seen)
    return sum(wall_ns for wall_ns, inside in seen if inside) / max(total, 1.0)
