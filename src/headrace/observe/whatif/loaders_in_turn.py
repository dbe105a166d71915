"""Which loader feeds training, and the steps that it feeds where several do so in turn.

A script may train on one dataset for some epochs and then on another one. Steps of one loader say
nothing of the other's, so one of them is looked at, with its steps alone; what a change gives there
is a part of what it gives to the whole. Where loaders change from step to step, as in adversarial
training, their workers prefetch during each other's steps: those stay together.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.observe.whatif.tables import Columns, Ints
from headrace.observe.whatif.train_steps import TrainSteps

_SHORTEST_TURN = 10
"""Mean number of steps from one change of the loader to the next, at least, for turns."""
_LEAST_PART = 0.2
"""A loader whose steps take less of the time is not the one to look at."""
_FEWEST_STEPS = 10
"""With fewer of its steps nothing can be said of a loader."""
_MATTERS = 0.05
"""If less of the time waits for data, the loader with the longest steps is looked at."""


def main_loader(steps: TrainSteps) -> int:
    """Return the number of the loader that feeds training; -1 if there is none.

    Of several that feed steps by turns of an epoch it is the one that is waited for longest. Else
    it is the one that feeds most steps. A step without a batch is not fed by the loader whose
    iterator was made in it.
    """
    is_fed = (steps.rows["loader"] >= 0) & (steps.rows["batches"] > 0)
    loaders = steps.rows["loader"][is_fed]
    if not len(loaders):
        return -1
    numbers, of_number, counts = np.unique(loaders, return_inverse=True, return_counts=True)
    if len(numbers) == 1 or not _take_turns(steps.rows.where(is_fed)):
        return int(numbers[counts.argmax()])
    wall_ns = np.bincount(of_number, steps.wall_ns[is_fed])
    wait_ns = np.bincount(of_number, steps.data_wait_ns[is_fed])
    spent_ns = wait_ns if wait_ns.sum() >= _MATTERS * wall_ns.sum() else wall_ns
    is_candidate = (wall_ns >= _LEAST_PART * wall_ns.sum()) & (counts >= _FEWEST_STEPS)
    spent_ns = np.where(is_candidate, spent_ns, -1.0)
    return int(numbers[spent_ns.argmax()])


def fed_by(steps: TrainSteps, loader: int) -> TrainSteps:
    """Return the steps of a loader where several feed training in turn; otherwise all of them."""
    feeding = _feeding_loaders(steps.rows)
    if not len(steps) or (feeding == loader).all() or not _take_turns(steps.rows):
        return steps
    mine = steps.of(feeding == loader)
    if len(mine) < _FEWEST_STEPS:
        return steps
    return replace(mine, part=mine.wall_ns.sum() / max(steps.wall_ns.sum(), 1.0))


def _take_turns(steps: Columns) -> bool:
    """Return whether a rank's steps are fed by one loader for long, and then by another."""
    feeding = _feeding_loaders(steps)
    is_change = (np.diff(feeding) != 0) & (np.diff(steps["rank"]) == 0)
    return bool(0 < is_change.sum() * _SHORTEST_TURN <= len(feeding))


def _feeding_loaders(steps: Columns) -> Ints:
    """Return the loader of each step; of one without a batch, the one that fed the rank last."""
    feeding = np.where(steps["batches"] > 0, steps["loader"], -1)
    for rank in np.unique(steps["rank"]):
        mine = np.flatnonzero(steps["rank"] == rank)
        fed = np.flatnonzero(feeding[mine] >= 0)
        if len(fed):
            last = np.searchsorted(fed, np.arange(len(mine)), side="right") - 1
            feeding[mine] = feeding[mine][fed[np.maximum(last, 0)]]
    return np.asarray(feeding)


def speedup_of_all(own: float, part: float) -> float:
    """Return the speed-up of all steps where those of a part of their time become so much faster.

    Args:
        own: The speed-up of the part.
        part: Its share of the time so far, 0 to 1.
    """
    return 1.0 / (1.0 - part + part / own) if own > 0 else 0.0


def speedup_of_part(whole: float, part: float) -> float:
    """Return the speed-up of a part of the steps, by that of all: see `speedup_of_all`."""
    left = 1.0 / max(whole, 1e-9) - (1.0 - part)
    return part / max(left, 1e-9)


def is_made_by_thread(fetches: Columns, loader: int, workers: int) -> bool:
    """Return whether a thread of the script's makes a loader's batches, which has no workers.

    Such as a background generator does, that hands them on: then it is known whether batches wait.
    """
    mine = fetches.having(loader=loader, ended=0)
    return not workers and mine.count > 0 and float((mine["ready"] >= 0).mean()) > 0.5
