"""The handoff of a ready batch: a fixed cost of each batch, however early it was made."""

from __future__ import annotations

import numpy as np

from headrace.observe.doctor.device_remedies import predict_twice_the_batch
from headrace.observe.doctor.evidence import WARNING, Evidence
from headrace.observe.doctor.findings import Remedy
from headrace.observe.doctor.remedies import WORTH_IT, predicted_remedy
from headrace.observe.whatif.measured_pipeline import wait_for_ready_ns
from headrace.observe.whatif.tables import Columns, Floats, select_rows

HANDOFF_NS = 2e6
"""Largest handoff of a batch of few tensors from a worker: a queue, and for each tensor a handle
and a mapping. With torch's loader two tensors took 1.6 ms on a slow, calm host; 0.2 ms on fast
ones."""
_CALM_PERCENT = 25
"""Where others use the cores at times, the share of the waits assumed to be free of that."""


def ready_handoff_ns(evidence: Evidence) -> tuple[float, float]:
    """Return the script's and the accelerator's wait in a handoff of a ready batch; 0 if unseen."""
    loader, steady_steps = evidence.loader, evidence.steady_steps
    if loader is None:
        return 0.0, 0.0
    # The shortest waits count if others may include waiting for a core, as with several workers.
    workers = max(loader.workers, 2) if evidence.others_crowd else loader.workers
    taken = wait_for_ready_ns(evidence.fetches, loader.number, workers)
    if steady_steps.device is None:
        return taken, taken
    return taken, min(taken, float((steady_steps.data_wait_ns / steady_steps.batches).mean()))


def is_handoff_bound(evidence: Evidence) -> bool:
    """Return whether workers are idle, and a rank waits no longer than handoffs take.

    Waits beyond that may be 5 % of step time, the lowest threshold of data wait. Where others crowd
    the cores, rank and worker may wait for a core at each turn of the handoff. There a rank waits
    for data only while a worker makes a batch: the rest of longer waits does not count if the
    calmest quarter of the waits is no longer than a handoff.
    """
    if evidence.loader is None or evidence.work is None or evidence.workers_busy:
        return False
    steps = evidence.steps
    waited, batches = steps.data_wait_ns, steps.batches
    excess = np.maximum(waited - HANDOFF_NS * batches, 0.0)
    if evidence.others_crowd:
        if np.percentile(waited / batches, _CALM_PERCENT) > HANDOFF_NS:
            return False
        excess = np.minimum(excess, _making_wait_ns(evidence))
    return float(excess.sum()) < WARNING * float(steps.wall_ns.sum())


def fewer_handoffs_remedies(evidence: Evidence, hand_over_ns: float) -> tuple[Remedy, ...]:
    """Return what larger batches would give."""
    prediction = predict_twice_the_batch(evidence, (hand_over_ns / 2, hand_over_ns))
    if prediction.speedup < WORTH_IT:
        return ()
    how = (
        "Raise batch_size while memory allows it. Half to all of taking a batch over is taken to "
        "cost the same whatever its size; all else of a step grows with it."
    )
    return (predicted_remedy("bigger-batch", "twice the batch size", prediction, how),)


def _making_wait_ns(evidence: Evidence) -> Floats:
    """Return for each step its rank's wait for batches while one of its workers made one.

    Workers' first batches are not in the evidence: all of the wait for them counts.
    """
    steps, fetches = evidence.steps.rows, evidence.fetches
    work, loader = evidence.work, evidence.loader
    waited = np.zeros(len(evidence.steps))
    if work is None or loader is None:
        return waited
    for rank in evidence.steps.ranks:
        places = np.flatnonzero(steps["rank"] == rank)
        begins = steps["start_ns"][places]
        mine = select_rows(
            fetches, (fetches["rank"] == rank) & (fetches["loader"] == loader.number)
        )
        asked_ns, had_ns = mine["start_ns"], mine["start_ns"] + mine["wait_ns"]
        within = np.searchsorted(begins, asked_ns, side="right") - 1
        counts = (within >= 0) & (asked_ns < (begins + steps["wall_ns"][places])[within])
        making = _CoveredTime(select_rows(work.rows, work.rows["rank"] == rank))
        during = np.where(
            mine["batch"] < loader.workers,
            had_ns - asked_ns,
            making.before(had_ns) - making.before(asked_ns),
        )
        np.add.at(waited, places[within[counts]], during[counts])
    return waited


class _CoveredTime:
    """The time covered by the union of some rows, each from `start_ns` for `wall_ns`."""

    def __init__(self, rows: Columns) -> None:
        order = np.argsort(rows["start_ns"], kind="stable")
        starts = rows["start_ns"][order]
        ends = np.maximum.accumulate(starts + rows["wall_ns"][order]) if len(order) else starts
        # What a row covers that no earlier row does.
        self._starts = np.maximum(starts, np.concatenate([starts[:1], ends[:-1]]))
        self._ends = np.maximum(ends, self._starts)
        self._sums = np.concatenate([[0], np.cumsum(self._ends - self._starts)])

    def before(self, times_ns: Floats) -> Floats:
        """Return how much of the time before each of `times_ns` is covered."""
        if len(self._ends) == 0:
            return np.zeros(len(times_ns))
        begun = np.searchsorted(self._starts, times_ns, side="right")
        not_yet = self._ends[np.maximum(begun - 1, 0)] - times_ns
        covered: Floats = self._sums[begun] - np.where(begun > 0, np.maximum(not_yet, 0), 0)
        return covered.astype(np.float64)
