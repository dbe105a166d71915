"""Rules about waits for the device: copies that hold it up, and needless synchronisation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from headrace.observe.doctor.device_remedies import faster_copies, overlapped_copies
from headrace.observe.doctor.evidence import SERIOUS, WARNING, Evidence, gpu_utilisation
from headrace.observe.doctor.findings import Cause, Finding
from headrace.observe.doctor.remedies import predict_without, predicted_remedy
from headrace.observe.doctor.rule import rule
from headrace.observe.doctor.stack_activity import is_device_sync
from headrace.observe.doctor.stack_samples import StackSample, find_hotspot, overlaps
from headrace.observe.whatif.tables import row_count
from headrace.observe.whatif.train_steps import DeviceSteps, TrainSteps
from headrace.records.schema import PHASES


@rule
def check_blocking_copy(evidence: Evidence) -> Finding | None:
    """Copies to the device hold it up: memory is not pinned, or the copy is synchronous.

    Fires at 5 % of step time in copies. By the device's own clock, where that is recorded: then
    a copy in which the script waits for earlier work of the device costs nothing, and a pinned,
    asynchronous one costs its time in the training stream.

    Otherwise by the host's clock: an asynchronous copy from pinned memory takes the host some
    ten microseconds. Where all copies are such ones, the host waits for room in the device's
    queue, and the rule does not fire.
    """
    steps = evidence.steps
    if not evidence.enough:
        return None
    share = float(steps.copy_ns.sum() / max(steps.wall_ns.sum(), 1.0))
    if share < WARNING:
        return None
    loader, device = evidence.loader, steps.device
    copies, pageable, blocking = (
        int(steps.rows[name].clip(0).sum())
        for name in ("copies", "pageable_copies", "blocking_copies")
    )
    in_line = bool(copies) and not pageable and not blocking
    if in_line and device is None:
        return None
    pinned = pageable == 0 if copies else loader is not None and loader.pinned
    place = find_hotspot(sample for sample in evidence.rank_samples if sample.phase == "copy")
    cause: Cause | None = place.cause() if place is not None else None
    seconds = share * steps.total_seconds
    at = f" at {cause.place}" if cause is not None else ""
    whom = "the script" if device is None else "the accelerator"
    remedies = faster_copies(evidence, at, pinned=pinned, blocking=blocking > 0 or not copies)
    return evidence.finding(
        f"copies to the device{at} hold {whom} up for {share:.0%} of step time",
        seconds,
        {
            "copy_share": share,
            **({} if device is None else {"script_copy_share": steps.share("copy")}),
            "pinned": int(pinned),
            "copies_a_step": copies / max(len(steps), 1),
        },
        cause=cause,
        remedies=(overlapped_copies(evidence, at),) if in_line else remedies,
    )


_DEVICE_BUSY = 0.8
_COMPUTES = 0.5


@rule
def check_device_sync(evidence: Evidence) -> Finding | None:
    """The script waits for the device where it need not: `.item()`, `.cpu()`, a printed loss.

    Fires where a rank is in such a line, outside of waiting for data, for at least 10 % of its
    time in training steps, and the device has time to spare (below 80 % utilisation, or not
    recorded): a busy device has to be waited for somewhere. Native methods leave no frame, so
    the source line is read if it is unchanged.

    By the device's own clock, where that is recorded, only the part of the wait counts in which
    the device had finished its earlier work. A loss that is printed after each step makes the
    script wait for the whole step; while the device works that costs nothing.

    Where no device was seen, nothing is copied to one, and the rank is on a core for at least
    half of the time there, such a line computes what it reads, on the CPU: the rule does not
    fire.
    """
    seen = _samples_in_steps(evidence)
    if not evidence.enough or not seen:
        return None
    total = sum(sample.wall_ns for sample in seen)
    waits = [
        sample
        for sample in seen
        if sample.phase not in {"data_wait", "backward"} and is_device_sync(sample)
    ]
    place = find_hotspot(waits, total)
    waited = sum(sample.wall_ns for sample in waits) / max(total, 1.0)
    device = evidence.steps.device
    share = waited if device is None else _device_idle_share(evidence.steps, device, waits, total)
    used = gpu_utilisation(evidence)
    known = used is not None or device is not None
    if not known and _computes_there(evidence, waits):
        return None
    if place is None or share < SERIOUS or (used is not None and used >= _DEVICE_BUSY):
        return None
    cause = place.cause()
    seconds = share * evidence.steps.total_seconds
    how = "Keep the value on the device and read it every so many steps; print it then."
    saved = np.full(len(evidence.steps), share) * evidence.steps.wall_ns
    # Within a phase the device's clock cannot tell work from waiting for the script; and if
    # nothing is known of the device, it may have worked all the time.
    spared = known and device is None
    gain = (
        predict_without(evidence, saved)
        if spared
        else predict_without(evidence, np.zeros_like(saved), saved)
    )
    return evidence.finding(
        f"the script waits for the device at {cause.place} for {waited:.0%} of the time",
        seconds,
        {
            "share_of_step_time": waited,
            **({} if device is None else {"device_idle_share": share}),
            "gpu_utilisation": used,
        },
        cause=cause,
        remedies=(predicted_remedy("sync", f"no waiting at {cause.place}", gain, how),),
    )


def _samples_in_steps(evidence: Evidence) -> list[StackSample]:
    """Return the ranks' samples in training steps: an evaluation may wait where it likes."""
    times = {rank: evidence.steps.times_of(rank) for rank in evidence.steps.ranks}
    seen = [
        sample.only(overlaps(sample, *times[sample.rank]))
        for sample in evidence.rank_samples
        if sample.rank in times
    ]
    return [sample for sample in seen if row_count(sample.rows)]


def _computes_there(evidence: Evidence, waits: Sequence[StackSample]) -> bool:
    """Return whether a rank without a known device computes in such lines itself."""
    on_cpu = sum(sample.cpu_ns for sample in waits)
    waited = sum(sample.wall_ns for sample in waits)
    return not evidence.steps.share("copy") and on_cpu >= _COMPUTES * waited


def _device_idle_share(
    steps: TrainSteps, device: DeviceSteps, waits: Sequence[StackSample], total: float
) -> float:
    """Return the share of time in which the script waits there and the device may be idle.

    If a phase takes longer by the host's clock than by the device's, the device worked on an
    earlier phase in the difference.
    """
    waited: defaultdict[str, float] = defaultdict(float)
    for sample in waits:
        waited[sample.phase] += sample.wall_ns / max(total, 1.0)
    return sum(
        max(share - max(steps.share(phase) - device.share(phase), 0.0), 0.0)
        if phase in PHASES
        else share
        for phase, share in waited.items()
    )
