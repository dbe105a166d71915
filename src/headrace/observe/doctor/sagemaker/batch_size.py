"""CPU, a GPU and its memory are used little: the batch is too small, or the host too large."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.model import Finding, NotEvaluated
from headrace.observe.doctor.sagemaker.recorded import WINDOW, Recorded, issue, quantile

RULE = "BatchSize"
_CPU, _GPU, _MEMORY = 70.0, 70.0, 70.0
_QUANTILE = 0.95


def check(recorded: Recorded) -> Finding | NotEvaluated | None:
    """CPU, a GPU and its memory are used little: the batch is too small, or the host too large.

    Fires where the 95th percentiles of 500 samples are below 70 % for the mean of the cores,
    for a GPU and for that GPU's memory, after more than 1,000 samples (BatchSize:
    cpu_threshold_p95 70, gpu_threshold_p95 70, gpu_memory_threshold_p95 70, window 500,
    patience 1000).
    """
    missing = recorded.missing(RULE)
    if missing is not None:
        return missing
    if recorded.gpu_memory is None:
        return NotEvaluated(RULE, "the size of the GPUs' memory was not recorded")
    cpu = recorded.cores.mean(axis=1) if recorded.cores.size else np.zeros(0)
    if not len(cpu):
        return NotEvaluated(RULE, "no core was recorded")
    for look in recorded.looks:
        window = slice(look - WINDOW, look)
        cpu_used = quantile(cpu[window], _QUANTILE)
        for place, gpu in enumerate(recorded.gpu_numbers):
            used = quantile(recorded.gpus[window, place], _QUANTILE)
            memory = quantile(recorded.gpu_memory[window, place], _QUANTILE)
            if cpu_used < _CPU and used < _GPU and memory < _MEMORY:
                return issue(
                    RULE,
                    f"the cores, GPU {gpu} and its memory are used little: {cpu_used:.0f}%, "
                    f"{used:.0f}% and {memory:.0f}% at the 95th percentile",
                    gpu=gpu,
                    cpu_p95_percent=cpu_used,
                    gpu_p95_percent=used,
                    gpu_memory_p95_percent=memory,
                    after_min=recorded.minutes(look),
                )
    return None
