"""Batches differ so much in cost that what is made ahead runs out, although workers are enough."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Finding
from headrace.observe.doctor.remedies import WORTH_IT, predicted
from headrace.observe.whatif.prediction import Change

RULE = "shallow-prefetch"
_SPARE = 0.9
_DEEPER = (2, 4, 8)


def check(evidence: Evidence) -> Finding | None:
    """Batches differ in cost: what is made ahead runs out, although workers are enough.

    Fires where data wait is at least 5 % of step time, the workers together make batches at
    least 10 % faster than they are used, and the simulation gives at least 5 % for a deeper
    prefetch. Where the host has no core to spare, batches vary because workers wait for one,
    and nothing is said.
    """
    work, loader, simulator = evidence.work, evidence.loader, evidence.simulator
    if not evidence.starved or work is None or loader is None or simulator is None:
        return None
    if loader.workers == 0:
        return None
    measured = simulator.measured
    service, consume = float(measured.service_ns.mean()), float(measured.consume_ns.mean())
    if service / loader.workers > _SPARE * consume or evidence.cores_short:
        return None
    tried = [
        (factor, simulator.predict(Change(prefetch_factor=loader.prefetch_factor * factor)))
        for factor in _DEEPER
    ]
    best = max(prediction.speedup for _, prediction in tried)
    if best < WORTH_IT:
        return None
    factor, prediction = next(each for each in tried if each[1].speedup >= 0.98 * best)
    depth = loader.prefetch_factor * factor
    seconds = evidence.waits_solved(prediction)
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title="batches vary so much in cost that the ones made ahead run out",
        seconds_lost=seconds,
        evidence={
            "data_wait_share": evidence.flowing.data_wait_share,
            "batch_wall_ms": service / 1e6,
            "batch_wall_deviation_ms": float(np.std(measured.service_ns)) / 1e6,
            "workers": loader.workers,
            "prefetch_factor": loader.prefetch_factor,
        },
        remedies=(
            predicted(
                "prefetch",
                f"a prefetch_factor of {depth} instead of {loader.prefetch_factor}",
                prediction,
                f"Give the DataLoader{loader.place} prefetch_factor={depth}.",
                loader.overridden("prefetch_factor", depth),
            ),
        ),
    )
