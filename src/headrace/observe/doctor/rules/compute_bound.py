"""The accelerator is the limit: healthy."""

from __future__ import annotations

from headrace.observe.doctor.activity import runs_model
from headrace.observe.doctor.evidence import SERIOUS, WARNING, Evidence
from headrace.observe.doctor.gpus import gpu_utilisation
from headrace.observe.doctor.model import Finding
from headrace.observe.doctor.rules.sync_bound import sync_share

RULE = "compute-bound"
_MODEL_SHARE, _GPU_BUSY = 0.5, 0.8


def check(evidence: Evidence) -> Finding | None:
    """The accelerator is the limit: healthy.

    Fires where data wait is below 5 % of step time, gradient sync below 10 %, and what is left
    is the model's (forward, backward, optimizer at least half of step time, or a GPU that is
    used 80 %): then nothing that feeds the accelerator can give more than a few per cent.
    Without a loader nothing marks where forward begins, so there the ranks must have been seen
    in the model's code.

    With a loader, and the device's own clock, it counts what the device does rather than where
    the host stands: it must be at the model for 80 % of its time, and used for half of it where
    a GPU's utilisation is recorded, as gaps between kernels are no work.
    """
    if not evidence.enough or evidence.data_wait_share >= WARNING:
        return None
    if (sync_share(evidence) or 0.0) >= SERIOUS:
        return None
    steps, device = evidence.steps, evidence.steps.device
    if not _is_busy(evidence):
        return None
    return Finding(
        rule=RULE,
        severity="info",
        title=f"the accelerator is the limit: {evidence.data_wait_share:.1%} waits for data",
        seconds_lost=0.0,
        evidence={
            "data_wait_share": evidence.data_wait_share,
            **evidence.script_data_wait,
            **({} if device is None else {"device_model_share": device.model_share}),
            "step_ms": float(steps.wall_ns.mean() / 1e6),
            "steps": len(steps),
        },
    )


def _is_busy(evidence: Evidence) -> bool:
    used, device = gpu_utilisation(evidence), evidence.steps.device
    if used is not None and used >= _GPU_BUSY:
        return True
    if device is None or evidence.loader is None:
        return _model_share(evidence) >= _MODEL_SHARE
    return device.model_share >= _GPU_BUSY and (used is None or used >= _MODEL_SHARE)


def _model_share(evidence: Evidence) -> float:
    steps = evidence.steps
    if evidence.loader is not None:
        return sum(steps.share(phase) for phase in ("forward", "backward", "optimizer"))
    seen = [(sighting.wall_ns, runs_model(sighting)) for sighting in evidence.rank_seen]
    total = sum(wall_ns for wall_ns, _ in seen)
    return sum(wall_ns for wall_ns, inside in seen if inside) / max(total, 1.0)
