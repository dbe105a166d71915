"""How busy the accelerators were, from the table `system`."""

from __future__ import annotations

import re

import numpy as np

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.whatif.tables import length

_UTILISATION = re.compile(r"gpu_\d+_utilisation_percent")


def gpu_utilisation(evidence: Evidence) -> float | None:
    """Return the mean utilisation of all GPUs while steps ran, 0 to 1; None: not recorded."""
    system, span = evidence.system, evidence.steps.span_ns
    names = [name for name in system if _UTILISATION.fullmatch(name)]
    if not names or length(system) == 0 or span is None:
        return None
    inside = (system["t_ns"] >= span[0]) & (system["t_ns"] <= span[1])
    values = [system[name][inside].astype(np.float64) for name in names]
    known = np.concatenate([each[np.isfinite(each) & (each >= 0)] for each in values])
    return float(known.mean()) / 100.0 if len(known) else None
