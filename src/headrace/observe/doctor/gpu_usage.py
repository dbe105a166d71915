"""Which of its host's GPUs a run uses, and how much.

Which GPU of a host belongs to which job is not recorded. If no more GPUs are in use than the run
has ranks on the host, the busiest are the run's, one for each rank; otherwise it is unknown.
"""

from __future__ import annotations

import re
from typing import Protocol

import numpy as np

from headrace.observe.whatif.measured_pipeline import HostUsage
from headrace.observe.whatif.tables import Columns
from headrace.observe.whatif.train_steps import TrainSteps

_UTILISATION = re.compile(r"gpu_(\d+)_utilisation_percent")
_IN_USE = 0.05
_AT_WORK = 0.005  # NVML counts whole per cents


class UsageRecords(Protocol):
    """What is recorded of a host's use; the doctor's evidence has it among others."""

    @property
    def system(self) -> Columns:
        """The table `system`."""

    @property
    def steps(self) -> TrainSteps:
        """The training steps."""

    @property
    def host(self) -> HostUsage:
        """The host's cores."""


def gpu_utilisation(evidence: UsageRecords) -> float | None:
    """Return the mean utilisation of the run's GPUs while steps ran, 0 to 1.

    None if it is unknown, or if the run has no part in it: where no GPU did anything, and no events
    were recorded on one, the script trains on the host's cores, and the GPUs beside them say
    nothing about it.
    """
    means = _mean_utilisation(evidence)
    used = [means[gpu] for gpu in gpus_of_run(evidence) or () if gpu in means]
    at_work = evidence.steps.device is not None or max(used, default=0.0) >= _AT_WORK
    return float(np.mean(used)) if used and at_work else None


def gpus_of_run(evidence: UsageRecords) -> tuple[int, ...] | None:
    """Return the numbers of the run's GPUs, as in the table `system`; None if unknown."""
    means, ranks = _mean_utilisation(evidence), evidence.host.ranks
    if sum(mean >= _IN_USE for mean in means.values()) > ranks:
        return None
    return tuple(sorted(means, key=lambda gpu: -means[gpu])[:ranks])


def _mean_utilisation(evidence: UsageRecords) -> dict[int, float]:
    """Return the mean utilisation of each of the host's GPUs while steps ran, if recorded."""
    system, span = evidence.system, evidence.steps.span_ns
    if span is None:
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
