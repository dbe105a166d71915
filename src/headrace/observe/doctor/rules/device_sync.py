"""The script waits for the device where it need not: `.item()`, `.cpu()`, a printed loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from headrace.observe.doctor.activity import is_device_sync
from headrace.observe.doctor.evidence import SERIOUS, Evidence
from headrace.observe.doctor.gpus import gpu_utilisation
from headrace.observe.doctor.model import Finding
from headrace.observe.doctor.remedies import predicted, without
from headrace.observe.doctor.stacks import Sighting, hottest, overlaps
from headrace.observe.whatif.device import DeviceSteps
from headrace.observe.whatif.steps import TrainSteps
from headrace.observe.whatif.tables import length
from headrace.records.schema import PHASES

RULE = "device-sync"
_BUSY = 0.8
_COMPUTES = 0.5


def check(evidence: Evidence) -> Finding | None:
    """The script waits for the device where it need not: `.item()`, `.cpu()`, a printed loss.

    Fires where a rank stands in such a line, outside of waiting for data, for at least 10 % of
    its time in training steps, and the device has time to spare (below 80 % utilisation, or not
    recorded): a busy device has to be waited for somewhere. Native methods leave no frame, so
    the source line is read where it is still at hand.

    By the device's own clock, where that is recorded, only that part of the wait counts in
    which the device was not still at what it had been given before. A loss that is printed
    after each step has the script wait for the whole step; while the device is at work that
    costs nothing.

    Where no device was seen, nothing is copied to one, and the rank is on a core for at least
    half of the time there, such a line computes what it reads, on the CPU: nothing is said.
    """
    seen = _while_training(evidence)
    if not evidence.enough or not seen:
        return None
    total = sum(sighting.wall_ns for sighting in seen)
    waits = [
        sighting
        for sighting in seen
        if sighting.phase not in {"data_wait", "backward"} and is_device_sync(sighting)
    ]
    place = hottest(waits, total)
    stood = sum(sighting.wall_ns for sighting in waits) / max(total, 1.0)
    device = evidence.steps.device
    share = stood if device is None else _felt(evidence.steps, device, waits, total)
    used = gpu_utilisation(evidence)
    known = used is not None or device is not None
    if not known and _computes_there(evidence, waits):
        return None
    if place is None or share < SERIOUS or (used is not None and used >= _BUSY):
        return None
    cause = place.cause()
    seconds = share * evidence.steps.total_seconds
    how = "Keep the value on the device and read it every so many steps; print it then."
    saved = np.full(len(evidence.steps), share) * evidence.steps.wall_ns
    # Within a phase the device's clock does not tell work from waiting for the script; and where
    # nothing is known of the device, it may have been at work all the while.
    spared = known and device is None
    gain = without(evidence, saved) if spared else without(evidence, np.zeros_like(saved), saved)
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=f"the script waits for the device at {cause.place} for {stood:.0%} of the time",
        seconds_lost=seconds,
        evidence={
            "share_of_step_time": stood,
            **({} if device is None else {"device_idle_share": share}),
            "gpu_utilisation": used,
        },
        cause=cause,
        remedies=(predicted("sync", f"no waiting at {cause.place}", gain, how),),
    )


def _while_training(evidence: Evidence) -> list[Sighting]:
    """Return what was seen of ranks in training steps: an evaluation may wait where it likes."""
    times = {rank: evidence.steps.times_of(rank) for rank in evidence.steps.ranks}
    seen = [
        each.only(overlaps(each, *times[each.rank]))
        for each in evidence.rank_seen
        if each.rank in times
    ]
    return [each for each in seen if length(each.rows)]


def _computes_there(evidence: Evidence, waits: Sequence[Sighting]) -> bool:
    """Whether a rank of which no device is known computes in such lines itself."""
    on_cpu = sum(sighting.cpu_ns for sighting in waits)
    stood = sum(sighting.wall_ns for sighting in waits)
    return not evidence.steps.share("copy") and on_cpu >= _COMPUTES * stood


def _felt(steps: TrainSteps, device: DeviceSteps, waits: Sequence[Sighting], total: float) -> float:
    """Return the share of time in which the script stands there and the device may be idle.

    What a phase takes longer by the host's clock than by the device's, the device was at the work
    of a phase before.
    """
    stood: defaultdict[str, float] = defaultdict(float)
    for sighting in waits:
        stood[sighting.phase] += sighting.wall_ns / max(total, 1.0)
    return sum(
        max(share - max(steps.share(phase) - device.share(phase), 0.0), 0.0)
        if phase in PHASES
        else share
        for phase, share in stood.items()
    )
