"""A run's records as data frames and charts, for notebooks."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.observe.whatif.tables import CachedTables, Tables
from headrace.records import data_frames as records
from headrace.report.charts.flame import flame_chart
from headrace.report.charts.heatmap import heatmap_chart
from headrace.report.charts.phases import phases_chart
from headrace.report.charts.steps import steps_chart
from headrace.report.charts.waits import waits_chart

if TYPE_CHECKING:
    from headrace.report.phase_table import PhaseTable


class ChartedRun(records.RunFrames):
    """The records of a run: its tables, and its charts as Plotly figures.

    A chart without records says so.
    """

    def heatmap(self) -> Any:
        """Return a figure: how busy every rank, GPU, worker and core was over time."""
        from headrace.report import plotly_figures as plotly

        chart = heatmap_chart(self._tables)
        return plotly.heatmap_figure(chart) if chart else _nothing("Nothing of this was recorded.")

    def timeline(self) -> Any:
        """Return a figure: the phases of every step over time, one row a rank."""
        from headrace.report import plotly_figures as plotly

        chart = steps_chart(self._tables)
        return plotly.steps_figure(chart) if chart else _nothing("No step was recorded.")

    @cached_property
    def phases(self) -> PhaseTable:
        """One row a phase of a step, as in `RunFrames.phases`; called, it returns a figure.

        The figure is the mean training step of each rank, split into phases.
        """
        from headrace.report.phase_table import PhaseTable

        return PhaseTable.of(super().phases, self._phases_figure)

    def _phases_figure(self) -> Any:
        from headrace.report import plotly_figures as plotly

        chart = phases_chart(self._tables)
        return plotly.bars_figure(chart) if chart else _nothing("No training step was recorded.")

    def data_waits(self) -> Any:
        """Return a figure: the histogram of waits for a batch."""
        from headrace.report import plotly_figures as plotly

        chart = waits_chart(self._tables)
        missing = "No wait for a batch was recorded."
        return plotly.columns_figure(chart) if chart else _nothing(missing)

    def flame(self) -> Any:
        """Return a figure: the code that ran in the workers, or in the ranks without workers."""
        from headrace.report import plotly_figures as plotly

        chart = flame_chart(self._tables, "workers") or flame_chart(self._tables, "ranks")
        return plotly.flame_figure(chart) if chart else _nothing("No code was sampled.")

    @cached_property
    def _tables(self) -> Tables:
        return CachedTables(self._records)


def _nothing(why: str) -> Any:
    from headrace.report.plotly_figures import empty_figure  # Plotly is slow to import

    return empty_figure(why)


def open_run(path: str | Path, attempt: int | None = None) -> ChartedRun:
    """Open a run, live or ended, to read its records as data frames and charts.

    Args:
        path: The run's folder, or its name below the runs folder.
        attempt: The attempt's number; None: the latest with records.

    Raises:
        UsageError: There is no such run.
        RecordsError: It has no records, or a newer version wrote them.

    Example:
        open_run("runs/base").timeline().show()
    """
    return ChartedRun(path, attempt)
