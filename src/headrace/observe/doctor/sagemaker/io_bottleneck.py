"""A GPU has little to do while the host waits for its disks."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.model import Finding, NotEvaluated
from headrace.observe.doctor.sagemaker.recorded import Recorded, issue
from headrace.observe.whatif.tables import Flags

RULE = "IOBottleneck"
_THRESHOLD, _IO, _GPU = 0.5, 50.0, 10.0


def check(recorded: Recorded) -> Finding | NotEvaluated | None:
    """A GPU has little to do while the host waits for its disks.

    Fires where in more than 50 % of all samples so far I/O wait is above 50 % of a core and any
    one GPU below 10 %, after more than 1,000 samples (IOBottleneck: threshold 50, io_threshold
    50, gpu_threshold 10, patience 1000). Debugger looks at each core's I/O wait; recorded is
    that of all cores together, so here it is added up over them: wherever one core is above 50
    %, so is the sum.
    """
    missing = recorded.missing(RULE)
    if missing is not None:
        return missing
    if recorded.io_wait is None:
        return NotEvaluated(RULE, "no I/O wait was recorded")
    low: Flags = np.any(recorded.gpus < _GPU, axis=1)
    both: Flags = low & (recorded.io_wait * max(recorded.cores.shape[1], 1) > _IO)
    look = recorded.first_above(_THRESHOLD, both)
    if look is None:
        return None
    share = float(both[:look].mean())
    return issue(
        RULE,
        f"in {share:.0%} of the samples I/O wait is above 50% of a core while a GPU is below 10%",
        bottleneck_share=share,
        low_gpu_share=float(low[:look].mean()),
        after_min=recorded.minutes(look),
    )
