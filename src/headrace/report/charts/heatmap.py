"""The heatmap: how busy every rank, GPU, worker and core was over time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.observe.whatif.hosts import of_host, rank_hosts
from headrace.observe.whatif.tables import Columns, Floats, Tables, columns
from headrace.records.schema import LAUNCHER_HOST
from headrace.report.charts.base import (
    Chart,
    ChartSpan,
    IntervalColumns,
    Pooling,
    Span,
    TimeAxis,
    busy_shares,
    pool_intervals,
    sample_starts,
    time_axis,
)
from headrace.report.charts.long_runs import totals_of

UNKNOWN_PERCENT = 255
_FEWEST_COLUMNS = 300
_COLUMN_S = 0.1
_MAX_ROWS = 400
_GPU = re.compile(r"gpu_(\d+)_utilisation_percent")
_CORE = re.compile(r"core_(\d+)_percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatmapBand:
    """Rows of one kind: their names, and how busy each was, a value a column."""

    title: str  # the kind; of too many rows, also which are shown
    host: str  # with its instance group; empty where the run has only one
    rows: tuple[str, ...]
    values: NDArray[np.uint8]  # in percent; UNKNOWN_PERCENT where unknown; [rows, columns]
    pooled: Pooling  # how columns are merged where there are more of them than pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatmapChart(Chart):
    """How busy everything was over a span of time, in columns of equal length.

    Attributes:
        began_unix_s: Time 0 of the spans, in seconds since 1970; None: not recorded.
    """

    kind: ClassVar[str] = "heatmap"
    span: Span
    limits: Span
    first_span: Span
    began_unix_s: float | None
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
        began_unix_s=began_unix_s(tables, span.axis),
        columns=count,
        bands=bands,
    )


def began_unix_s(tables: Tables, axis: TimeAxis) -> float | None:
    """Return when an axis of time begins, in seconds since 1970; None: not recorded."""
    offsets_ns = columns(tables, "hosts")["unix_offset_ns"]
    is_known = len(offsets_ns) > 0 and int(offsets_ns[0]) != 0
    return (axis.began_ns + int(offsets_ns[0])) / 1e9 if is_known else None


def heatmap_kinds(tables: Tables) -> list[str]:
    """Return the kinds of rows that a heatmap has, in order."""
    system = columns(tables, "system")
    batches, totals = columns(tables, "batches"), totals_of(tables, "batches")
    has_workers = any((rows["worker"] >= 0).any() for rows in (batches, totals) if rows is not None)
    has_steps = columns(tables, "steps").count > 0 or totals_of(tables, "steps") is not None
    there = {
        "ranks": has_steps,
        "GPUs": system.count > 0 and any(map(_GPU.fullmatch, system)),
        "workers": has_workers,
        "cores": system.count > 0 and any(map(_CORE.fullmatch, system)),
    }
    return [kind for kind, is_there in there.items() if is_there]


def _bands(tables: Tables, edges: Floats) -> tuple[HeatmapBand, ...]:
    """Return the rows of the heatmap, by host where there are several, with the kinds in order."""
    system, groups = columns(tables, "system"), _hosts(tables)
    ranks = dict(_ranks(tables, edges))
    workers = list(_workers(tables, edges))
    host_of = rank_hosts(tables)
    bands = []
    for number, name in groups.items():
        elsewhere = {rank for rank, host in host_of.items() if name and host != number}
        here = [(f"rank {rank}", row) for rank, row in ranks.items() if rank not in elsewhere]
        # A rank that has not ended its first step has workers, too.
        their = [(text, row) for rank, text, row in workers if rank not in elsewhere]
        ticks = _Ticks(of_host(system, number), edges, is_only_host=not name)
        kinds: tuple[tuple[str, Pooling, Iterable[tuple[str, Floats]]], ...] = (
            ("ranks", "min", here),
            ("GPUs", "min", ticks.rows(_GPU, "GPU", "min")),
            ("workers", "mean", their),
            ("cores", "mean", ticks.rows(_CORE, "core", "mean")),
        )
        bands += [band for kind in kinds if (band := _band(*kind, host=name)) is not None]
    return tuple(bands)


def _hosts(tables: Tables) -> dict[int, str]:
    """Return the name of each host by its number; one without a name where it is the only one."""
    hosts = columns(tables, "hosts")
    numbers = np.maximum(hosts["number"], 0).tolist()
    if len(set(numbers)) < 2:
        return {LAUNCHER_HOST: ""}
    names = [
        f"{group} · {host}" if group else str(host)
        for group, host in zip(hosts["instance_group"], hosts["host"], strict=True)
    ]
    counts = Counter(names)
    names = [  # containers may all have one host name
        f"{name} ({number})" if counts[name] > 1 else name
        for name, number in zip(names, numbers, strict=True)
    ]
    return dict(sorted(zip(numbers, names, strict=True), key=lambda each: (each[1], each[0])))


def _band(
    title: str, pooled: Pooling, rows: Iterable[tuple[str, Floats]], *, host: str
) -> HeatmapBand | None:
    found = list(rows)
    if not found:
        return None
    shown = found[:_MAX_ROWS]
    if len(found) > _MAX_ROWS:
        title += f", the first {_MAX_ROWS} of {len(found):,}"
    shares = np.array([values for _, values in shown])
    percent = np.where(np.isnan(shares), UNKNOWN_PERCENT, np.rint(shares * 100.0))
    return HeatmapBand(
        title=title,
        host=host,
        rows=tuple(name for name, _ in shown),
        values=percent.astype(np.uint8),
        pooled=pooled,
    )


def _ranks(tables: Tables, edges: Floats) -> Iterable[tuple[int, Floats]]:
    """Yield each rank's share of its steps without data wait, the lowest in a column."""
    steps = columns(tables, "steps").split("rank")
    totals = _split(totals_of(tables, "steps"), "rank")
    none = np.empty(0)
    for key in sorted(steps.keys() | totals.keys()):
        start, end, waited = none, none, none
        if key in steps:
            rows = steps[key]
            start, wall = rows["start_ns"].astype(np.float64), rows["wall_ns"].astype(np.float64)
            end, waited = start + wall, rows["data_wait_ns"] / np.maximum(wall, 1.0)
        if key in totals:
            rows = totals[key]
            start = np.concatenate((start, rows["start_ns"]))
            end = np.concatenate((end, rows["end_ns"]))
            waited = np.concatenate((waited, rows["data_wait_share"]))
        at_work = 1.0 - np.clip(waited, 0.0, 1.0)
        yield key[0], pool_intervals(start, end, at_work, edges, "min")


def _split(totals: Columns | None, *by: str) -> dict[tuple[int, ...], Columns]:
    return {} if totals is None else totals.split(*by)


_WORKER_KEY = ("rank", "loader", "worker")


def _workers(tables: Tables, edges: Floats) -> Iterable[tuple[int, str, Floats]]:
    """Yield the rank, name and busy share of each worker."""
    batches = columns(tables, "batches").split(*_WORKER_KEY)
    totals = _split(totals_of(tables, "batches"), *_WORKER_KEY)
    known = sorted(key for key in batches.keys() | totals.keys() if key[2] >= 0)
    several_ranks = len({rank for rank, _, _ in known}) > 1
    several_loaders = len({loader for _, loader, _ in known}) > 1
    unknown = np.full(len(edges) - 1, np.nan)
    for key in known:
        rank, loader, worker = key
        busy = _busy(batches[key], edges) if key in batches else unknown
        if key in totals:
            busy = np.where(np.isnan(busy), _busy_in_totals(totals[key], edges), busy)
        name = f"worker {worker}"
        name = f"loader {loader} {name}" if several_loaders else name
        yield rank, f"rank {rank} {name}" if several_ranks else name, busy


def _busy(batches: Columns, edges: Floats) -> Floats:
    """Return in which share of each column a worker made batches; NaN while it was not there."""
    start = batches["start_ns"].astype(np.float64)
    end = start + batches["wall_ns"]
    # Workers may restart in each epoch: in between there is no worker, rather than an idle one.
    there = start - np.maximum(batches["idle_ns"], 0) - np.maximum(batches["send_ns"], 0)
    alive = pool_intervals(there, end, np.ones(len(end)), edges, "max")
    return np.where(np.isnan(alive), np.nan, busy_shares(start, end, edges))


def _busy_in_totals(totals: Columns, edges: Floats) -> Floats:
    start, end = totals["start_ns"].astype(np.float64), totals["end_ns"].astype(np.float64)
    shares = np.clip(totals["wall_ns"] / np.maximum(end - start, 1.0), 0.0, 1.0)
    return pool_intervals(start, end, shares, edges, "mean")


class _Ticks:
    """The samples of one host, in columns of time."""

    def __init__(self, system: Columns, edges: Floats, *, is_only_host: bool) -> None:
        self._system = system
        self._is_only_host = is_only_host  # else what it lacks may be another host's
        self._order = np.argsort(system["t_ns"])
        end = system["t_ns"][self._order].astype(np.float64)
        self._columns = IntervalColumns(sample_starts(end, edges[0]), end, edges)

    def rows(
        self, pattern: re.Pattern[str], noun: str, how: Pooling
    ) -> Iterable[tuple[str, Floats]]:
        if self._system.count == 0:
            return
        names = [
            (int(match[1]), name) for name in self._system if (match := pattern.fullmatch(name))
        ]
        for number, name in sorted(names):
            percent = self._system[name][self._order].astype(np.float64)
            if np.isfinite(percent).any() or self._is_only_host:
                values = np.clip(percent / 100.0, 0.0, 1.0)
                yield f"{noun} {number}", self._columns.pooled(values, how)
