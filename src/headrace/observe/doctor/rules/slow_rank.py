"""One rank is slower than the others, and all wait for it.

Fires where a rank's own time in a step (without gradient sync, and without backward where sync was
not measured apart, as waiting for others hides there) is at least 10 % above the median of all
ranks, and the difference is at least 5 % of step time.
"""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.evidence import WARNING, Evidence
from headrace.observe.doctor.model import Cause, Finding
from headrace.observe.doctor.stacks import hottest
from headrace.observe.whatif.steps import TrainSteps

RULE = "slow-rank"
_SLOWER = 1.1
_OWN_PHASES = ("data_wait", "copy", "forward", "backward", "optimizer", "other")


def check(evidence: Evidence) -> Finding | None:
    """Return the finding, where the rule fires."""
    steps = evidence.steps
    if not evidence.enough or len(steps.ranks) < 2:
        return None
    measured = steps.rows["sync_measured"] > 0
    counted = steps.of(measured) if measured.any() else steps
    phases = [phase for phase in _OWN_PHASES if phase != "backward" or measured.any()]
    of_rank = {rank: counted.of(counted.rows["rank"] == rank) for rank in counted.ranks}
    own = {rank: sum(_mean(each, phase) for phase in phases) for rank, each in of_rank.items()}
    slow = max(own, key=lambda rank: own[rank])
    usual = float(np.median([value for rank, value in own.items() if rank != slow]))
    excess = own[slow] - usual
    step_ns = float(counted.wall_ns.mean())
    if own[slow] < _SLOWER * usual or excess < WARNING * step_ns:
        return None
    excess_of = {
        phase: _mean(of_rank[slow], phase)
        - float(np.median([_mean(each, phase) for rank, each in of_rank.items() if rank != slow]))
        for phase in phases
    }
    phase = max(excess_of, key=lambda name: excess_of[name])
    seconds = excess / step_ns * steps.total_seconds
    what = {"data_wait": "waits for data", "copy": "copies to the device"}.get(phase, "computes")
    cause = _cause(evidence, slow, phase)
    where = f", {'in' if cause.name else 'at'} {cause}" if cause is not None else ""
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=f"rank {slow} needs {own[slow] / max(usual, 1.0):.1f} times as long for a step as "
        f"the others: it {what} longer{where}",
        seconds_lost=seconds,
        evidence={
            "rank": slow,
            "own_ms": own[slow] / 1e6,
            "others_ms": usual / 1e6,
            "phase": phase,
            "phase_excess_ms": excess_of[phase] / 1e6,
        },
        cause=cause,
    )


def _mean(steps: TrainSteps, phase: str) -> float:
    return float(steps.phase_ns(phase).mean()) if len(steps) else 0.0


def _cause(evidence: Evidence, rank: int, phase: str) -> Cause | None:
    """Where the slow rank stands in that phase; where it waits for data, what makes them."""
    if phase == "data_wait" and evidence.making:
        place = hottest(sighting for sighting in evidence.making if sighting.rank == rank)
        return place.cause() if place is not None else None
    seen = [sighting for sighting in evidence.rank_seen if sighting.phase == phase]
    ours = [sighting for sighting in seen if sighting.rank == rank]
    place = hottest(ours)
    return place.cause() if place is not None else None
