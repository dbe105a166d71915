"""A GPU is used little, or by fits and starts."""

from __future__ import annotations

from headrace.observe.doctor.model import Finding, NotEvaluated
from headrace.observe.doctor.sagemaker.recorded import WINDOW, Recorded, issue, quantile

RULE = "LowGPUUtilization"
_HIGH, _LOW = 70.0, 10.0


def check(recorded: Recorded) -> Finding | NotEvaluated | None:
    """A GPU is used little, or by fits and starts.

    Fires where a GPU's 95th percentile over 500 samples is below 70 %, or above that with a 5th
    percentile below 10 %, after more than 1,000 samples (LowGPUUtilization: threshold_p95 70,
    threshold_p5 10, window 500, patience 1000).
    """
    missing = recorded.missing(RULE)
    if missing is not None:
        return missing
    for look in recorded.looks:
        for place, gpu in enumerate(recorded.gpu_numbers):
            window = recorded.gpus[look - WINDOW : look, place]
            high, low = quantile(window, 0.95), quantile(window, 0.05)
            if high < _HIGH or (high > _HIGH and low < _LOW):
                how = "is used little" if high < _HIGH else "is used by fits and starts"
                return issue(
                    RULE,
                    f"GPU {gpu} {how}: {low:.0f}% at the 5th percentile, {high:.0f}% at the 95th",
                    gpu=gpu,
                    gpu_p5_percent=low,
                    gpu_p95_percent=high,
                    after_min=recorded.minutes(look),
                )
    return None
