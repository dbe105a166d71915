"""A run's records as data frames and charts, for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.observe.whatif.tables import CachedTables, Tables
from headrace.records import data_frames as records
from headrace.report.figures.activity import flame, heatmap
from headrace.report.figures.base import Figure, empty_figure
from headrace.report.figures.step_phases import data_waits, phase_bars, timeline

if TYPE_CHECKING:
    from headrace.report.phase_table import PhaseTable


class ChartedRun(records.RunFrames):
    """The records of a run: its tables, and its charts as Plotly figures.

    A chart without records says so.
    """

    def heatmap(self) -> Any:
        """Return a figure: how busy every rank, GPU, worker and core was over time."""
        return self._drawn(heatmap, "Nothing of this was recorded.")

    def timeline(self) -> Any:
        """Return a figure: the phases of every step over time, one row a rank."""
        return self._drawn(timeline, "No step was recorded.")

    @cached_property
    def phases(self) -> PhaseTable:
        """One row a phase of a step, as in `RunFrames.phases`; called, it returns a figure.

        The figure is the mean training step of each rank, split into phases.
        """
        from headrace.report.phase_table import PhaseTable

        missing = "No training step was recorded."
        return PhaseTable.of(super().phases, lambda: self._drawn(phase_bars, missing))

    def data_waits(self) -> Any:
        """Return a figure: the histogram of waits for a batch."""
        return self._drawn(data_waits, "No wait for a batch was recorded.")

    def flame(self) -> Any:
        """Return a figure: the code that ran in the workers, or in the ranks without workers."""
        return self._drawn(
            lambda tables: flame(tables, "workers") or flame(tables, "ranks"),
            "No code was sampled.",
        )

    @cached_property
    def _tables(self) -> Tables:
        return CachedTables(self._records)

    def _drawn(self, draw: Callable[[Tables], Figure | None], missing: str) -> Any:
        import plotly.graph_objects as go  # slow to import

        return go.Figure(draw(self._tables) or empty_figure(missing))


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
