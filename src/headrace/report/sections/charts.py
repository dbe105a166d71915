"""The sections with charts: steps over time, the heatmap, waits for data, the flame views."""

from __future__ import annotations

import numpy as np

from headrace.observe.whatif.tables import Floats, columns
from headrace.report.figures.base import time_axis
from headrace.report.figures.flame import LIBRARY_COLOUR, USER_COLOUR, ProcessKind, flame
from headrace.report.figures.heatmap import heatmap
from headrace.report.figures.step_phases import (
    MAX_TIMELINE_RANKS,
    data_waits,
    read_waits_ms,
    steps_a_column,
    steps_above,
    timeline,
)
from headrace.report.formatting import format_count, format_number, format_share
from headrace.report.markup import (
    Html,
    Section,
    chart,
    element,
    explanation,
    join_html,
    note,
    section,
)
from headrace.report.page_data import PageData


def timeline_section(data: PageData) -> Section:
    """Return the section with every step over time."""
    figure, title = timeline(data.tables), "Steps over time"
    if figure is None:
        why = "No step was recorded: a step is counted at each call of an optimizer's step()."
        return section("timeline", title, note(why))
    return section(
        "timeline",
        title,
        explanation(_timeline_explanation(data)),
        chart("timeline", figure, "Phases of every step over time, a row for each rank"),
    )


def _timeline_explanation(data: PageData) -> str:
    steps = columns(data.tables, "steps")
    shown = "Each step stands where it happened; its height is how long it took, its colours what"
    sentences = [f"{shown} it did. Orange is time without data."]
    sentences.append("Drag to zoom in, double-click to see all.")
    if (steps["kind"] == "eval").any():
        sentences.append("Behind grey shades the model was evaluated, not trained.")
    a_column = steps_a_column(steps)
    if a_column > 1:
        sentences.append(
            f"A column stands for up to {a_column:,} steps: of data wait, gradient sync and other "
            "it shows the longest, so that short stalls are seen; of the rest, the mean."
        )
    if time_axis(data.tables).is_cut:
        sentences.append("What was before the first and after the last step is left out at first.")
    above = steps_above(steps)
    if above:
        longest_ms = float(steps["wall_ns"].max() / 1e6)
        sentences.append(
            f"{format_count(above, 'step')} reached above the top, the longest took "
            f"{format_number(longest_ms)} ms: double-click to see them whole."
        )
    ranks = len(np.unique(steps["rank"]))
    if ranks > MAX_TIMELINE_RANKS:
        sentences.append(
            f"Shown are the {MAX_TIMELINE_RANKS} of {ranks} ranks that waited longest for data."
        )
    return " ".join(sentences)


_HEATMAP_MEANINGS = {
    "ranks": "a rank (a training process) is busy when it does not wait for data: of each moment, "
    "its worst step is shown",
    "GPUs": "a GPU is busy while anything runs on it: of each moment, the lowest value is shown",
    "workers": "a worker (a process that prepares data) is busy while it makes a batch",
    "cores": "a core (of the CPU) is busy with anything, also with other programs",
}


def heatmap_section(data: PageData) -> Section:
    """Return the section with the heatmap."""
    figure = heatmap(data.tables)
    title = "How busy everything was"
    if figure is None:
        return section("heatmap", title, note("Nothing of this was recorded."))
    bands = [trace["name"] for trace in figure["data"]]
    meanings = "; ".join(_HEATMAP_MEANINGS[band] for band in bands)
    gpus = "" if "GPUs" in bands else " No GPU was recorded."
    return section(
        "heatmap",
        title,
        explanation(
            "Yellow is busy, dark is idle, empty is not there. Dark ranks or GPUs over yellow "
            "workers or cores: data is made too slowly. "
            f"{meanings[:1].upper()}{meanings[1:]}.{gpus}"
        ),
        chart(
            "heatmap", figure, "Share of time busy of every rank, GPU, worker and core over time"
        ),
    )


def waits_section(data: PageData) -> Section:
    """Return the section with the waits for batches."""
    waits_ms, figure = read_waits_ms(data.tables), data_waits(data.tables)
    title = "Waits for data"
    if waits_ms is None or figure is None:
        why = "the script uses no data loader that is known, or it took no batch."
        return section("waits", title, note(f"No wait for a batch was recorded: {why}"))
    return section(
        "waits",
        title,
        explanation(
            "How long a rank waited each time it asked for the next batch to train on. A batch "
            "that is ready takes a fraction of a millisecond; a wait longer than that is time in "
            "which the accelerator has nothing to do. Grey bars count the waits, orange bars the "
            "time that they took together: a few long ones can matter more than many short "
            "ones. Each mark on the axis is ten times the one before it."
        ),
        chart("waits", figure, "Waits by their length: their number, and the time they took"),
        element("p", _waits_summary(waits_ms)),
    )


def _waits_summary(waits_ms: Floats) -> str:
    percentiles_ms = np.percentile(waits_ms, (50, 95, 100))
    half, most, longest = (format_number(float(wait_ms)) for wait_ms in percentiles_ms)
    count = max(round(0.01 * len(waits_ms)), 1)
    share = float(waits_ms[-count:].sum() / max(waits_ms.sum(), 1e-12))
    return (
        f"{format_count(len(waits_ms), 'wait')}: half took at most {half} ms, 95% at most {most} "
        f"ms, the longest {longest} ms. The longest 1% make up {format_share(share)} of all "
        "waiting."
    )


_FLAME_TITLES: dict[ProcessKind, str] = {
    "workers": "In the workers, while they made batches",
    "ranks": "In the ranks: the training loop itself",
}


def flame_section(data: PageData) -> Section:
    """Return the section with the flame views."""
    title = "Which code ran"
    parts = [part for where in _FLAME_TITLES if (part := _flame_chart(data, where)) is not None]
    if not parts:
        return section("flame", title, note("No code was sampled."))
    return section(
        "flame",
        title,
        explanation(
            "Every process was looked at many times a second. The wider a box, the longer that "
            "function and what it calls was seen; each box is called by the one above it. ",
            _swatch(USER_COLOUR),
            " your code, with its busiest line; ",
            _swatch(LIBRARY_COLOUR),
            " libraries and Python itself. Click a box to look closer, and the top one to go back.",
        ),
        *parts,
    )


def _flame_chart(data: PageData, where: ProcessKind) -> Html | None:
    figure = flame(data.tables, where)
    if figure is None:
        return None
    title = _FLAME_TITLES[where]
    return join_html(
        element("h3", title), chart(f"flame-{where}", figure, f"{title}: functions by time")
    )


def _swatch(colour: str) -> Html:
    return element("span", class_="swatch", style=f"background:{colour}")
