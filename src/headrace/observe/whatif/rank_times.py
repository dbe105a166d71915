"""What ranks of a measured run take for a step by themselves, and what gradient sync adds.

Data-parallel ranks end a step together. A rank's own time in a step is that of its phases but data
wait and sync. DDP's sync is measured in some steps alone; in the others backward holds it, with the
wait for slower ranks. The rank that comes last waits for none, so the shortest backward of all
ranks in a step, less the sync of the last one, is taken for what backward takes by itself.

Sync of the last rank is what sending gradients takes: the mean over the measured steps of the
shortest sync of all ranks. Own times differ between steps, alike for all ranks (a longer sequence,
logging every tenth step), and between the ranks of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.tables import Floats, Ints
from headrace.observe.whatif.train_steps import TrainSteps

_OWN_PHASES = ("copy", "forward", "optimizer", "other")
_FEWEST_STEPS = 5
_SLOW_PERCENT = 99.5
"""Steps beyond it, such as one that saves a checkpoint, are not drawn for every rank anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """Own times of steps, in ns.

    Attributes:
        step_ns: Of each step, the mean over the ranks.
        beyond_ns: By which one rank's differ from that; empty if one rank was measured.
        sync_ns: Of a step, as the rank that comes last needs it; None: not measured.
        ranks: That were measured.
        period_ns: From one step to the next, the mean.
        batches: Of a step, the mean.
    """

    step_ns: Floats
    beyond_ns: Floats
    sync_ns: float | None
    ranks: int
    period_ns: float
    batches: float


def rank_times(steps: TrainSteps) -> RankTimes | None:
    """Return the own times of the steps in which no iteration began; None: too few are known."""
    steady = steps.steady
    places = _joint_places(steady)
    if len(places) < _FEWEST_STEPS:
        return None
    sync = _least_sync_ns(steady, places)
    ranks = places.shape[1]
    own = sum(_phase_ns(steady, phase)[places] for phase in _OWN_PHASES)
    backward = _backward_ns(steady)[places]
    if ranks > 1:
        backward = np.maximum(backward.min(axis=1, keepdims=True) - (sync or 0.0), 0.0)
    own = np.asarray(own + backward, dtype=np.float64)
    own = np.minimum(own, np.percentile(own, _SLOW_PERCENT))
    step = own.mean(axis=1)
    # Of few ranks, deviations from their own mean are too small.
    beyond = (own - step[:, None]) * np.sqrt(ranks / max(ranks - 1, 1))
    return RankTimes(
        step_ns=step,
        beyond_ns=beyond.ravel() if ranks > 1 else np.zeros(0),
        sync_ns=sync,
        ranks=ranks,
        period_ns=float(steady.wall_ns[places].mean()),
        batches=float(steady.batches[places].mean()),
    )


def _joint_places(steps: TrainSteps) -> Ints:
    """Return the rows of the steps that all ranks have, steps x ranks."""
    by_rank = []
    for rank in steps.ranks:
        rows = np.flatnonzero(steps.rows["rank"] == rank)
        by_rank.append(dict(zip(steps.rows["step"][rows].tolist(), rows.tolist(), strict=True)))
    if not by_rank:
        return np.zeros((0, 0), dtype=np.int64)
    joint = sorted(set.intersection(*(set(rows) for rows in by_rank)))
    return np.array([[rows[step] for rows in by_rank] for step in joint], dtype=np.int64).reshape(
        len(joint), len(by_rank)
    )


def _phase_ns(steps: TrainSteps, phase: str) -> Floats:
    """Return a phase of each step by the device's clock, where it is known of all."""
    device = steps.device
    if device is not None and device.known.all():
        return device.phase_ns(phase)
    return steps.phase_ns(phase)


def _backward_ns(steps: TrainSteps) -> Floats:
    """Return backward with all sync in it."""
    return _phase_ns(steps, "backward") + _phase_ns(steps, "sync")


def _least_sync_ns(steps: TrainSteps, places: Ints) -> float | None:
    """Return the sync of the rank that comes last, the mean of the steps where it was measured."""
    if places.shape[1] < 2:
        return None
    measured = (steps.rows["sync_measured"] > 0)[places].all(axis=1)
    if not measured.any():
        return None
    return float(_phase_ns(steps, "sync")[places][measured].min(axis=1).mean())
