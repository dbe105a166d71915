"""Copies to the device hold it up: memory is not pinned, or the copy is synchronous."""

from __future__ import annotations

from headrace.observe.doctor.device_remedies import copies_beside, faster_copies
from headrace.observe.doctor.evidence import WARNING, Evidence
from headrace.observe.doctor.model import Cause, Finding
from headrace.observe.doctor.stacks import hottest

RULE = "blocking-copy"


def check(evidence: Evidence) -> Finding | None:
    """Copies to the device hold it up: memory is not pinned, or the copy is synchronous.

    Fires at 5 % of step time in copies. By the device's own clock, where that is recorded: then
    a copy in which the script waits for what the device was given before costs nothing, and a
    pinned, asynchronous one costs what it takes in the stream that trains.

    Else as the host sees them: an asynchronous copy from pinned memory takes the host some ten
    microseconds. Where all copies are such ones, the host waits for room in the device's queue,
    and the rule says nothing.
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
    place = hottest(sighting for sighting in evidence.rank_seen if sighting.phase == "copy")
    cause: Cause | None = place.cause() if place is not None else None
    seconds = share * steps.total_seconds
    at = f" at {cause.place}" if cause is not None else ""
    whom = "the script" if device is None else "the accelerator"
    remedies = faster_copies(evidence, at, pinned=pinned, blocking=blocking > 0 or not copies)
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=f"copies to the device{at} hold {whom} up for {share:.0%} of step time",
        seconds_lost=seconds,
        evidence={
            "copy_share": share,
            **({} if device is None else {"script_copy_share": steps.share("copy")}),
            "pinned": int(pinned),
            "copies_a_step": copies / max(len(steps), 1),
        },
        cause=cause,
        remedies=(copies_beside(evidence, at),) if in_line else remedies,
    )
