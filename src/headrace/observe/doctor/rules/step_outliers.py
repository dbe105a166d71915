"""The rule step-outliers: some steps take far longer than the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.observe.doctor.evidence import WARNING, Evidence
from headrace.observe.doctor.findings import Cause, Finding
from headrace.observe.doctor.remedies import predict_without, predicted_remedy
from headrace.observe.doctor.rule import rule
from headrace.observe.doctor.stack_samples import (
    StackFrame,
    StackSample,
    find_hotspot,
    samples_during,
)
from headrace.observe.whatif.tables import Flags
from headrace.observe.whatif.train_steps import TrainSteps
from headrace.records.schema import PHASES

_TIMES_MEDIAN, _DEVIATIONS = 1.5, 5.0
_MODEL_PHASES = ("forward", "backward", "sync", "optimizer")
_WAITS_FOR_OTHERS = ("backward", "sync")
"""Phases in which a rank waits for another one."""
_FEWEST_IN_RHYTHM = 3
_EXACT_BELOW = 10
"""A period shorter than this must hold exactly; a longer one may be off by a step."""


@rule
def check_step_outliers(evidence: Evidence) -> Finding | None:
    """Some steps take far longer than the others: checkpoints, evaluation, garbage collection.

    A step is an outlier when it takes at least 1.5 times the median and is five robust
    deviations (1.48 times the median deviation) above it; steps in which a loader begins do not
    count. Fires with at least two of them that cost at least 5 % of all step time. Where others
    fill the host's cores, they cause irregular outliers in the model's own phases, which are
    not reported.

    Ranks that sync gradients wait in backward for the one of them that evaluates or saves: the
    phase, the period and the line are those of the rank that spent most of such steps itself,
    outside of backward and sync.

    The line is the one that ran then and does not run in every step: an evaluation calls the
    model, as training does, so the line that calls it is named.
    """
    steps = evidence.steps
    if not evidence.enough or steps.starts_loader.all():
        return None
    wall = steps.wall_ns
    usual = wall[~steps.starts_loader]
    median = float(np.median(usual))
    deviation = 1.48 * float(np.median(np.abs(usual - median)))
    outliers = (wall >= max(_TIMES_MEDIAN * median, median + _DEVIATIONS * deviation)) & (
        ~steps.starts_loader
    )
    excess = np.where(outliers, wall - median, 0.0)
    share = float(excess.sum() / max(wall.sum(), 1.0))
    if outliers.sum() < 2 or share < WARNING:
        return None
    at_fault = outliers & (steps.rows["rank"] == _rank_at_fault(steps, outliers))
    phase = _phase(steps, at_fault)
    if phase == "data_wait":  # other rules look at the loader
        return None
    every = _period(steps, at_fault, phase)
    if every is None and evidence.others_fill_cores and phase in _MODEL_PHASES:
        return None
    cause = _outlier_cause(evidence, at_fault, phase)
    when = f"every {every} steps" if every else "at irregular steps"
    where = f", {'in' if cause.name else 'at'} {cause}" if cause is not None else ""
    times = float(wall[outliers].mean() / max(median, 1.0))
    return evidence.finding(
        f"{int(outliers.sum()):,} of {len(steps):,} steps take {times:.1f} times as long as "
        f"the others ({when}{where})",
        share * steps.total_seconds,
        {
            "outliers": int(outliers.sum()),
            "steps": len(steps),
            "median_ms": median / 1e6,
            "outlier_ms": float(wall[outliers].mean() / 1e6),
            "phase": phase,
            "every_steps": every,
        },
        cause=cause,
        remedies=(
            predicted_remedy(
                "outliers",
                "no such steps",
                predict_without(evidence, excess),
                "Do it less often, or in the background.",
            ),
        ),
    )


def _rank_at_fault(steps: TrainSteps, outliers: Flags) -> int:
    """Return the rank whose own time in such steps is longest, without waits for others."""
    own = [phase for phase in PHASES if phase not in _WAITS_FOR_OTHERS]
    spent = np.sum([steps.phase_ns(phase) for phase in own], axis=0)
    longer = spent - np.median(spent[~outliers])
    of_rank = {
        rank: float(longer[outliers & (steps.rows["rank"] == rank)].sum())
        for rank in steps.of(outliers).ranks
    }
    return max(of_rank, key=lambda rank: of_rank[rank])


def _phase(steps: TrainSteps, outliers: Flags) -> str:
    """Return the phase with most of the excess of one rank's outliers."""
    usual = (steps.rows["rank"] == steps.rows["rank"][outliers][0]) & ~outliers
    if not usual.any():  # all steps of this rank are long
        usual = ~steps.starts_loader
    excess = {
        phase: float(
            steps.phase_ns(phase)[outliers].mean() - np.median(steps.phase_ns(phase)[usual])
        )
        for phase in PHASES
    }
    return max(excess, key=lambda phase: excess[phase])


def _period(steps: TrainSteps, outliers: Flags, phase: str) -> int | None:
    """Return every how many steps one rank's outliers come; None if irregular."""
    spent = steps.phase_ns(phase)
    # A step that was slow by chance differs: in another phase, or not as long in this one.
    late = steps.wall_ns - np.median(steps.wall_ns[~outliers])
    there = outliers & (spent - np.median(spent[~outliers]) >= 0.5 * late)
    if there.sum() < _FEWEST_IN_RHYTHM:  # their time is spread over phases
        there = outliers
    long = there & (spent >= 0.5 * float(np.median(spent[there])))
    numbers = steps.rows["step"][long]
    gaps = np.diff(np.sort(numbers))
    if len(gaps) < _FEWEST_IN_RHYTHM - 1:
        return None
    usual = int(np.median(gaps))
    # An outlier may be in a step that does not count, so gaps may be several periods.
    off = np.abs(gaps / max(usual, 1) - np.round(gaps / max(usual, 1))) * usual
    regular = off <= (1.0 if usual >= _EXACT_BELOW else 0.01)
    return usual if usual > 1 and bool(np.mean(regular) >= 0.8) else None


def _outlier_cause(evidence: Evidence, outliers: Flags, phase: str) -> Cause | None:
    slow = evidence.steps.of(outliers)
    times = {rank: slow.times_of(rank) for rank in slow.ranks}
    in_phase = [sample for sample in evidence.rank_samples if sample.phase == phase]
    usual = {
        frame
        for sample in evidence.rank_samples
        if sample.phase != phase
        for frame in sample.frames
    }
    seen = samples_during(in_phase, times)
    place = find_hotspot([_cut_to_special_line(sample, usual) for sample in seen])
    return place.cause() if place is not None else None


def _cut_to_special_line(sample: StackSample, usual: set[StackFrame]) -> StackSample:
    """Return a sample without the inner lines that run in a step's other phases, too."""
    if sample.own_frame not in usual:
        return sample
    special = [
        depth
        for depth, frame in enumerate(sample.frames)
        if frame.is_user and frame.line and frame not in usual
    ]
    if not special:
        return sample
    return replace(sample, frames=sample.frames[: special[-1] + 1])
