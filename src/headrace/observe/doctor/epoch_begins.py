"""Waits where epochs begin: for workers to end and to start, and for the first batch.

What the rank's own sampler takes then, such as to draw up all batches of the epoch, is neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.whatif.tables import Columns, Floats


@dataclass(frozen=True, slots=True)
class EpochBeginWaits:
    """What each step waited for beyond the usual, 0 in steps in which no epoch begins; in ns."""

    starting_ns: Floats  # until a worker began to make the first batch, and after it was made
    making_ns: Floats  # while a worker made it
    late_ns: Floats  # of that, what the first batch took beyond the usual one


def epoch_begin_waits(evidence: Evidence) -> EpochBeginWaits:
    """Return the waits of steps in which the training loader's iteration begins."""
    steps, loader = evidence.steps, evidence.loader
    wait = steps.data_wait_ns
    begins = steps.starts_loader
    wait = wait - np.minimum(evidence.sampler_ns, wait)
    usual = float(np.median(wait[~begins])) if (~begins).any() else 0.0
    beyond = np.where(begins, np.maximum(wait - usual, 0.0), 0.0)
    making: Floats = np.zeros(len(steps))
    for rank in steps.ranks if loader is not None else ():
        batches = evidence.batches.having(rank=rank)
        batches = batches.where(batches["worker"] >= 0)
        fetches = evidence.fetches.having(rank=rank, batch=0, ended=0)
        for place in np.flatnonzero(begins & (steps.rows["rank"] == rank)):
            making[place] = making_first_ns(
                int(steps.rows["start_ns"][place]),
                int(steps.rows["wall_ns"][place]),
                fetches,
                batches,
            )
    making = np.minimum(making, beyond)
    usual_ns = 0.0 if evidence.work is None else float(np.median(evidence.work.column("wall_ns")))
    return EpochBeginWaits(
        starting_ns=beyond - making,
        making_ns=making,
        late_ns=np.maximum(making - usual_ns, 0.0),
    )


def ending_waits_ns(evidence: Evidence) -> Floats:
    """Return for each step in which an iteration begins how long the one before took to end, in ns.

    The request that finds no further batch waits for workers that do not live on to end. 0 for
    other steps, and where that request is part of a step.
    """
    steps = evidence.steps
    waited: Floats = np.zeros(len(steps))
    if evidence.loader is None:
        return waited
    for rank in steps.ranks:
        places = np.flatnonzero(steps.rows["rank"] == rank)
        begins_ns, ends_ns = steps.times_of(rank)
        last = evidence.fetches.having(rank=rank, loader=evidence.loader.number, ended=1)
        for asked_ns, wait_ns in zip(last["start_ns"], last["wait_ns"], strict=True):
            after = int(np.searchsorted(begins_ns, asked_ns, side="right"))
            is_outside = after == 0 or asked_ns >= ends_ns[after - 1]
            if is_outside and after < len(places) and steps.starts_loader[places[after]]:
                waited[places[after]] += wait_ns
    return waited


_FEW_BATCHES = 2


def takes_an_iterator_a_batch(evidence: Evidence) -> bool:
    """Return whether the script takes a batch or two of each iterator: `next(iter(loader))`."""
    loader = evidence.loader
    if loader is None:
        return False
    taken = evidence.fetches.having(loader=loader.number, ended=0)
    begun = int((taken["batch"] == 0).sum())
    return begun > 1 and taken.count <= _FEW_BATCHES * begun


def making_first_ns(start_ns: int, wall_ns: int, fetches: Columns, batches: Columns) -> float:
    """Return how long a worker made the batch that an iteration's first row waited for, in ns.

    Args:
        start_ns: When that row of `steps` began.
        wall_ns: How long it took.
        fetches: Requests of its rank for the first batches of iterations.
        batches: What the workers of its loader made for its rank.
    """
    asked = fetches["start_ns"]
    there = (asked >= start_ns) & (asked < start_ns + wall_ns)
    if not there.any():
        return 0.0
    had_ns = int((asked + fetches["wait_ns"])[there].max())
    begin, end = batches["start_ns"], batches["start_ns"] + batches["wall_ns"]
    first = (begin >= start_ns) & (end <= had_ns)
    if not first.any():
        return 0.0
    # torch takes the first batch of worker 0; Headrace's loader, of any.
    of_first = first & (batches["worker"] == 0)
    chosen = np.flatnonzero(of_first if of_first.any() else first)
    place = chosen[np.argmin(end[chosen])]
    return float(batches["wall_ns"][place])
