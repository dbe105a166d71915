"""The heatmap: how busy every rank, GPU, worker and core was over time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.observe.whatif.tables import Columns, Floats, Tables, columns
from headrace.report.charts.base import (
    Chart,
    ChartSpan,
    Pooling,
    Span,
    busy_shares,
    pool_intervals,
    time_axis,
)

UNKNOWN_PERCENT = 255
_FEWEST_COLUMNS = 300
_COLUMN_S = 0.1
_MAX_ROWS = 400
_GPU = re.compile(r"gpu_(\d+)_utilisation_percent")
_CORE = re.compile(r"core_(\d+)_percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatmapBand:
    """Rows of one kind: their names, and how busy each was, a value a column."""

    title: str
    rows: tuple[str, ...]
    values: NDArray[np.uint8]  # in percent; UNKNOWN_PERCENT where unknown; [rows, columns]
    pooled: Pooling  # how columns are merged where there are more of them than pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatmapChart(Chart):
    """How busy everything was over a span of time, in columns of equal length."""

    kind: ClassVar[str] = "heatmap"
    span: Span
    limits: Span
    first_span: Span
    columns: int
    bands: tuple[HeatmapBand, ...]


def heatmap_chart(tables: Tables, span: ChartSpan | None = None) -> HeatmapChart | None:
    """Return how busy every rank, GPU, worker and core was over a span; None: not recorded."""
    span = span if span is not None else ChartSpan.of(time_axis(tables))
    length_s = (span.to_ns - span.from_ns) / 1e9
    count = min(max(int(length_s / _COLUMN_S), _FEWEST_COLUMNS), span.columns)
    span = span.in_columns(count)
    bands = _bands(tables, span.edges())
    if not bands:
        return None
    return HeatmapChart(
        span=span.seconds,
        limits=span.axis.limits,
        first_span=span.axis.first_span,
        columns=count,
        bands=bands,
    )


def _bands(tables: Tables, edges: Floats) -> tuple[HeatmapBand, ...]:
    """Return the rows of the heatmap, with the kinds in the order shown."""
    system = columns(tables, "system")
    kinds: tuple[tuple[str, Pooling, Iterable[tuple[str, Floats]]], ...] = (
        ("ranks", "min", _ranks(columns(tables, "steps"), edges)),
        ("GPUs", "min", _ticks(system, edges, _GPU, "GPU")),
        ("workers", "mean", _workers(columns(tables, "batches"), edges)),
        ("cores", "mean", _ticks(system, edges, _CORE, "core")),
    )
    return tuple(band for kind in kinds if (band := _band(*kind)) is not None)


def _band(title: str, pooled: Pooling, rows: Iterable[tuple[str, Floats]]) -> HeatmapBand | None:
    shown = list(islice(rows, _MAX_ROWS))
    if not shown:
        return None
    shares = np.array([values for _, values in shown])
    percent = np.where(np.isnan(shares), UNKNOWN_PERCENT, np.rint(shares * 100.0))
    return HeatmapBand(
        title=title,
        rows=tuple(name for name, _ in shown),
        values=percent.astype(np.uint8),
        pooled=pooled,
    )


def _ranks(steps: Columns, edges: Floats) -> Iterable[tuple[str, Floats]]:
    """Yield each rank's share of its steps without data wait, the lowest in a column."""
    for rank in np.unique(steps["rank"]):
        of_rank = steps.having(rank=rank)
        start, wall = of_rank["start_ns"].astype(np.float64), of_rank["wall_ns"].astype(np.float64)
        at_work = 1.0 - np.clip(of_rank["data_wait_ns"] / np.maximum(wall, 1.0), 0.0, 1.0)
        yield f"rank {rank}", pool_intervals(start, start + wall, at_work, edges, "min")


def _workers(batches: Columns, edges: Floats) -> Iterable[tuple[str, Floats]]:
    if batches.count == 0:
        return
    known = np.unique(
        np.column_stack((batches["rank"], batches["loader"], batches["worker"])), axis=0
    )
    several_ranks = len(np.unique(known[:, 0])) > 1
    several_loaders = len(np.unique(known[known[:, 2] >= 0][:, 1])) > 1
    for rank, loader, worker in known[known[:, 2] >= 0]:
        of_worker = batches.having(rank=rank, loader=loader, worker=worker)
        start = of_worker["start_ns"].astype(np.float64)
        end = start + of_worker["wall_ns"]
        # Workers may restart in each epoch: in between there is no worker, rather than an idle one.
        there = start - np.maximum(of_worker["idle_ns"], 0) - np.maximum(of_worker["send_ns"], 0)
        alive = pool_intervals(there, end, np.ones(len(end)), edges, "max")
        name = f"worker {worker}"
        name = f"loader {loader} {name}" if several_loaders else name
        name = f"rank {rank} {name}" if several_ranks else name
        yield name, np.where(np.isnan(alive), np.nan, busy_shares(start, end, edges))


def _ticks(
    system: Columns, edges: Floats, pattern: re.Pattern[str], noun: str
) -> Iterable[tuple[str, Floats]]:
    names = [(int(match[1]), name) for name in system if (match := pattern.fullmatch(name))]
    if system.count == 0 or not names:
        return
    order = np.argsort(system["t_ns"])
    end = system["t_ns"][order].astype(np.float64)
    start = np.append(min(edges[0], end[0] - 1), end[:-1])  # a row describes the time before it
    for number, name in sorted(names):
        values = np.clip(system[name][order].astype(np.float64) / 100.0, 0.0, 1.0)
        how: Pooling = "min" if noun == "GPU" else "mean"
        yield f"{noun} {number}", pool_intervals(start, end, values, edges, how)
