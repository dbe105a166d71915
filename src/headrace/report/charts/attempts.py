"""A run's attempts on one axis of time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.units import format_seconds
from headrace.records.run_folder import Attempt, Outcome
from headrace.report.charts.phases import BarPart, BarsChart

_COLOURS: dict[Outcome, str] = {
    "succeeded": "#2a9d8f",
    "failed": "#d6336c",
    "stopped": "#e0a800",
    "killed": "#9c5fd6",
    "going on": "#3b7dd8",
    "unknown": "#8a8f98",
}
_NOTHING = "#00000000"


def attempts_chart(
    attempts: Sequence[Attempt], outcomes: Sequence[Outcome], seen_s: float
) -> BarsChart:
    """Return a bar for each attempt, from its begin to its end, by how it is doing.

    That of one without an end is the begin of the next one; of the last one it is `seen_s`, until
    when it is known to have gone on, in seconds since 1970.
    """
    first_s = attempts[0].started_s
    # A clock that was set back would have an attempt begin before the first.
    began_s = np.maximum([each.started_s - first_s for each in attempts], 0.0)
    next_s = [*(each.started_s for each in attempts[1:]), seen_s]
    ends_s = [
        next_s[place] if each.ended_s is None else each.ended_s
        for place, each in enumerate(attempts)
    ]
    lasted_s = np.maximum(np.array(ends_s) - first_s - began_s, 0.0)
    parts = [BarPart(name="", colour=_NOTHING, values=began_s, labels=("",) * len(attempts))]
    for outcome, colour in _COLOURS.items():
        if outcome in outcomes:
            is_so = np.array([each == outcome for each in outcomes])
            parts.append(
                BarPart(
                    name=outcome,
                    colour=colour,
                    values=np.where(is_so, lasted_s, 0.0),
                    labels=tuple(
                        format_seconds(lasted) if so else ""
                        for lasted, so in zip(lasted_s.tolist(), is_so, strict=True)
                    ),
                )
            )
    return BarsChart(
        x_title="time since the first attempt began (s)",
        unit="s",
        rows=tuple(f"attempt {each.number}" for each in attempts),
        parts=tuple(parts),
    )
