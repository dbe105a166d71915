"""Lines over time: how fast a run was, what lay ready for it, and what its host did meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headrace.observe.whatif.tables import Columns, Floats, Ints, Tables, columns
from headrace.records.system_table import HOST_COLUMN
from headrace.report.charts.base import (
    Chart,
    ChartSpan,
    Pooling,
    Span,
    pool_intervals,
    sample_starts,
    time_axis,
)
from headrace.report.charts.long_runs import totals_of

_MOST_POINTS = 400
_COLUMN_S = 0.5
_FEWEST_POINTS = 60
_MB = 1e6
_MOMENT_NS = 1000.0  # as floats, times of a host that is up for a year are that exact


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
    trained = [rows.where(rows["kind"] == "train") for rows in _steps(tables)]
    samples = np.concatenate([rows["samples"] for rows in trained]) if trained else np.zeros(0)
    if len(samples) == 0 or (samples < 0).any() or not samples.any():
        return None
    rate = _total(trained, "samples", span.edges()) / (np.diff(span.edges()) / 1e9)
    line = Line(name="samples/s", colour="#3b7dd8", x=_middles_s(span), y=rate)
    return _over_time(span, "speed", "samples/s", line)


def data_wait_chart(tables: Tables, span: ChartSpan | None = None) -> LinesChart | None:
    """Return the share of step time that waits for data, all ranks together; None without steps."""
    span = _narrow(tables, span)
    steps = _steps(tables)
    if not steps:
        return None
    waited, passed = (_total(steps, name, span.edges()) for name in ("data_wait_ns", "wall_ns"))
    known = passed > 0
    share = np.where(known, 100.0 * waited / np.where(known, passed, 1.0), np.nan)
    line = Line(name="data wait", colour="#e8590c", x=_middles_s(span), y=share)
    return _over_time(span, "share of step time", "%", line)


def ready_chart(tables: Tables, span: ChartSpan | None = None) -> LinesChart | None:
    """Return the batches that lay ready when a rank asked; None where that is not known."""
    span = _narrow(tables, span)
    fetches, totals = columns(tables, "fetches"), totals_of(tables, "fetches")
    known = fetches.where((fetches["ready"] >= 0) & (fetches["ended"] == 0))
    begin = known["start_ns"].astype(np.float64)
    end, mean = begin + _MOMENT_NS, known["ready"].astype(np.float64)
    fewest = mean
    if totals is not None:
        totals = totals.where(totals["known"] > 0)
        begin = np.concatenate((begin, totals["start_ns"]))
        end = np.concatenate((end, totals["end_ns"]))
        mean = np.concatenate((mean, totals["ready"] / np.maximum(totals["known"], 1)))
        fewest = np.concatenate((fewest, totals["fewest_ready"].astype(np.float64)))
    if len(begin) == 0:
        return None
    x = _middles_s(span)
    lines = (
        Line(name="mean", colour="#2a9d8f", x=x, y=_pooled(begin, end, mean, span, "mean")),
        Line(
            name="fewest", colour="#e8590c", dash=(2, 4), x=x,
            y=_pooled(begin, end, fewest, span, "min"),
        ),
    )  # fmt: skip
    return _over_time(span, "ready", "batches", *lines)


_MEMORY = (("used by all processes", "memory_used_bytes", "#3b7dd8"),
           ("counted against the job's limit", "job_memory_bytes", "#e8590c"),
           ("shared", "shared_memory_bytes", "#2a9d8f"))  # fmt: skip
_TRAFFIC = (("read from disks", "disk_read_bytes_per_s", "#3b7dd8"),
            ("written to disks", "disk_write_bytes_per_s", "#9c5fd6"),
            ("received", "net_received_bytes_per_s", "#2a9d8f"),
            ("sent", "net_sent_bytes_per_s", "#e0a800"))  # fmt: skip


def memory_chart(tables: Tables, span: ChartSpan | None = None) -> LinesChart | None:
    """Return the memory in use on all hosts, the most in each column; None: not recorded."""
    return _system_chart(tables, span, _MEMORY, 1e9, "memory", "GB")


def traffic_chart(tables: Tables, span: ChartSpan | None = None) -> LinesChart | None:
    """Return what disks and network of all hosts moved, the most in each column; or None."""
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
    hosts = _by_host(system)
    lines = []
    for name, column, colour in wanted:
        if column not in system or not np.any(system[column] > 0):
            continue
        of_hosts = np.array([_sampled(rows, column, span) / per_unit for rows in hosts])
        known = np.isfinite(of_hosts).any(axis=0)
        y = np.where(known, np.nansum(of_hosts, axis=0), np.nan)
        lines.append(Line(name=name, colour=colour, x=_middles_s(span), y=y))
    return _over_time(span, y_title, unit, *lines) if lines else None


def _by_host(system: Columns) -> list[Columns]:
    if HOST_COLUMN not in system:
        return [system]
    return [system.having(**{HOST_COLUMN: number}) for number in np.unique(system[HOST_COLUMN])]


def _sampled(system: Columns, column: str, span: ChartSpan) -> Floats:
    """Return the most of a column of one host's samples in each column of time."""
    order = np.argsort(system["t_ns"])
    end = system["t_ns"][order].astype(np.float64)
    start = sample_starts(end, float(span.from_ns))
    return _pooled(start, end, system[column][order].astype(np.float64), span, "max")


def _narrow(tables: Tables, span: ChartSpan | None) -> ChartSpan:
    """Return a span in as many columns as lines need."""
    span = span if span is not None else ChartSpan.of(time_axis(tables))
    wanted = int((span.to_ns - span.from_ns) / 1e9 / _COLUMN_S)
    return span.in_columns(min(max(wanted, _FEWEST_POINTS), _MOST_POINTS, span.columns))


def _steps(tables: Tables) -> list[Columns]:
    """Return the rows of `steps`, and the totals that stand for others, as far as there are any."""
    found = columns(tables, "steps"), totals_of(tables, "steps")
    return [rows for rows in found if rows is not None and rows.count]


def _total(parts: Sequence[Columns], name: str, edges: Floats) -> Floats:
    """Return how much of an amount, spread evenly over each row, each column has of all ranks."""
    total = np.zeros(len(edges) - 1)
    ranks = np.unique(np.concatenate([rows["rank"] for rows in parts]))
    for rank in ranks:
        of_rank = [rows.having(rank=rank) for rows in parts]
        begins = np.concatenate([rows["start_ns"] for rows in of_rank])
        ends = np.concatenate([
            rows["end_ns"] if "end_ns" in rows else rows["start_ns"] + rows["wall_ns"]
            for rows in of_rank
        ])  # fmt: skip
        amounts = np.concatenate([rows[name] for rows in of_rank])
        order = np.argsort(begins, kind="stable")
        total += np.diff(_running_total(begins[order], ends[order], amounts[order], edges))
    return total


def _running_total(begins: Ints, ends: Ints, amounts: Ints, edges: Floats) -> Floats:
    """Return how much of amounts, spread evenly over their intervals, lies before each edge."""
    total = np.cumsum(np.maximum(amounts.astype(np.float64), 0.0))
    moments = np.column_stack((begins, np.maximum(ends, begins))).ravel().astype(np.float64)
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
