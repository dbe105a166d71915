"""The histogram of data waits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.observe.whatif.measured_pipeline import main_loader
from headrace.observe.whatif.tables import Floats, Tables, columns, row_count
from headrace.observe.whatif.train_steps import read_steps
from headrace.report.figures.base import PHASE_COLOURS, Figure, figure

_BINS_A_DECADE = 8
_SHORTEST_MS = 0.01


def read_waits_ms(tables: Tables) -> Floats | None:
    """Return the waits for batches of the loader that feeds training, ascending, if any."""
    fetches = columns(tables, "fetches")
    if row_count(fetches) == 0:
        return None
    loader = main_loader(read_steps(tables))
    of_training = (fetches["ended"] == 0) & ((fetches["loader"] == loader) | (loader < 0))
    wait_ms = np.sort(fetches["wait_ns"][of_training].astype(np.float64) / 1e6)
    return wait_ms if len(wait_ms) else None


def data_waits(tables: Tables) -> Figure | None:
    """Return a histogram of waits for a batch by their length; None if none were recorded."""
    waits_ms = read_waits_ms(tables)
    if waits_ms is None:
        return None
    shown = np.maximum(waits_ms, _SHORTEST_MS)
    low, high = int(np.floor(np.log10(shown[0]))), int(np.ceil(np.log10(shown[-1]) + 1e-9))
    edges = np.logspace(low, high, max((high - low) * _BINS_A_DECADE, 1) + 1)
    counts, _ = np.histogram(shown, edges)
    waited, _ = np.histogram(shown, edges, weights=waits_ms)
    hover_texts = [
        f"{left:.3g} to {right:.3g} ms: {count:,} waits, {part / 1e3:.3g} s together"
        for (left, right), count, part in zip(pairwise(edges), counts, waited, strict=True)
    ]
    decades = range(high - low + 1)
    return figure(
        [
            _bars("of all waits", counts, PHASE_COLOURS["other"], hover_texts),
            _bars("of all time waited", waited, PHASE_COLOURS["data_wait"], hover_texts),
        ],
        {
            "height": 300,
            "xaxis": {
                "title": {"text": "how long a rank waited for a batch (ms, log scale)"},
                "range": [0, len(counts)],
                "tickvals": [decade * _BINS_A_DECADE for decade in decades],
                "ticktext": [_plain(10.0 ** (low + decade)) for decade in decades],
                "zeroline": False,
            },
            "yaxis": {"title": {"text": "share"}, "ticksuffix": "%", "rangemode": "tozero"},
            "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"},
            "margin": {"l": 64, "r": 32, "t": 32, "b": 44},
            "bargap": 0.15,
            "bargroupgap": 0.0,
        },
    )


def _bars(name: str, amounts: NDArray[Any], colour: str, hover_texts: list[str]) -> dict[str, Any]:
    shares = 100.0 * amounts / max(float(amounts.sum()), 1e-12)
    return {
        "type": "bar", "name": name, "x": np.arange(len(amounts)) + 0.5, "y": shares.round(2),
        "customdata": hover_texts, "marker": {"color": colour, "line": {"width": 0}},
        "hovertemplate": f"%{{customdata}}<br>%{{y:.1f}}% {name}<extra></extra>",
    }  # fmt: skip


def _plain(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".") if value < 10 else f"{value:,.0f}"
