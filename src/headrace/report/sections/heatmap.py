"""The heatmap of cores, GPUs, workers and ranks."""

from __future__ import annotations

from headrace.report.charts import chart
from headrace.report.figures.heatmap import heatmap
from headrace.report.material import Material
from headrace.report.section import Section, explained, note, section

_MEANINGS = {
    "ranks": "a rank (a training process) is busy when it does not wait for data: of each moment, "
    "its worst step is shown",
    "GPUs": "a GPU is busy while anything runs on it: of each moment, the lowest value is shown",
    "workers": "a worker (a process that prepares data) is busy while it makes a batch",
    "cores": "a core (of the CPU) is busy with anything, also with other programs",
}


def heatmap_section(material: Material) -> Section:
    """Return the section that shows how busy everything was."""
    figure = heatmap(material.tables)
    title = "How busy everything was"
    if figure is None:
        return section("heatmap", title, note("Nothing of this was recorded."))
    bands = [trace.name for trace in figure.data]
    told = "; ".join(_MEANINGS[band] for band in bands)
    gpus = "" if "GPUs" in bands else " No GPU was recorded."
    return section(
        "heatmap",
        title,
        explained(
            "Yellow is busy, dark is idle, empty is not there. Dark ranks or GPUs over yellow "
            "workers or cores: data is made too slowly. "
            f"{told[:1].upper()}{told[1:]}.{gpus}"
        ),
        chart(
            "heatmap",
            figure,
            "Share of time busy of every rank, GPU, worker and core over time",
        ),
    )
