"""The script waits for the device where it need not: `.item()`, `.cpu()`, a printed loss.

Fires where a rank stands in such a line, outside of waiting for data, for at least 10 % of its
time, and the device has time to spare (below 80 % utilisation, or not recorded): a busy device has
to be waited for somewhere. Native methods leave no frame, so the source line is read where it is
still at hand.
"""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.activity import is_device_sync
from headrace.observe.doctor.evidence import SERIOUS, Evidence
from headrace.observe.doctor.gpus import gpu_utilisation
from headrace.observe.doctor.model import Finding, Remedy
from headrace.observe.doctor.remedies import predicted, without
from headrace.observe.doctor.stacks import hottest

RULE = "device-sync"
_BUSY = 0.8


def check(evidence: Evidence) -> Finding | None:
    """Return the finding, where the rule fires."""
    if not evidence.enough or not evidence.rank_seen:
        return None
    total = sum(sighting.wall_ns for sighting in evidence.rank_seen)
    waits = [
        sighting
        for sighting in evidence.rank_seen
        if sighting.phase not in {"data_wait", "backward"} and is_device_sync(sighting)
    ]
    place = hottest(waits, total)
    share = sum(sighting.wall_ns for sighting in waits) / max(total, 1.0)
    used = gpu_utilisation(evidence)
    if place is None or share < SERIOUS or (used is not None and used >= _BUSY):
        return None
    cause = place.cause()
    seconds = share * evidence.steps.total_seconds
    how = "Keep the value on the device and read it every so many steps; print it then."
    saved = np.full(len(evidence.steps), share) * evidence.steps.wall_ns
    most = without(evidence, saved)
    remedy: Remedy = predicted("sync", f"no waiting at {cause.place}", most, how)
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=f"the script waits for the device at {cause.place} for {share:.0%} of the time",
        seconds_lost=seconds,
        evidence={"share_of_step_time": share, "gpu_utilisation": used},
        cause=cause,
        # Without a device's own clock the whole wait is the most that can go, not what will.
        remedies=(remedy,) if used is not None else (Remedy(name="sync", change="", how=how),),
    )
