"""The mean step split into phases: of each rank of a run, or of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headrace.observe.whatif.tables import Floats, Tables
from headrace.observe.whatif.train_steps import DeviceSteps, TrainSteps, read_steps
from headrace.records.schema import PHASES
from headrace.report.charts.base import PHASE_COLOURS, Chart
from headrace.report.formatting import phase_name

MOST_RANKS = 64
_LEAST_LABELLED_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPart:
    """One part of each of some stacked bars."""

    name: str
    colour: str
    values: Floats  # one a bar
    labels: tuple[str, ...]  # one a bar, shown in it where there is room


@dataclass(frozen=True, slots=True, kw_only=True)
class BarsChart(Chart):
    """Stacked horizontal bars."""

    kind: ClassVar[str] = "bars"
    x_title: str
    unit: str
    rows: tuple[str, ...]
    parts: tuple[BarPart, ...]


def phases_chart(tables: Tables) -> BarsChart | None:
    """Return the mean training step of each rank, split into phases; None without such steps.

    Without an optimizer, batches are steps. Warm-up steps do not count. If phases by the
    accelerator's own clock were recorded, a rank has a second bar with these. Of many ranks the
    first have bars.
    """
    steps = read_steps(tables, any_kind=True)
    if not steps.ranks:
        return None
    bars: dict[str, TrainSteps | DeviceSteps] = {}
    for rank in steps.ranks[:MOST_RANKS]:
        own = bars[f"rank {rank}"] = steps.of(steps.rows["rank"] == rank)
        if own.device is not None:
            bars[f"rank {rank}, accelerator"] = own.device
    is_cut = len(steps.ranks) > MOST_RANKS
    return phase_bars(
        list(bars),
        [float(bar.wall_ns.mean() / 1e6) for bar in bars.values()],
        {
            phase: [float(bar.phase_ns(phase).mean() / 1e6) for bar in bars.values()]
            for phase in PHASES
        },
        of=f", the first {MOST_RANKS} of {len(steps.ranks):,} ranks" if is_cut else "",
    )


def phase_bars(
    names: Sequence[str],
    walls_ms: Sequence[float],
    spent_ms: Mapping[str, Sequence[float]],
    *,
    of: str = "",
) -> BarsChart:
    """Return the mean step of each name, split into phases that take time.

    `walls_ms` has one of each name, `spent_ms` by phase one of each name. `of` ends the axis's
    title.
    """
    return BarsChart(
        x_title=f"mean time of a step (ms){of}",
        unit="ms",
        rows=tuple(names),
        parts=tuple(
            BarPart(
                name=phase_name(phase),
                colour=PHASE_COLOURS[phase],
                values=np.array([round(value, 3) for value in spent_ms[phase]], np.float64),
                labels=tuple(
                    _share_label(value / max(wall, 1e-9))
                    for value, wall in zip(spent_ms[phase], walls_ms, strict=True)
                ),
            )
            for phase in PHASES
            if any(spent_ms[phase])
        ),
    )


def _share_label(share: float) -> str:
    return f"{share:.0%}" if share >= _LEAST_LABELLED_SHARE else ""
