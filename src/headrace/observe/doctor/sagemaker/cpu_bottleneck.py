"""A GPU has little to do while a core is busy: the CPU holds it up."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.model import Finding, NotEvaluated
from headrace.observe.doctor.sagemaker.recorded import Recorded, issue
from headrace.observe.whatif.tables import Flags

RULE = "CPUBottleneck"
_THRESHOLD, _CPU, _GPU = 0.5, 90.0, 10.0


def check(recorded: Recorded) -> Finding | NotEvaluated | None:
    """A GPU has little to do while a core is busy: the CPU holds it up.

    Fires where in more than 50 % of all samples so far any one core is above 90 % and any one
    GPU below 10 %, after more than 1,000 samples (CPUBottleneck: threshold 50, cpu_threshold
    90, gpu_threshold 10, patience 1000). One busy core is enough, and a GPU that idles half of
    its time is not: Headrace's own `cpu-bound-worker` looks at how long steps wait instead.
    """
    missing = recorded.missing(RULE)
    if missing is not None:
        return missing
    if not recorded.cores.shape[1]:
        return NotEvaluated(RULE, "no core was recorded")
    low: Flags = np.any(recorded.gpus < _GPU, axis=1)
    both: Flags = low & np.any(recorded.cores > _CPU, axis=1)
    look = recorded.first_above(_THRESHOLD, both)
    if look is None:
        return None
    share = float(both[:look].mean())
    return issue(
        RULE,
        f"in {share:.0%} of the samples a core is above 90% while a GPU is below 10%",
        bottleneck_share=share,
        low_gpu_share=float(low[:look].mean()),
        after_min=recorded.minutes(look),
    )
