"""How busy the run's accelerators were, from the table `system`.

Which device of a host is whose is not recorded. Where no more of them are in use than the run has
ranks on the host, the busiest are the run's, one for each rank; else it cannot be told.
"""

from __future__ import annotations

import re

import numpy as np

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.whatif.tables import length

_UTILISATION = re.compile(r"gpu_(\d+)_utilisation_percent")
_IN_USE = 0.05


def gpu_utilisation(evidence: Evidence) -> float | None:
    """Return the mean utilisation of the run's GPUs while steps ran, 0 to 1; None: not known."""
    means = _means(evidence)
    ours = gpus_of_run(evidence)
    used = [means[gpu] for gpu in ours or () if gpu in means]
    return float(np.mean(used)) if used else None


def gpus_of_run(evidence: Evidence) -> tuple[int, ...] | None:
    """Return the numbers of the run's GPUs, as in the table `system`; None: that is not known."""
    means, ranks = _means(evidence), evidence.host.ranks
    if sum(mean >= _IN_USE for mean in means.values()) > ranks:
        return None
    return tuple(sorted(means, key=lambda gpu: -means[gpu])[:ranks])


def _means(evidence: Evidence) -> dict[int, float]:
    """Return the mean utilisation of each GPU of the host while steps ran, where recorded."""
    system, span = evidence.system, evidence.steps.span_ns
    if length(system) == 0 or span is None:
        return {}
    inside = (system["t_ns"] >= span[0]) & (system["t_ns"] <= span[1])
    found = {}
    for name in system:
        match = _UTILISATION.fullmatch(name)
        if match:
            values = system[name][inside].astype(np.float64)
            known = values[np.isfinite(values) & (values >= 0)]
            if len(known):
                found[int(match[1])] = float(known.mean()) / 100.0
    return found
