"""Copies to the device hold the script up: memory is not pinned, or the copy is synchronous.

Fires at 5 % of step time in copies, as the host sees them: an asynchronous copy from pinned memory
takes the host some ten microseconds. Where all copies are such ones, the host waits for room in the
device's queue, and the rule says nothing.
"""

from __future__ import annotations

from headrace.observe.doctor.device_remedies import faster_copies
from headrace.observe.doctor.evidence import WARNING, Evidence
from headrace.observe.doctor.model import Cause, Finding
from headrace.observe.doctor.stacks import hottest

RULE = "blocking-copy"


def check(evidence: Evidence) -> Finding | None:
    """Return the finding, where the rule fires."""
    share = evidence.steps.share("copy")
    if not evidence.enough or share < WARNING:
        return None
    loader = evidence.loader
    copies, pageable, blocking = (
        int(evidence.steps.rows[name].clip(0).sum())
        for name in ("copies", "pageable_copies", "blocking_copies")
    )
    if copies and not pageable and not blocking:
        return None
    pinned = pageable == 0 if copies else loader is not None and loader.pinned
    place = hottest(sighting for sighting in evidence.rank_seen if sighting.phase == "copy")
    cause: Cause | None = place.cause() if place is not None else None
    seconds = evidence.steps.seconds("copy")
    at = f" at {cause.place}" if cause is not None else ""
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=f"copies to the device{at} hold the script up for {share:.0%} of step time",
        seconds_lost=seconds,
        evidence={
            "copy_share": share,
            "pinned": int(pinned),
            "copies_a_step": copies / max(len(evidence.steps), 1),
        },
        cause=cause,
        remedies=faster_copies(evidence, at, pinned=pinned, blocking=blocking > 0 or not copies),
    )
