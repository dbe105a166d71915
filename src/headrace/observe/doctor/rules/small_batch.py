"""Batches are too small to fill the device."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.device_remedies import bigger_batch
from headrace.observe.doctor.evidence import WARNING, Evidence
from headrace.observe.doctor.gpus import gpu_utilisation
from headrace.observe.doctor.model import Finding

RULE = "small-batch"
_UTILISATION, _STEP_NS = 0.5, 50e6


def check(evidence: Evidence) -> Finding | None:
    """Batches are too small to fill the device.

    Fires where data wait is below 5 % of step time, the GPUs are used less than 50 %, and a
    step takes less than 50 ms: then launching kernels, not running them, sets the pace. Only
    where GPUs are recorded.

    By the device's own clock, where that is recorded, only its time at the model can have gaps
    between kernels, so the GPU must be used less than 50 % of that; what it waits elsewhere,
    for a log that is written or a copy, no bigger batch would fill.
    """
    used = gpu_utilisation(evidence)
    device = evidence.steps.device if evidence.loader is not None else None
    at_model = device.model_share if device is not None else 1.0
    if not evidence.enough or used is None or used >= _UTILISATION * at_model:
        return None
    median = float(np.median(evidence.steps.wall_ns))
    if evidence.data_wait_share >= WARNING or median >= _STEP_NS:
        return None
    seconds = (at_model - used) * evidence.steps.total_seconds
    samples = evidence.steps.rows["samples"]
    return Finding(
        rule=RULE,
        severity="warning",
        title=f"steps of {median / 1e6:.1f} ms use the GPU only {used:.0%}",
        seconds_lost=seconds,
        evidence={
            "gpu_utilisation": used,
            **({} if device is None else {"device_model_share": device.model_share}),
            **evidence.script_data_wait,
            "step_ms": median / 1e6,
            "samples_a_step": float(samples.mean()),
        },
        remedies=(bigger_batch(evidence, at_model - used),),
    )
