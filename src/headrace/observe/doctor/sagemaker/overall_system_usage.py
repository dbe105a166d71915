"""How much of the host was used. Fires never: it only reports (OverallSystemUsage)."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.model import Fact, Finding, NotEvaluated
from headrace.observe.doctor.sagemaker.recorded import Recorded, quantile
from headrace.observe.whatif.tables import Floats

RULE = "OverallSystemUsage"
_PERCENTILES = (50, 95, 99)


def check(recorded: Recorded) -> Finding | NotEvaluated | None:
    """How much of the host was used. Fires never: it only reports (OverallSystemUsage).

    Percentiles of all samples: the mean of the cores, I/O wait, each GPU and its memory.
    """
    if not len(recorded.t_ns) or not recorded.cores.shape[1]:
        return NotEvaluated(RULE, "no sample of the system was recorded")
    series: dict[str, Floats] = {"cpu": recorded.cores.mean(axis=1)}
    if recorded.io_wait is not None:
        series["io_wait"] = recorded.io_wait
    for place, gpu in enumerate(recorded.gpu_numbers):
        series[f"gpu_{gpu}"] = recorded.gpus[:, place]
        if recorded.gpu_memory is not None:
            series[f"gpu_{gpu}_memory"] = recorded.gpu_memory[:, place]
    evidence: dict[str, Fact] = {
        f"{name}_p{percentile}_percent": quantile(values, percentile / 100)
        for name, values in series.items()
        for percentile in _PERCENTILES
    }
    told = [f"the cores {quantile(series['cpu'], 0.5):.0f}%"]
    told += [
        f"GPU {gpu} {quantile(recorded.gpus[:, place], 0.5):.0f}%"
        for place, gpu in enumerate(recorded.gpu_numbers)
        if np.isfinite(recorded.gpus[:, place]).any()
    ]
    return Finding(
        rule=RULE,
        severity="info",
        title=f"used, at the median: {', '.join(told)}",
        seconds_lost=0.0,
        evidence=evidence,
    )
