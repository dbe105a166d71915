"""Rates of the last seconds: steps and samples a second, times of steps, their phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.observe.whatif.tables import (
    Columns,
    Flags,
    Floats,
    Tables,
    columns,
    row_count,
    select_rows,
)
from headrace.records.schema import PHASES

_LATE_FACTOR, _LATE_NS = 3.0, 2e9
_FEWEST_SPANS = 3


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A span of time, by the host's monotonic clock in nanoseconds."""

    since_ns: int
    until_ns: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.until_ns - self.since_ns) / 1e9


def quiet_s(start: Floats, end: Floats, window: TimeWindow) -> float:
    """Return the time since the last of consecutive events if the next one is late, otherwise 0.

    It is late after three times the longest duration, and two seconds.
    """
    if len(end) == 0:
        return 0.0
    since_ns = float(window.until_ns - end.max())
    late = since_ns > max(_LATE_FACTOR * float((end - start).max()), _LATE_NS)
    return since_ns / 1e9 if late else 0.0


def per_second(start: Floats, end: Floats, counts: Floats, window: TimeWindow) -> float:
    """Return the rate of consecutive events, weighted by their counts, such as of samples.

    Of events that began before the window, the part within it counts. If events are longer than the
    window, the last few of them count instead. An unfinished event is unknown, so time counts up to
    the last end, or to the window's end if the next one is late.
    """
    if len(end) == 0:
        return 0.0
    began, ended = float(window.since_ns), float(end.max())
    if quiet_s(start, end, window):
        ended = float(window.until_ns)
    else:
        began = min(began, float(np.sort(start)[-_FEWEST_SPANS:][0]))
    began = max(began, float(start.min()))
    inside = np.maximum(np.minimum(end, ended) - np.maximum(start, began), 0.0)
    done = float((inside / np.maximum(end - start, 1.0) * counts).sum())
    return done / max(ended - began, 1.0) * 1e9


_FEWEST_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRate:
    """The rates of one rank."""

    rank: int
    steps_per_s: float
    samples_per_s: float | None  # None if not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The durations of steps, in nanoseconds."""

    count: int
    median_ns: float
    p90_ns: float
    p99_ns: float
    longest_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRates:
    """The rates of all ranks' steps."""

    ranks: tuple[RankRate, ...] = ()
    times: StepTimes | None = None  # of training steps; None if there are none
    shares: Mapping[str, float] = field(default_factory=dict)  # of step time, by phase
    evaluates: bool = False  # whether the shares are of evaluation, for lack of training steps
    evaluated_per_s: float = 0.0  # batches a second, over all ranks
    quiet_s: float = 0.0  # since the last training step of any rank if the next one is late

    @property
    def steps_per_s(self) -> float:
        """Mean steps a second of a rank: ranks make a step together."""
        return float(np.mean([each.steps_per_s for each in self.ranks])) if self.ranks else 0.0

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second of all ranks together; None if unknown for one of them."""
        known = [each.samples_per_s for each in self.ranks if each.samples_per_s is not None]
        return sum(known) if known and len(known) == len(self.ranks) else None


def read_step_rates(tables: Tables, window: TimeWindow) -> StepRates:
    """Return the rates of the steps in the window, and of the last few of each rank."""
    rows = columns(tables, "steps")
    if row_count(rows) == 0:
        return StepRates()
    rows = select_rows(rows, rows["start_ns"] + rows["wall_ns"] <= window.until_ns)
    train, evaluation = (select_rows(rows, rows["kind"] == kind) for kind in ("train", "eval"))
    current = _current(train, window)
    evaluated = _current(evaluation, window) if row_count(current) == 0 else current
    start, end = row_times(train)
    return StepRates(
        ranks=tuple(_rate(train, int(rank), window) for rank in np.unique(train["rank"])),
        times=_step_times(current),
        shares=phase_shares(evaluated),
        evaluates=row_count(current) == 0 and row_count(evaluated) > 0,
        evaluated_per_s=_evaluated_per_s(evaluation, window),
        quiet_s=quiet_s(start, end, window),
    )


def row_times(rows: Columns) -> tuple[Floats, Floats]:
    """Return starts and ends of rows of `steps` or `batches`, in ns."""
    start = rows["start_ns"].astype(np.float64)
    return start, start + rows["wall_ns"]


def phase_shares(rows: Columns) -> dict[str, float]:
    """Return the share of step time of each phase, 0 to 1; empty if there are no steps."""
    total = float(rows["wall_ns"].sum())
    if total <= 0:
        return {}
    return {phase: max(float(rows[f"{phase}_ns"].sum()), 0.0) / total for phase in PHASES}


def _current(rows: Columns, window: TimeWindow) -> Columns:
    """Return the steps that ended in the window, and the last few of each rank."""
    wanted: Flags = rows["start_ns"] + rows["wall_ns"] > window.since_ns
    for rank in np.unique(rows["rank"]):
        places = np.flatnonzero(rows["rank"] == rank)
        wanted[places[np.argsort(rows["start_ns"][places])][-_FEWEST_STEPS:]] = True
    return select_rows(rows, wanted)


def _rate(rows: Columns, rank: int, window: TimeWindow) -> RankRate:
    own = select_rows(rows, rows["rank"] == rank)
    start, end = row_times(own)
    known = bool((own["samples"] >= 0).all())
    return RankRate(
        rank=rank,
        steps_per_s=per_second(start, end, np.ones(len(start)), window),
        samples_per_s=per_second(start, end, own["samples"], window) if known else None,
    )


def _step_times(rows: Columns) -> StepTimes | None:
    if row_count(rows) == 0:
        return None
    wall = rows["wall_ns"].astype(np.float64)
    median, p90, p99 = np.percentile(wall, (50, 90, 99))
    return StepTimes(
        count=len(wall),
        median_ns=float(median),
        p90_ns=float(p90),
        p99_ns=float(p99),
        longest_ns=float(wall.max()),
    )


def _evaluated_per_s(rows: Columns, window: TimeWindow) -> float:
    total = 0.0
    for rank in np.unique(rows["rank"]):
        start, end = row_times(select_rows(rows, rows["rank"] == rank))
        if end.max() > window.since_ns:
            total += per_second(start, end, np.ones(len(start)), window)
    return total
