"""How busy the accelerators were, from the table `system`."""

from __future__ import annotations

import re

import numpy as np

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.whatif.tables import length

_UTILISATION = re.compile(r"gpu_\d+_utilisation_percent")


def gpu_utilisation(evidence: Evidence) -> float | None:
    """Return the mean utilisation of the run's GPUs while steps ran, 0 to 1; None: not recorded.

    Which GPU is whose is not recorded: of more than there are ranks, as many count, the busiest.
    """
    system, span = evidence.system, evidence.steps.span_ns
    names = [name for name in system if _UTILISATION.fullmatch(name)]
    if not names or length(system) == 0 or span is None:
        return None
    inside = (system["t_ns"] >= span[0]) & (system["t_ns"] <= span[1])
    values = [system[name][inside].astype(np.float64) for name in names]
    known = [each[np.isfinite(each) & (each >= 0)] for each in values]
    means = sorted((float(each.mean()) for each in known if len(each)), reverse=True)
    return float(np.mean(means[: evidence.host.ranks])) / 100.0 if means else None
