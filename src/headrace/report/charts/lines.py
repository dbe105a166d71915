"""Lines over time: how fast a run was, what lay ready for it, and what its host did meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headrace.observe.whatif.tables import Columns, Floats, Tables, columns
from headrace.report.charts.base import (
    Chart,
    ChartSpan,
    Pooling,
    Span,
    pool_intervals,
    time_axis,
)

_MOST_POINTS = 400
_COLUMN_S = 0.5
_FEWEST_POINTS = 60
_MB = 1e6
_MOMENT_NS = 1000.0  # as floats, times of a host that is up for a year are that exact
_MEAN_AND_FEWEST: tuple[Pooling, Pooling] = ("mean", "min")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a chart."""

    name: str
    colour: str
    dash: tuple[int, ...] = ()  # lengths of dashes and gaps; empty: one line
    x: Floats
    y: Floats  # NaN where unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesChart(Chart):
    """Lines over each other; with `span` and `limits` x is seconds since recording began."""

    kind: ClassVar[str] = "lines"
    x_title: str
    y_title: str
    unit: str
    time: bool
    series: tuple[Line, ...]
    span: Span | None = None
    limits: Span | None = None
    first_span: Span | None = None


def samples_chart(tables: Tables, span: ChartSpan | None = None) -> LinesChart | None:
    """Return the samples a second of all ranks together; None where they were not counted."""
    span = _narrow(tables, span)
    steps = columns(tables, "steps")
    trained = steps.where(steps["kind"] == "train") if steps.count else steps
    if trained.count == 0 or (trained["samples"] < 0).any() or not trained["samples"].any():
        return None
    rate = sum(
        np.diff(_running_total(of_rank, of_rank["samples"], span.edges()))
        for of_rank in _by_rank(trained)
    ) / (np.diff(span.edges()) / 1e9)
    line = Line(name="samples/s", colour="#3b7dd8", x=_middles_s(span), y=np.asarray(rate))
    return _over_time(span, "speed", "samples/s", line)


def data_wait_chart(tables: Tables, span: ChartSpan | None = None) -> LinesChart | None:
    """Return the share of step time that waits for data, all ranks together; None without steps."""
    span = _narrow(tables, span)
    steps = columns(tables, "steps")
    if steps.count == 0:
        return None
    edges = span.edges()
    waited, passed = (
        sum(np.diff(_running_total(each, each[name], edges)) for each in _by_rank(steps))
        for name in ("data_wait_ns", "wall_ns")
    )
    known = np.asarray(passed) > 0
    share = np.where(known, 100.0 * np.asarray(waited) / np.where(known, passed, 1.0), np.nan)
    line = Line(name="data wait", colour="#e8590c", x=_middles_s(span), y=share)
    return _over_time(span, "share of step time", "%", line)


def ready_chart(tables: Tables, span: ChartSpan | None = None) -> LinesChart | None:
    """Return the batches that lay ready when a rank asked; None where that is not known."""
    span = _narrow(tables, span)
    fetches = columns(tables, "fetches")
    known = fetches.where((fetches["ready"] >= 0) & (fetches["ended"] == 0))
    if known.count == 0:
        return None
    asked = known["start_ns"].astype(np.float64)
    ready = known["ready"].astype(np.float64)
    x = _middles_s(span)
    mean, fewest = (
        _pooled(asked, asked + _MOMENT_NS, ready, span, how) for how in _MEAN_AND_FEWEST
    )  # fmt: skip
    lines = (
        Line(name="mean", colour="#2a9d8f", x=x, y=mean),
        Line(name="fewest", colour="#e8590c", dash=(2, 4), x=x, y=fewest),
    )
    return _over_time(span, "ready", "batches", *lines)


_MEMORY = (("used by the host", "memory_used_bytes", "#3b7dd8"),
           ("counted against the job's limit", "job_memory_bytes", "#e8590c"),
           ("shared", "shared_memory_bytes", "#2a9d8f"))  # fmt: skip
_TRAFFIC = (("read from disks", "disk_read_bytes_per_s", "#3b7dd8"),
            ("written to disks", "disk_write_bytes_per_s", "#9c5fd6"),
            ("received", "net_received_bytes_per_s", "#2a9d8f"),
            ("sent", "net_sent_bytes_per_s", "#e0a800"))  # fmt: skip


def memory_chart(tables: Tables, span: ChartSpan | None = None) -> LinesChart | None:
    """Return the memory in use on the host, the most in each column; None: not recorded."""
    return _system_chart(tables, span, _MEMORY, 1e9, "memory", "GB")


def traffic_chart(tables: Tables, span: ChartSpan | None = None) -> LinesChart | None:
    """Return what disks and network moved, the most in each column; None: not recorded."""
    return _system_chart(tables, span, _TRAFFIC, _MB, "traffic", "MB/s")


def _system_chart(
    tables: Tables,
    span: ChartSpan | None,
    wanted: tuple[tuple[str, str, str], ...],
    per_unit: float,
    y_title: str,
    unit: str,
) -> LinesChart | None:
    span = _narrow(tables, span)
    system = columns(tables, "system")
    if system.count == 0:
        return None
    order = np.argsort(system["t_ns"])
    end = system["t_ns"][order].astype(np.float64)
    start = np.append(end[0] - 1, end[:-1])  # a row describes the time before it
    lines = [
        Line(
            name=name,
            colour=colour,
            x=_middles_s(span),
            y=_pooled(start, end, system[column][order].astype(np.float64) / per_unit, span, "max"),
        )
        for name, column, colour in wanted
        if column in system and np.any(system[column] > 0)
    ]
    return _over_time(span, y_title, unit, *lines) if lines else None


def _narrow(tables: Tables, span: ChartSpan | None) -> ChartSpan:
    """Return a span in as many columns as lines need."""
    span = span if span is not None else ChartSpan.of(time_axis(tables))
    wanted = int((span.to_ns - span.from_ns) / 1e9 / _COLUMN_S)
    return span.in_columns(min(max(wanted, _FEWEST_POINTS), _MOST_POINTS, span.columns))


def _by_rank(steps: Columns) -> list[Columns]:
    ranks = [steps.having(rank=rank) for rank in np.unique(steps["rank"])]
    return [each.where(np.argsort(each["start_ns"], kind="stable")) for each in ranks]


def _running_total(steps: Columns, amounts: Floats, edges: Floats) -> Floats:
    """Return how much of a rank's amounts, spread evenly over its steps, lies before each edge."""
    begins = steps["start_ns"].astype(np.float64)
    ends = np.maximum(begins + steps["wall_ns"], begins)
    total = np.cumsum(np.maximum(amounts.astype(np.float64), 0.0))
    moments = np.column_stack((begins, ends)).ravel()
    values = np.column_stack((np.append(0.0, total[:-1]), total)).ravel()
    return np.asarray(np.interp(edges, np.maximum.accumulate(moments), values))


def _pooled(start: Floats, end: Floats, values: Floats, span: ChartSpan, how: Pooling) -> Floats:
    return pool_intervals(start, end, np.where(values < 0, np.nan, values), span.edges(), how)


def _middles_s(span: ChartSpan) -> Floats:
    edges = span.edges()
    return span.axis.read((edges[1:] + edges[:-1]) / 2).round(6)


def _over_time(span: ChartSpan, y_title: str, unit: str, *lines: Line) -> LinesChart:
    return LinesChart(
        x_title="time since recording began",
        y_title=y_title,
        unit=unit,
        time=True,
        series=lines,
        span=span.seconds,
        limits=span.axis.limits,
        first_span=span.axis.first_span,
    )
