"""The histogram of waits for a batch: how many there were of each length, and what they took."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.observe.whatif.loaders_in_turn import main_loader
from headrace.observe.whatif.tables import Floats, Tables, columns
from headrace.observe.whatif.train_steps import read_steps
from headrace.report.charts.base import PHASE_COLOURS, Chart
from headrace.report.formatting import format_number

_BINS_A_DECADE = 8
_SHORTEST_MS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTick:
    """A mark on an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSeries:
    """Bars of one colour, one a column: bar i lies between i and i + 1."""

    name: str
    colour: str
    values: Floats
    texts: tuple[str, ...]  # what the columns are, for who points at them


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsChart(Chart):
    """Vertical bars side by side."""

    kind: ClassVar[str] = "columns"
    x_title: str
    y_title: str
    unit: str
    ticks: tuple[AxisTick, ...]
    series: tuple[ColumnSeries, ...]


def read_waits_ms(tables: Tables) -> Floats | None:
    """Return the waits for batches of the loader that feeds training, ascending, if any."""
    fetches = columns(tables, "fetches")
    loader = main_loader(read_steps(tables))
    of_training = (fetches["ended"] == 0) & ((fetches["loader"] == loader) | (loader < 0))
    wait_ms = np.sort(fetches["wait_ns"][of_training].astype(np.float64) / 1e6)
    return wait_ms if len(wait_ms) else None


def waits_chart(tables: Tables) -> ColumnsChart | None:
    """Return a histogram of waits for a batch by their length; None if none were recorded."""
    waits_ms = read_waits_ms(tables)
    if waits_ms is None:
        return None
    shown = np.maximum(waits_ms, _SHORTEST_MS)
    low, high = int(np.floor(np.log10(shown[0]))), int(np.ceil(np.log10(shown[-1]) + 1e-9))
    edges = np.logspace(low, high, max((high - low) * _BINS_A_DECADE, 1) + 1)
    counts, _ = np.histogram(shown, edges)
    waited, _ = np.histogram(shown, edges, weights=waits_ms)
    texts = tuple(
        f"{format_number(left)} to {format_number(right)} ms: {count:,} waits, "
        f"{format_number(part / 1e3)} s together"
        for (left, right), count, part in zip(pairwise(edges), counts, waited, strict=True)
    )
    return ColumnsChart(
        x_title="how long a rank waited for a batch (ms, log scale)",
        y_title="share",
        unit="%",
        ticks=tuple(
            AxisTick(at=float(decade * _BINS_A_DECADE), text=_plain(10.0 ** (low + decade)))
            for decade in range(high - low + 1)
        ),
        series=(
            _shares("of all waits", counts, PHASE_COLOURS["other"], texts),
            _shares("of all time waited", waited, PHASE_COLOURS["data_wait"], texts),
        ),
    )


def _shares(
    name: str, amounts: NDArray[np.generic], colour: str, texts: tuple[str, ...]
) -> ColumnSeries:
    shares = 100.0 * np.asarray(amounts, np.float64) / max(float(np.sum(amounts)), 1e-12)
    return ColumnSeries(name=name, colour=colour, values=shares.round(2), texts=texts)


def _plain(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".") if value < 10 else f"{value:,.0f}"
