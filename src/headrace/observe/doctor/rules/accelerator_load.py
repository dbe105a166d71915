"""Rules about the accelerator's load: it is the limit, small batches, exposed sync."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.device_remedies import bigger_batch_remedy
from headrace.observe.doctor.evidence import SERIOUS, WARNING, Evidence, gpu_utilisation
from headrace.observe.doctor.findings import Finding
from headrace.observe.doctor.remedies import predict_without, predicted_remedy
from headrace.observe.doctor.rule import rule
from headrace.observe.doctor.stack_activity import runs_model


def sync_share(evidence: Evidence) -> float | None:
    """Return the least exposed sync of all ranks over step time; None if not measured."""
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


@rule
def check_sync_bound(evidence: Evidence) -> Finding | None:
    """Gradient sync that backward does not hide takes a large part of the step.

    Fires at 10 % of step time on the rank that syncs least: the last rank of a step waits for no
    other, so its sync time is the network's. Only steps in which sync was measured count.
    """
    share = sync_share(evidence)
    if not evidence.enough or share is None or share < SERIOUS:
        return None
    seconds = share * evidence.steps.total_seconds
    return evidence.finding(
        f"gradient sync takes {share:.0%} of step time beyond what backward hides",
        seconds,
        {
            "sync_share": share,
            "measured_steps": int((evidence.steps.rows["sync_measured"] > 0).sum()),
            "ranks": len(evidence.steps.ranks),
        },
        remedies=(
            predicted_remedy(
                "sync-less",
                "half the syncs",
                predict_without(evidence, evidence.steps.wall_ns * share / 2),
                "Accumulate gradients of two batches under no_sync(), sync in bfloat16 with a "
                "communication hook, or double the batch size.",
            ),
        ),
    )


_MODEL_SHARE, _GPU_BUSY = 0.5, 0.8


@rule
def check_compute_bound(evidence: Evidence) -> Finding | None:
    """The accelerator is the limit: healthy.

    Fires where data wait is below 5 % of step time, gradient sync below 10 %, and the rest is
    the model's (forward, backward, optimizer at least half of step time, or a GPU that is used
    80 %): then nothing that feeds the accelerator can give more than a few per cent. Without a
    loader nothing marks where forward begins, so the ranks must then have been sampled in the
    model's code.

    With a loader, and the device's own clock, the device's work counts rather than the host's
    phase: it must be at the model for 80 % of its time, and used for half of it where a GPU's
    utilisation is recorded, as gaps between kernels are no work.
    """
    if not evidence.enough or evidence.data_wait_share >= WARNING:
        return None
    if (sync_share(evidence) or 0.0) >= SERIOUS:
        return None
    steps, device = evidence.steps, evidence.steps.device
    if not _is_busy(evidence):
        return None
    return evidence.finding(
        f"the accelerator is the limit: {evidence.data_wait_share:.1%} waits for data",
        0.0,
        {
            "data_wait_share": evidence.data_wait_share,
            **evidence.script_data_wait,
            **({} if device is None else {"device_model_share": device.model_share}),
            "step_ms": float(steps.wall_ns.mean() / 1e6),
            "steps": len(steps),
        },
        severity="info",
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
    seen = [(sample.wall_ns, runs_model(sample)) for sample in evidence.rank_samples]
    total = sum(wall_ns for wall_ns, _ in seen)
    return sum(wall_ns for wall_ns, inside in seen if inside) / max(total, 1.0)


_SMALL_UTILISATION, _SHORT_STEP_NS = 0.5, 50e6


@rule
def check_small_batch(evidence: Evidence) -> Finding | None:
    """Batches are too small to fill the device.

    Fires where data wait is below 5 % of step time, the GPUs are used less than 50 %, and a
    step takes less than 50 ms: then launching kernels, not running them, limits the speed. Only
    where GPUs are recorded.

    By the device's own clock, where that is recorded, only its time at the model can have gaps
    between kernels, so the GPU must be used less than 50 % of that; a bigger batch would not
    fill its waits elsewhere, such as for a log or a copy.
    """
    used = gpu_utilisation(evidence)
    device = evidence.steps.device if evidence.loader is not None else None
    at_model = device.model_share if device is not None else 1.0
    if not evidence.enough or used is None or used >= _SMALL_UTILISATION * at_model:
        return None
    median = float(np.median(evidence.steps.wall_ns))
    if evidence.data_wait_share >= WARNING or median >= _SHORT_STEP_NS:
        return None
    seconds = (at_model - used) * evidence.steps.total_seconds
    samples = evidence.steps.rows["samples"]
    return evidence.finding(
        f"steps of {median / 1e6:.1f} ms use the GPU only {used:.0%}",
        seconds,
        {
            "gpu_utilisation": used,
            **({} if device is None else {"device_model_share": device.model_share}),
            **evidence.script_data_wait,
            "step_ms": median / 1e6,
            "samples_a_step": float(samples.mean()),
        },
        remedies=(bigger_batch_remedy(evidence, at_model - used),),
        severity="warning",
    )
