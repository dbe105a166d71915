"""The page of compared runs, made of numbers by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.decide.experiments.compared_runs import ComparedRun
from headrace.decide.experiments.metric_curves import RunCurves
from headrace.records.schema import PHASES
from headrace.report.comparison_page import ComparisonData, comparison_sections
from pages import Page


def run_of(name: str) -> ComparedRun:
    return ComparedRun(
        name=name, step_ms=10.0, samples_per_s=None, data_wait_share=0.1, speedup=1.0, low=1.0,
        high=1.0, phases_ms={"forward": 10.0}, settings={}, utilisation={}, cost=None,
        comparison=None, folder=Path(name),
    )  # fmt: skip


def metrics_of(*names: str) -> str:
    """Return the text of the section of metrics that two runs have; empty: there is none."""
    curves = [RunCurves(last=dict.fromkeys(names, 0.5)), RunCurves()]
    data = ComparisonData(name="two", runs=[run_of("a"), run_of("b")], curves=curves)
    sections = {each.id: each.body for each in comparison_sections(data, heatmaps=False)}
    return Page(sections.get("metrics", "")).text


@pytest.mark.parametrize(
    "name",
    ["loss", "phase", "phase_1/loss", "phases/open", "phase.accuracy", "phase2", "job.phase_1"],
)
def test_metrics_of_a_script_are_compared_whatever_they_are_called(name: str):
    assert name in metrics_of(name)


def test_what_headrace_logs_of_phases_is_in_their_own_section():
    own = [f"{begin}{phase}" for begin in ("phase.", "job.phase.", "phase_ms/") for phase in PHASES]
    assert metrics_of(*own, "phase_ms/all") == ""
