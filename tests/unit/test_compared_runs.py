"""Runs side by side, in the terminal and on a page, where they differ in what they do and log."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.compare_report import print_compared_runs
from headrace.decide.experiments.compared_runs import ComparedRun
from headrace.decide.experiments.metric_curves import RunCurves
from headrace.records.schema import PHASES
from headrace.report.comparison_page import ComparisonData, comparison_sections

PHASE_MS = 10.0


def run_of(name: str, *phases: str) -> ComparedRun:
    """Return a run whose steps have these phases alone, each as long."""
    return ComparedRun(
        name=name, step_ms=PHASE_MS * len(phases), samples_per_s=None, data_wait_share=0.0,
        speedup=1.0, low=1.0, high=1.0, phases_ms=dict.fromkeys(phases, PHASE_MS), settings={},
        utilisation={}, cost=None, comparison=None, folder=Path(name),
    )  # fmt: skip


@pytest.mark.parametrize("phase", [name for name in PHASES if name != "forward"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_phase_that_one_run_alone_has_is_shown(
    phase: str, place: int, capsys: pytest.CaptureFixture[str]
):
    """Such as gradient sync, of which a run of one rank has none."""
    runs = [
        run_of(name, "forward", *([phase] if number == place else []))
        for number, name in enumerate(("first", "second", "third"))
    ]
    print_compared_runs(runs)
    table = capsys.readouterr().out.partition("ms a step")[2]
    (head, *rows) = [line.split() for line in table.splitlines()[:4]]
    assert set(" ".join(head).replace("data wait", "data_wait").split()) == {"forward", phase}
    assert sorted(map(float, rows[place][1:])) == [PHASE_MS, PHASE_MS]


@pytest.mark.parametrize(
    ("name", "is_shown"),
    [
        ("phase2/accuracy", True), ("phase", True), ("phases_done", True), ("job.phases", True),
        ("phase_ms/forward", False), ("job.phase.forward", False),
    ],
)  # fmt: skip
def test_metrics_of_a_script_that_begin_like_those_of_phases_are_shown(name: str, is_shown: bool):
    curves = RunCurves(last={name: 0.125, "loss": 0.5})
    runs = [run_of("first", "forward"), run_of("second", "forward")]
    data = ComparisonData(name="both", runs=runs, curves=[curves, RunCurves()])
    (metrics,) = (
        each for each in comparison_sections(data, heatmaps=False) if each.id == "metrics"
    )
    assert (f">{name}<" in metrics.body) == is_shown
    assert ">loss<" in metrics.body
