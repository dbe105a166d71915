"""Steps over time: each step where it happened, as high as it was long, split into phases."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.observe.whatif.tables import Columns, Floats, Ints, Tables, columns
from headrace.records.schema import PHASES
from headrace.report.charts.base import (
    MAX_COLUMNS,
    PHASE_COLOURS,
    Chart,
    ChartSpan,
    Pooling,
    Span,
    TimeAxis,
    group_offsets,
    pool_groups,
    time_axis,
)
from headrace.report.charts.long_runs import totals_of
from headrace.report.formatting import phase_name

MAX_RANKS = 8
"""Of more ranks, those with the longest data waits are shown."""
_POOLED: dict[str, Pooling] = {"data_wait": "max", "sync": "max", "other": "max"}
"""Phases in which a step can stall show the longest of a column; others show the mean."""
_MAX_SHADES = 60
_TALL = 5.0
"""Height of the axis over an ordinary step, so that one long step does not flatten all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseOfSteps:
    """A phase as the chart shows it."""

    name: str
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """The steps of a rank, in columns of one or several steps each."""

    name: str
    start_s: Floats  # of the first step of a column
    end_s: Floats  # of its last step
    count: NDArray[np.int32]  # steps of a column
    wall_ms: NDArray[np.float32]  # its longest step
    parts: tuple[NDArray[np.float32], ...]  # in ms, one for each phase of the chart


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsChart(Chart):
    """The phases of every step over time, a row for each rank."""

    kind: ClassVar[str] = "steps"
    span: Span
    limits: Span
    first_span: Span
    phases: tuple[PhaseOfSteps, ...]
    rows: tuple[StepRow, ...]
    top_ms: float  # of the axis
    shades: tuple[Span, ...]  # when the model was evaluated


def steps_chart(tables: Tables, span: ChartSpan | None = None) -> StepsChart | None:
    """Return the phases of the steps in a span of time; None if there are none in the run."""
    steps, totals = columns(tables, "steps"), totals_of(tables, "steps")
    if steps.count == 0 and totals is None:
        return None
    span = span if span is not None else ChartSpan.of(time_axis(tables))
    ranks, top_ms = shown_ranks(steps, totals), axis_top_ms(steps, totals)
    steps = steps.where(span.overlaps(steps["start_ns"], steps["start_ns"] + steps["wall_ns"]))
    if totals is not None:
        totals = totals.where(span.overlaps(totals["start_ns"], totals["end_ns"]))
    parts = [each for each in (steps, totals) if each is not None]
    phases = [phase for phase in PHASES if any((each[f"{phase}_ns"] > 0).any() for each in parts)]
    first = _in_order(steps.having(rank=ranks[0]))
    return StepsChart(
        span=span.seconds,
        limits=span.axis.limits,
        first_span=span.axis.first_span,
        phases=tuple(
            PhaseOfSteps(name=phase_name(phase), colour=PHASE_COLOURS[phase]) for phase in phases
        ),
        rows=tuple(
            _row(f"rank {rank}", [_pieces(each.having(rank=rank), phases) for each in parts], span)
            for rank in ranks
        ),
        top_ms=round(top_ms, 6),
        shades=_evaluations(first, span.axis),
    )


def _in_order(steps: Columns) -> Columns:
    return steps.where(np.argsort(steps["start_ns"], kind="stable"))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Steps of a rank, or several steps as one."""

    start_ns: Ints
    end_ns: Ints
    count: Ints  # steps of a piece
    wall_ns: Floats  # of its longest
    phases_ns: dict[str, Floats]  # as the chart shows them: see `_POOLED`


def _pieces(rows: Columns, phases: list[str]) -> _Pieces:
    """Return rows of `steps`, or of their totals, as pieces."""
    if "steps" not in rows:
        return _Pieces(
            rows["start_ns"],
            rows["start_ns"] + rows["wall_ns"],
            np.ones(rows.count, np.int64),
            rows["wall_ns"].astype(np.float64),
            {phase: np.maximum(rows[f"{phase}_ns"].astype(np.float64), 0.0) for phase in phases},
        )
    counts = rows["steps"]
    return _Pieces(
        rows["start_ns"],
        rows["end_ns"],
        counts,
        rows["longest_ns"].astype(np.float64),
        {
            phase: rows[f"longest_{phase}_ns"].astype(np.float64)
            if phase in _POOLED
            else rows[f"{phase}_ns"] / np.maximum(counts, 1)
            for phase in phases
        },
    )


def _row(name: str, parts: list[_Pieces], span: ChartSpan) -> StepRow:
    start_ns = np.concatenate([each.start_ns for each in parts])
    order = np.argsort(start_ns, kind="stable")
    groups = group_offsets(len(order), span.columns)

    def joined(values: list[Any]) -> Any:
        return np.concatenate(values)[order]

    count = joined([each.count for each in parts])
    counts = np.add.reduceat(count, groups) if len(groups) else count

    def pooled(phase: str) -> Floats:
        values = joined([each.phases_ns[phase] for each in parts]) / 1e6
        if phase in _POOLED:
            return pool_groups(values, groups, _POOLED[phase])
        summed = np.add.reduceat(values * count, groups) if len(groups) else values
        return np.asarray(summed / np.maximum(counts, 1))

    last = np.append(groups[1:], len(order))[: len(groups)] - 1  # a rank may have no step
    walls_ms = pool_groups(joined([each.wall_ns for each in parts]) / 1e6, groups, "max")
    return StepRow(
        name=name,
        start_s=span.axis.read(start_ns[order][groups]).round(6),
        end_s=span.axis.read(joined([each.end_ns for each in parts])[last]).round(6),
        count=counts.astype(np.int32),
        wall_ms=walls_ms.astype(np.float32).round(3),
        parts=tuple(pooled(phase).astype(np.float32).round(3) for phase in parts[0].phases_ns),
    )


def shown_ranks(steps: Columns, totals: Columns | None = None) -> list[int]:
    """Return the ranks that a timeline shows, in order."""
    waits: Counter[int] = Counter()
    for rows in (steps,) if totals is None else (steps, totals):
        for rank in np.unique(rows["rank"]).tolist():
            waits[rank] += int(rows["data_wait_ns"][rows["rank"] == rank].sum())
    return sorted(sorted(waits, key=lambda rank: -waits[rank])[:MAX_RANKS])


def axis_top_ms(steps: Columns, totals: Columns | None = None) -> float:
    """Return the top of the axis: the longest step, or a multiple of an ordinary one."""
    longest_ns, ordinary_ns = [], []
    for kind in ("train", None):
        for rows in (steps, totals):
            if rows is None:
                continue
            chosen = rows if kind is None else rows.where(rows["kind"] == kind)
            if "steps" in rows:
                longest_ns.append(chosen["longest_ns"])
                ordinary_ns.append(chosen["wall_ns"] / np.maximum(chosen["steps"], 1))
            else:
                longest_ns.append(chosen["wall_ns"])
                ordinary_ns.append(chosen["wall_ns"])
        if any(len(each) for each in longest_ns):
            break
    wall_ms = np.concatenate(ordinary_ns).astype(np.float64) / 1e6
    longest_ms = float(np.concatenate(longest_ns).max()) / 1e6
    return 1.05 * max(min(longest_ms, _TALL * float(np.percentile(wall_ms, 90))), 1e-3)


def steps_above(steps: Columns) -> int:
    """Return how many steps are longer than the axis."""
    return int((steps["wall_ns"] / 1e6 > axis_top_ms(steps)).sum())


def steps_a_column(steps: Columns) -> int:
    """Return how many steps of a rank one column represents."""
    most = max(np.unique(steps["rank"], return_counts=True)[1], default=0)
    return int(-(-most // MAX_COLUMNS))


def _evaluations(steps: Columns, axis: TimeAxis) -> tuple[Span, ...]:
    """Return when a rank evaluated; nothing if that was too often to shade."""
    evaluating = steps["kind"] == "eval"
    changes = np.flatnonzero(np.diff(np.append(np.append(0, evaluating.astype(np.int8)), 0)))
    begins, ends = changes[::2], changes[1::2] - 1
    if len(begins) > _MAX_SHADES:
        return ()
    left = axis.read(steps["start_ns"][begins]).tolist()
    right = axis.read((steps["start_ns"] + steps["wall_ns"])[ends]).tolist()
    return tuple(zip(left, right, strict=True))
