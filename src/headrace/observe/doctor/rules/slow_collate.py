"""Putting samples together to a batch takes a large part of the workers' time."""

from __future__ import annotations

import re
from itertools import pairwise

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Cause, Finding
from headrace.observe.doctor.remedies import faster, making_cause, more_workers
from headrace.observe.doctor.stacks import Sighting
from headrace.observe.doctor.transforms import TransformShare

RULE = "slow-collate"
COLLATE = re.compile("collate", re.IGNORECASE)
_SHARE = 0.3


def check(evidence: Evidence) -> Finding | None:
    """Putting samples together to a batch takes a large part of the workers' time.

    Fires where data wait is at least 5 % of step time and collating takes at least 30 % of making a
    batch. Stacking tensors takes a few per cent; a third means padding or conversion in Python.
    """
    work = evidence.work
    if not (evidence.starved and evidence.workers_busy) or work is None:
        return None
    share = float(work.column("collate_ns").sum() / max(work.column("wall_ns").sum(), 1.0))
    if share < _SHARE:
        return None
    cause = _cause(evidence, share)
    remedies = faster(evidence, cause, cause.name or "collating")
    more = more_workers(evidence)
    seconds = evidence.flow_wait_seconds * share
    where = f" at {cause.place}" if cause.place else ""
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=f"collating{where} takes {share:.0%} of the time of making a batch",
        seconds_lost=seconds,
        evidence={
            "data_wait_share": evidence.flowing.data_wait_share,
            "collate_share": share,
            "collate_ms": float(work.column("collate_ns").mean() / 1e6),
            "batches": len(work),
        },
        cause=cause,
        remedies=(*remedies, *((more[0],) if more else ())),
    )


def _cause(evidence: Evidence, share: float) -> Cause:
    """The hottest line below the function that collates; else the timed collate_fn."""
    timed = next((each for each in evidence.transforms if each.name == "collate_fn"), None)
    # What torch calls beside it makes samples: of a stream, by functions of any name.
    is_map = evidence.loader is not None and evidence.loader.style == "map"
    inside = tuple(
        each
        for each in evidence.making
        if each.passes(COLLATE) or (is_map and _is_inside(each, timed))
    )
    seen = making_cause(evidence, inside) if inside else None
    return Cause(
        file=seen.file if seen else timed.file if timed else "",
        line=seen.line if seen else timed.line if timed else 0,
        function=seen.function if seen else "",
        transform="collate_fn",
        share=share,
    )


def _is_inside(sighting: Sighting, timed: TransformShare | None) -> bool:
    """Whether torch called a function there that stands where the timed one does."""
    return timed is not None and any(
        caller.file.endswith("torch/utils/data/_utils/fetch.py")
        and called.file == timed.file
        and called.line >= timed.line
        and not called.function.endswith(("__getitem__", "__getitems__"))
        for caller, called in pairwise(sighting.frames)
    )
