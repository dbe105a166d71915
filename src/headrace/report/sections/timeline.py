"""The timeline of steps."""

from __future__ import annotations

import numpy as np

from headrace.observe.whatif.tables import columns
from headrace.report.charts import chart
from headrace.report.figures.drawing import clock_of
from headrace.report.figures.timeline import (
    MOST_RANKS,
    steps_a_column,
    steps_above,
    timeline,
)
from headrace.report.material import Material
from headrace.report.section import Section, explained, note, section
from headrace.report.telling import counted, number

_ALWAYS = (
    "Each step stands where it happened; its height is how long it took, its colours what it did. "
    "Orange is time without data. Drag to zoom in, double-click to see all."
)


def timeline_section(material: Material) -> Section:
    """Return the section that shows every step over time."""
    figure = timeline(material.tables)
    if figure is None:
        return section(
            "timeline",
            "Steps over time",
            note("No step was recorded: a step is counted at each call of an optimizer's step()."),
        )
    return section(
        "timeline",
        "Steps over time",
        explained(_how_to_read(material)),
        chart("timeline", figure, "Phases of every step over time, a row for each rank"),
    )


def _how_to_read(material: Material) -> str:
    steps = columns(material.tables, "steps")
    told = [_ALWAYS]
    if (steps["kind"] == "eval").any():
        told.append("Behind grey shades the model was evaluated, not trained.")
    a_column = steps_a_column(steps)
    if a_column > 1:
        told.append(
            f"A column stands for up to {a_column:,} steps: of data wait, gradient sync and other "
            "it shows the longest, so that short stalls are seen; of the rest, the mean."
        )
    if clock_of(material.tables).is_cut:
        told.append("What was before the first and after the last step is left out at first.")
    above = steps_above(steps)
    if above:
        longest_ms = float(steps["wall_ns"].max() / 1e6)
        told.append(
            f"{counted(above, 'step')} reached above the top, the longest took "
            f"{number(longest_ms)} ms: double-click to see them whole."
        )
    ranks = len(np.unique(steps["rank"]))
    if ranks > MOST_RANKS:
        told.append(f"Shown are the {MOST_RANKS} of {ranks} ranks that waited longest for data.")
    return " ".join(told)
