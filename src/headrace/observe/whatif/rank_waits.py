"""Waits of ranks in training steps for another one that does not train: it evaluates or saves.

Where rank 0 alone evaluates after an epoch, the others begin the next one and wait in the first
gradient sync. Their rows of that step are long by it, though no step takes so long, and what rank 0
does costs the whole run its time, not a rank's part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.tables import Columns, Flags, Floats, Ints, covered_before
from headrace.records.schema import PHASES

_SYNC_PHASES = ("forward", "backward", "sync")
"""Those in which ranks exchange gradients, parameters and buffers."""
_OWN_PHASES = tuple(phase for phase in PHASES if phase != "data_wait")
_TAKEN_FIRST = ("sync", "backward", "forward", "other", "optimizer", "copy")
_FEWEST_STEPS = 5
_LONG, _MOSTLY = 0.5, 0.5


@dataclass(frozen=True, slots=True)
class RankWaits:
    """How long each row of `steps` waits for a rank that does not train, in ns, and until when."""

    wait_ns: Ints
    until_ns: Ints

    @property
    def any(self) -> bool:
        """Whether any row does."""
        return bool(self.wait_ns.any())

    def rows_between(self, steps: Columns) -> Columns:
        """Return the waits as rows of kind `between`, given all rows of `steps`."""
        places = np.flatnonzero(self.wait_ns)
        rows, wait_ns = dict(steps.where(places)), self.wait_ns[places]
        for phase in PHASES:
            rows[f"{phase}_ns"] = np.zeros_like(wait_ns)
        # Backward is where they mostly are, and is never taken for an evaluation of their own.
        rows |= {"wall_ns": wait_ns, "backward_ns": wait_ns}
        rows["start_ns"] = self.until_ns[places] - wait_ns
        rows["kind"] = np.full(len(places), "between", dtype=object)
        rows["loader"] = np.full(len(places), -1)
        for name in ("batches", "samples"):
            rows[name] = np.zeros_like(wait_ns)
        return Columns(rows)


def read_rank_waits(steps: Columns, *, has_device: bool) -> RankWaits:
    """Return how long training steps wait for ranks that do not train meanwhile.

    A step does where it takes half as long again by itself as the rank's median step, mostly
    because of that, while another rank evaluates or is between epochs. For one that evaluates it
    may wait anywhere; a rank between epochs may wait itself, for what this one does outside of the
    exchange of gradients.

    Args:
        steps: All rows of `steps`.
        has_device: Whether an accelerator does the work: the script then waits for it anywhere.
    """
    nothing = np.zeros(steps.count, dtype=np.int64)
    trains = steps["kind"] == "train"
    if trains.all() or len(np.unique(steps["rank"])) < 2:
        return RankWaits(nothing, nothing)
    wait_ns, until_ns = nothing.copy(), nothing.copy()
    evaluates = steps["kind"] == "eval"
    synced = _OWN_PHASES if has_device else _SYNC_PHASES
    for rank in np.unique(steps["rank"][trains]):
        places = np.flatnonzero(trains & (steps["rank"] == rank))
        mine = steps.where(places)
        for where, phases in ((evaluates, _OWN_PHASES), (~trains, synced)):
            others = steps.where(where & (steps["rank"] != rank))
            if not others.count or len(places) < _FEWEST_STEPS:
                continue
            waited, until = _waits(mine, others, phases)
            longer = waited > wait_ns[places]
            wait_ns[places[longer]], until_ns[places[longer]] = waited[longer], until[longer]
    return RankWaits(wait_ns, until_ns)


def _waits(steps: Columns, others: Columns, phases: tuple[str, ...]) -> tuple[Ints, Ints]:
    """Return how long one rank's steps wait in some phases for others, and until when."""
    starts = others["start_ns"].astype(np.float64)
    ends = starts + others["wall_ns"]
    begin, end = steps["start_ns"], steps["start_ns"] + steps["wall_ns"]
    covered = covered_before(starts, ends, end.astype(np.float64))
    covered -= covered_before(starts, ends, begin.astype(np.float64))
    own = steps["wall_ns"] - np.maximum(steps["data_wait_ns"], 0)
    excess = _beyond_median(np.sum([_phase_ns(steps, phase) for phase in phases], axis=0))
    least = _MOSTLY * (covered - np.maximum(steps["data_wait_ns"], 0))
    waits: Flags = (excess >= _LONG * np.median(own)) & (excess >= least) & (covered > 0)
    order = np.argsort(starts, kind="stable")
    last_end = np.append(0.0, np.maximum.accumulate(ends[order]))
    until = np.minimum(last_end[np.searchsorted(starts[order], end, side="left")], end)
    wait_ns = np.where(waits, np.minimum(excess, covered), 0.0).astype(np.int64)
    return wait_ns, until.astype(np.int64)


def _phase_ns(steps: Columns, phase: str, prefix: str = "") -> Floats:
    return np.asarray(np.maximum(steps[f"{prefix}{phase}_ns"].astype(np.float64), 0.0))


def _beyond_median(spent: Floats) -> Floats:
    return np.asarray(np.maximum(spent - np.median(spent), 0.0))


def without_waits(steps: Columns, wait_ns: Ints, prefix: str = "") -> Columns:
    """Return rows of steps, or of `device_steps`, without such waits.

    Args:
        steps: Rows of training steps.
        wait_ns: How long each waits; 0: it stays as it is.
        prefix: Of the names of the columns that hold times: "device_" for `device_steps`.
    """
    if not wait_ns.any():
        return steps
    left, rows = wait_ns.astype(np.float64), dict(steps)
    for phase in _TAKEN_FIRST:
        spent = _phase_ns(steps, phase, prefix)
        taken = np.minimum(_beyond_median(spent), left)
        rows[f"{prefix}{phase}_ns"] = _less(steps[f"{prefix}{phase}_ns"], taken)
        left -= taken
    rows[f"{prefix}wall_ns"] = _less(steps[f"{prefix}wall_ns"], wait_ns - left)
    return Columns(rows)


def _less(spent: Ints, taken: Floats) -> Ints:
    return np.asarray(spent - taken.astype(spent.dtype))
