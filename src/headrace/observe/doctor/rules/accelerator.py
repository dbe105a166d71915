"""Rules about the accelerator: it is the limit, or it waits; small batches, exposed sync."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from headrace.observe.doctor.evidence import SERIOUS, WARNING, Evidence, rule
from headrace.observe.doctor.findings import Cause, Finding
from headrace.observe.doctor.gpu_usage import gpu_utilisation
from headrace.observe.doctor.remedies import (
    bigger_batch_remedy,
    faster_copies,
    overlapped_copies,
    predict_without,
    predicted_remedy,
)
from headrace.observe.doctor.rules.data_wait import is_handoff_bound
from headrace.observe.doctor.stack_samples import (
    StackSample,
    find_cause,
    find_hotspot,
    is_device_sync,
    runs_model,
)
from headrace.observe.whatif.train_steps import DeviceSteps, TrainSteps
from headrace.records.schema import PHASES


def sync_share(evidence: Evidence) -> float | None:
    """Return the least exposed sync of all ranks over step time; None if not measured."""
    steps = evidence.steps.of(evidence.steps.rows["sync_measured"] > 0)
    shares = (steps.of(steps.rows["rank"] == rank).share("sync") for rank in steps.ranks)
    return min(shares, default=None)


@rule
def check_sync_bound(evidence: Evidence) -> Finding | None:
    """Gradient sync that backward does not hide takes a large part of the step.

    Fires at 10 % of step time on the rank that syncs least: the last rank of a step waits for no
    other, so its sync time is the network's. Only steps in which sync was measured count. The
    share that is told is that of all ranks and steps, as among the phases; the seconds lost are
    those of the rank that syncs least.
    """
    least = sync_share(evidence)
    if not evidence.enough or least is None or least < SERIOUS:
        return None
    share = evidence.steps.share("sync")
    prediction = predict_without(evidence, evidence.steps.wall_ns * least / 2)
    how = (
        "Accumulate gradients of two batches under no_sync(), sync in bfloat16 with a "
        "communication hook, or double the batch size."
    )
    return evidence.finding(
        f"gradient sync takes {share:.0%} of step time beyond what backward hides",
        least * evidence.steps.total_seconds,
        {
            "sync_share": share,
            "least_sync_share": least,
            "measured_steps": int((evidence.steps.rows["sync_measured"] > 0).sum()),
            "ranks": len(evidence.steps.ranks),
        },
        remedies=(predicted_remedy("sync-less", "half the syncs", prediction, how),),
    )


_MODEL_SHARE, _GPU_BUSY = 0.5, 0.8


@rule
def check_compute_bound(evidence: Evidence) -> Finding | None:
    """The accelerator is the limit: healthy.

    Fires where data wait is below 5 % of step time, gradient sync below 10 %, and the rest is
    the model's (forward, backward, optimizer at least half of step time, or a GPU that is used
    80 %): then nothing that feeds the accelerator can give more than a few per cent. Without a
    loader nothing marks where forward begins, so the ranks must then have been sampled in the
    model's code.

    With a loader, and the device's own clock, the device's work counts rather than the host's
    phase: it must be at the model for 80 % of its time, and used for half of it where a GPU's
    utilisation is recorded, as gaps between kernels are no work.
    """
    if not evidence.enough or evidence.steps.data_wait_share >= WARNING:
        return None
    if (sync_share(evidence) or 0.0) >= SERIOUS:
        return None
    steps, device = evidence.steps, evidence.steps.device
    if not _is_busy(evidence):
        return None
    return evidence.finding(
        f"the accelerator is the limit: {evidence.steps.data_wait_share:.1%} waits for data",
        0.0,
        {
            "data_wait_share": evidence.steps.data_wait_share,
            **evidence.script_data_wait,
            **({} if device is None else {"device_model_share": device.model_share}),
            "step_ms": float(steps.wall_ns.mean() / 1e6),
            "steps": len(steps),
        },
        severity="info",
    )


def _is_busy(evidence: Evidence) -> bool:
    used, device = gpu_utilisation(evidence), evidence.steps.device
    if used is not None and used >= _GPU_BUSY:
        return True
    if device is None or evidence.loader is None:
        return _model_share(evidence) >= _MODEL_SHARE
    return device.model_share >= _GPU_BUSY and (used is None or used >= _MODEL_SHARE)


def _model_share(evidence: Evidence) -> float:
    steps = evidence.steps
    if evidence.loader is not None:
        return sum(steps.share(phase) for phase in ("forward", "backward", "optimizer"))
    seen = [(sample.wall_ns, runs_model(sample)) for sample in evidence.rank_samples]
    total = sum(wall_ns for wall_ns, _ in seen)
    return sum(wall_ns for wall_ns, inside in seen if inside) / max(total, 1.0)


@rule
def check_small_batch(evidence: Evidence) -> Finding | None:
    """Batches are too small to fill the device.

    Fires where data wait is below 5 % of step time, the GPUs are used less than 50 %, and a
    step takes less than 50 ms: then launching kernels, not running them, limits the speed. Only
    where GPUs are recorded. Of short steps the handing over of ready batches may take more than
    5 %; it is a cost of each batch too, and no starvation.

    By the device's own clock, where that is recorded, only its time at the model can have gaps
    between kernels, so the GPU must be used less than 50 % of that; a bigger batch would not
    fill its waits elsewhere, such as for a log or a copy. Without a loader neither clock knows
    where forward begins; then only the time counts in which the ranks were sampled in the model's
    code, not that in which the script makes its data. A GPU that did nothing at all is not the
    script's.
    """
    used = gpu_utilisation(evidence)
    device = evidence.steps.device if evidence.loader is not None else None
    at_model = _time_at_model(evidence, device)
    if not evidence.enough or used is None or used >= 0.5 * at_model:
        return None
    median = float(np.median(evidence.steps.wall_ns))
    starved = evidence.steps.data_wait_share >= WARNING and not is_handoff_bound(evidence)
    if starved or median >= 50e6:  # 50 ms
        return None
    samples = evidence.steps.rows["samples"]
    return evidence.finding(
        f"steps of {median / 1e6:.1f} ms use the GPU only {used:.0%}",
        (at_model - used) * evidence.steps.total_seconds,
        {
            "gpu_utilisation": used,
            **({} if device is None else {"device_model_share": device.model_share}),
            **evidence.script_data_wait,
            "step_ms": median / 1e6,
            "samples_a_step": float(samples.mean()) if (samples >= 0).all() else None,
        },
        remedies=(bigger_batch_remedy(evidence, at_model - used),),
        severity="warning",
    )


def _time_at_model(evidence: Evidence, device: DeviceSteps | None) -> float:
    """Return the share of step time in which gaps between kernels may be."""
    if device is not None:
        return device.model_share
    return 1.0 if evidence.loader is not None else _model_share(evidence)


@rule
def check_blocking_copy(evidence: Evidence) -> Finding | None:
    """Copies to the device hold it up: memory is not pinned, or the copy is synchronous.

    Fires at 5 % of step time in copies. By the device's own clock, where that is recorded: then
    a copy in which the script waits for earlier work of the device costs nothing, and a pinned,
    asynchronous one costs its time in the training stream. The line that is named is the one whose
    copies take the device longest.

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
    cause = _cause_of_copies(evidence)
    at = f" at {cause.place}" if cause is not None else ""
    whom = "the script" if device is None else "the accelerator"
    remedies = faster_copies(evidence, at, pinned=pinned, blocking=blocking > 0 or not copies)
    return evidence.finding(
        f"copies to the device{at} hold {whom} up for {share:.0%} of step time",
        share * steps.total_seconds,
        {
            "copy_share": share,
            **({} if device is None else {"script_copy_share": steps.share("copy")}),
            "pinned": int(pinned),
            "copies_a_step": copies / max(len(steps), 1),
        },
        cause=cause,
        remedies=(overlapped_copies(evidence, at),) if in_line else remedies,
    )


def _cause_of_copies(evidence: Evidence) -> Cause | None:
    """Return the line whose copies take the device longest, if that is known, or else the script.

    A copy in which the script waits longest may be one that waits for earlier work of the device.
    """
    samples = evidence.rank_samples_in(("copy",))
    spent_ns: defaultdict[tuple[str, int], int] = defaultdict(int)
    rows = evidence.copies
    for file, line, device_ns in zip(rows["file"], rows["line"], rows["device_ns"], strict=True):
        spent_ns[str(file), int(line)] += int(device_ns)
    if evidence.steps.device is None or not spent_ns:
        return find_cause(samples)
    # Times are of the whole run: those of lines that steps run count, not an evaluation's.
    in_steps = {(frame.file, frame.line) for sample in samples for frame in sample.frames}
    longest = max(spent_ns, key=lambda place: (place in in_steps, spent_ns[place]))
    there = [
        sample
        for sample in samples
        if any((frame.file, frame.line) == longest for frame in sample.frames)
    ]
    return find_cause(there or samples)


_ON_CPU, _ON_FULL_CORES = 0.5, 0.2
"""Who computes is on a core for such a share of the time; on full cores it waits for one, too."""


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
    half of the time there (a fifth where the host has no core to spare, as it also waits for one),
    such a line computes what it reads, on the CPU: the rule does not fire.
    """
    seen = evidence.rank_samples
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
    if computes_there(evidence, waits):
        return None
    if place is None or share < SERIOUS or (used is not None and used >= _GPU_BUSY):
        return None
    cause = place.cause()
    how = "Keep the value on the device and read it every so many steps; print it then."
    saved = np.full(len(evidence.steps), share) * evidence.steps.wall_ns
    # Within a phase the device's clock cannot tell work from waiting for the script; and if
    # nothing is known of the device, it may have worked all the time.
    if known and device is None:
        gain = predict_without(evidence, saved)
    else:
        gain = predict_without(evidence, np.zeros_like(saved), saved)
    return evidence.finding(
        f"the script waits for the device at {cause.place} for {waited:.0%} of the time",
        share * evidence.steps.total_seconds,
        {
            "share_of_step_time": waited,
            **({} if device is None else {"device_idle_share": share}),
            "gpu_utilisation": used,
        },
        cause=cause,
        remedies=(predicted_remedy("sync", f"no waiting at {cause.place}", gain, how),),
    )


def computes_there(evidence: Evidence, reads: Sequence[StackSample]) -> bool:
    """Return whether lines that read from a device compute on the CPU, as no device was seen."""
    if gpu_utilisation(evidence) is not None or evidence.steps.device is not None:
        return False
    on_cpu = sum(sample.cpu_ns for sample in reads)
    least = _ON_FULL_CORES if evidence.cores_short else _ON_CPU
    there = on_cpu >= least * sum(sample.wall_ns for sample in reads)
    return there and not evidence.steps.share("copy")


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
    earlier = {phase: max(steps.share(phase) - device.share(phase), 0.0) for phase in PHASES}
    return sum(max(share - earlier.get(phase, 0.0), 0.0) for phase, share in waited.items())
