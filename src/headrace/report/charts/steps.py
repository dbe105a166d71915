"""Steps over time: each step where it happened, as high as it was long, split into phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.observe.whatif.tables import Columns, Floats, Tables, columns
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
    steps = columns(tables, "steps")
    if steps.count == 0:
        return None
    span = span if span is not None else ChartSpan.of(time_axis(tables))
    ranks, top_ms = shown_ranks(steps), axis_top_ms(steps)
    steps = steps.where(span.overlaps(steps["start_ns"], steps["start_ns"] + steps["wall_ns"]))
    phases = [phase for phase in PHASES if (steps[f"{phase}_ns"] > 0).any()]
    of_ranks = [_in_order(steps.having(rank=rank)) for rank in ranks]
    return StepsChart(
        span=span.seconds,
        limits=span.axis.limits,
        first_span=span.axis.first_span,
        phases=tuple(
            PhaseOfSteps(name=phase_name(phase), colour=PHASE_COLOURS[phase]) for phase in phases
        ),
        rows=tuple(
            _row(f"rank {rank}", of_rank, phases, span)
            for rank, of_rank in zip(ranks, of_ranks, strict=True)
        ),
        top_ms=round(top_ms, 6),
        shades=_evaluations(of_ranks[0], span.axis),
    )


def _in_order(steps: Columns) -> Columns:
    return steps.where(np.argsort(steps["start_ns"], kind="stable"))


def _row(name: str, steps: Columns, phases: list[str], span: ChartSpan) -> StepRow:
    groups = group_offsets(steps.count, span.columns)
    counts = np.diff(np.append(groups, steps.count))
    last = groups + counts - 1
    wall_ms = steps["wall_ns"].astype(np.float64) / 1e6
    return StepRow(
        name=name,
        start_s=span.axis.read(steps["start_ns"][groups]).round(6),
        end_s=span.axis.read((steps["start_ns"] + steps["wall_ns"])[last]).round(6),
        count=counts.astype(np.int32),
        wall_ms=pool_groups(wall_ms, groups, "max").astype(np.float32).round(3),
        parts=tuple(
            pool_groups(
                np.maximum(steps[f"{phase}_ns"].astype(np.float64), 0.0) / 1e6,
                groups,
                _POOLED.get(phase, "mean"),
            )
            .astype(np.float32)
            .round(3)
            for phase in phases
        ),
    )


def shown_ranks(steps: Columns) -> list[int]:
    """Return the ranks that a timeline shows, in order."""
    waits = {
        int(rank): float(steps["data_wait_ns"][steps["rank"] == rank].sum())
        for rank in np.unique(steps["rank"])
    }
    return sorted(sorted(waits, key=lambda rank: -waits[rank])[:MAX_RANKS])


def axis_top_ms(steps: Columns) -> float:
    """Return the top of the axis: the longest step, or a multiple of an ordinary one."""
    wall_ms = steps["wall_ns"][steps["kind"] == "train"].astype(np.float64) / 1e6
    if len(wall_ms) == 0:
        wall_ms = steps["wall_ns"].astype(np.float64) / 1e6
    ordinary = float(np.percentile(wall_ms, 90))
    return 1.05 * max(min(float(wall_ms.max()), _TALL * ordinary), 1e-3)


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
