"""Loaders whose batches a training step takes besides those of the main one, and their pace.

As where two sets of images are trained on together, or labelled and unlabelled samples. A step
waits for the slowest of them, so that a change of one alone gives no more than the others allow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.tables import Columns, Flags, Floats, Ints
from headrace.observe.whatif.train_steps import TrainSteps

_OFTEN = 0.2
"""Least batches for each one of the main loader: others are fetched in some steps only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointLoader:
    """A loader beside the main one; its time is that for each batch of the main one."""

    number: int
    workers: int
    making_ns: float  # its batches, by one process

    @property
    def pace_ns(self) -> float:
        """The least time in which its workers, or the rank itself, make its batches."""
        return self.making_ns / max(self.workers, 1)


def read_joint_loaders(
    steps: TrainSteps, main: int, loaders: Columns, batches: Columns, fetches: Columns
) -> tuple[JointLoader, ...]:
    """Return the loaders that steps take batches of besides those of loader `main`."""
    if (loaders["loader"] == main).all():
        return ()
    taken = _taken_in_steps(steps, main, fetches)
    found = []
    for number, count in taken.items():
        rows, made = loaders.having(loader=number), batches.having(loader=number)
        share = count / max(taken.get(main, 0), 1)
        if number == main or share < _OFTEN or not (rows.count and made.count):
            continue
        making_ns = float(made["wall_ns"].mean()) * share
        found.append(
            JointLoader(number=number, workers=int(rows["workers"][0]), making_ns=making_ns)
        )
    return tuple(found)


def _taken_in_steps(steps: TrainSteps, main: int, fetches: Columns) -> dict[int, int]:
    """Return how many batches of each loader were asked for in training steps.

    Without what the main loader's dataset asked for, as where it iterates another loader.
    """
    taken: dict[int, int] = {}
    asked = _by_rank(fetches.having(ended=0), "loader", "start_ns", "wait_ns")
    steps_of = _by_rank(steps.rows, "start_ns", "wall_ns")
    for rank, taking in steps_of.items():
        mine = asked.get(rank)
        if mine is None:
            continue
        since = mine["start_ns"]
        waits = mine.having(loader=main)
        waits = waits.where(np.argsort(waits["start_ns"], kind="stable"))
        begins = taking["start_ns"]
        counted = _is_within(since, begins, begins + taking["wall_ns"])
        counted &= (mine["loader"] == main) | ~_is_within(
            since, waits["start_ns"], waits["start_ns"] + waits["wait_ns"]
        )
        numbers, counts = np.unique(mine["loader"][counted], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            taken[number] = taken.get(number, 0) + count
    return taken


def _by_rank(rows: Columns, *names: str) -> dict[tuple[int, ...], Columns]:
    """Return some columns of each rank's rows; each is read once, as few stay in memory."""
    return Columns({name: rows[name] for name in ("rank", *names)}).split("rank")


def _is_within(times: Ints, begins: Ints, ends: Ints) -> Flags:
    """Return which moments are within ascending, disjoint intervals."""
    if not len(begins):
        return np.zeros(len(times), dtype=np.bool_)
    at = np.searchsorted(begins, times, side="right") - 1
    return np.asarray((at >= 0) & (times < ends[np.maximum(at, 0)]))


def least_period_ns(joint: Iterable[JointLoader], consume_ns: Floats) -> float:
    """Return the least time of a batch of the main loader that the others allow, 0 without any.

    A loader without workers makes its batches in the rank, in which nothing else happens meanwhile.
    """
    loaders = tuple(joint)
    inline_ns = sum(each.making_ns for each in loaders if not each.workers)
    own_ns = float(consume_ns.mean()) + inline_ns if inline_ns else 0.0
    return max((own_ns, *(each.pace_ns for each in loaders if each.workers)))
