"""Rules about ranks that differ: a slow one, and unequal numbers of steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.observe.doctor.evidence import WARNING, Evidence
from headrace.observe.doctor.findings import Cause, Finding, Remedy
from headrace.observe.doctor.remedies import predict_without, predicted_remedy
from headrace.observe.doctor.rule import rule
from headrace.observe.doctor.stack_samples import find_hotspot
from headrace.observe.whatif.train_steps import TrainSteps

_SLOWER = 1.1
_MATTERS, _ALIKE = 0.05, 0.5
_COMPUTING = ("forward", "backward", "optimizer", "other")
_OWN_PHASES = ("data_wait", "copy", "forward", "backward", "optimizer", "other")


@rule
def check_slow_rank(evidence: Evidence) -> Finding | None:
    """One rank is slower than the others, and all wait for it.

    Fires where a rank's own time in a step (without gradient sync, and without backward where
    sync was not measured apart, as waiting for others hides there) is at least 10 % above the
    median of all ranks, and the difference is at least 5 % of step time.

    Its host or its device is at fault where all that it computes takes longer: each phase of
    these that is a twentieth of its time by at least half of what the rank is slower. Else one
    phase is, and the line where the rank is then.
    """
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
    kind = {"data_wait": "data", "copy": "copy"}.get(phase, "compute")
    means = {phase: _mean(of_rank[slow], phase) for phase in _OWN_PHASES}
    if kind == "compute" and _all_slower(own[slow], usual, means, excess_of):
        kind = "host"
    cause = _slow_rank_cause(evidence, slow, phase) if kind != "host" else None
    where = f", {'in' if cause.name else 'at'} {cause}" if cause is not None else ""
    return evidence.finding(
        f"rank {slow} needs {own[slow] / max(usual, 1.0):.1f} times as long for a step as "
        f"the others: {_WHAT[kind]}{where}",
        seconds,
        {
            "rank": slow,
            "own_ms": own[slow] / 1e6,
            "others_ms": usual / 1e6,
            "kind": kind,
            "phase": phase,
            "phase_excess_ms": excess_of[phase] / 1e6,
        },
        cause=cause,
        remedies=(_even_ranks_remedy(evidence, slow, kind, excess / step_ns),),
    )


_WHAT = {
    "data": "it waits for data longer",
    "copy": "it copies to the device longer",
    "compute": "it computes longer",
    "host": "all that it computes takes longer, so its host or its device is slower",
}
_HOW = {
    "data": "Look at what its loader reads, and at the disk, the network and the other jobs of its "
    "host: the other ranks have theirs in time.",
    "copy": "Look at what it copies, and at its host's link to the device.",
    "compute": "Look at what it does there and the others do not: longer samples, logging, checks.",
    "host": "Look at its host and its device: other jobs there, a clock that is throttled, another "
    "model of either. Leave it out, or give it less to do.",
}


def _all_slower(
    own: float, usual: float, mean_of: Mapping[str, float], excess_of: Mapping[str, float]
) -> bool:
    """Return whether each phase that computes is slower, and by about as much."""
    slower = own / max(usual, 1.0) - 1.0
    phases = [name for name in _COMPUTING if mean_of.get(name, 0.0) >= _MATTERS * own]
    return len(phases) > 1 and all(
        excess_of.get(name, 0.0) >= _ALIKE * slower * (mean_of[name] - excess_of.get(name, 0.0))
        for name in phases
    )


def _even_ranks_remedy(evidence: Evidence, rank: int, kind: str, share: float) -> Remedy:
    # All ranks wait for it, so each step gets shorter by the difference.
    saved = evidence.steps.wall_ns * min(share, 0.99)
    change = f"rank {rank} as fast as the others"
    return predicted_remedy("even-ranks", change, predict_without(evidence, saved), _HOW[kind])


def _mean(steps: TrainSteps, phase: str) -> float:
    return float(steps.phase_ns(phase).mean()) if len(steps) else 0.0


def _slow_rank_cause(evidence: Evidence, rank: int, phase: str) -> Cause | None:
    """Return where the slow rank is in that phase; if it waits for data, where batches are made."""
    if phase == "data_wait" and evidence.making_samples:
        place = find_hotspot(sample for sample in evidence.making_samples if sample.rank == rank)
        return place.cause() if place is not None else None
    place = find_hotspot(
        sample for sample in evidence.rank_samples if sample.phase == phase and sample.rank == rank
    )
    return place.cause() if place is not None else None


_UNEQUAL_STEPS, _UNEQUAL_SHARE = 3, 0.02


@rule
def check_unequal_steps(evidence: Evidence) -> Finding | None:
    """Ranks take different numbers of steps, so some end while others wait for them.

    Fires where the numbers differ by at least 3 and 2 %: a run that was stopped differs by a step.
    """
    steps = evidence.steps
    if not evidence.enough or len(steps.ranks) < 2:
        return None
    _, counts = np.unique(steps.rows["rank"], return_counts=True)
    most, least = int(counts.max()), int(counts.min())
    if most - least < max(_UNEQUAL_STEPS, _UNEQUAL_SHARE * most):
        return None
    seconds = (most - least) * float(steps.wall_ns.mean()) / 1e9
    return evidence.finding(
        f"ranks take between {least:,} and {most:,} steps",
        seconds,
        {"fewest_steps": least, "most_steps": most, "ranks": len(steps.ranks)},
        remedies=(
            Remedy(
                name="equal-shares",
                change="the same number of batches on every rank",
                how="Use DistributedSampler(drop_last=True), or headrace.DataLoader, which shares "
                "out the tail.",
            ),
        ),
        severity="warning",
    )
