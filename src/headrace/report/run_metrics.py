"""The numbers of a recorded run for comparison with others: speed, phases, utilisation, cost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.decide.cost.run_use import utilisation_in
from headrace.observe.whatif.tables import columns
from headrace.observe.whatif.train_steps import read_steps
from headrace.records.schema import PHASES
from headrace.report.page_data import PageData


def run_metrics(data: PageData) -> dict[str, float]:
    """Return what is known of them; shares are 0 to 1, and phases are in `phase.NAME`."""
    verdict, steps = data.diagnosis.verdict, read_steps(data.tables, any_kind=True)
    found: dict[str, float | None] = {
        "steps": verdict.steps or None,
        "step_ms": verdict.step_ms,
        "data_wait_share": verdict.data_wait_share,
        "samples_per_s": steps.samples_per_s if verdict.steps else None,
    }
    found |= {f"phase.{name}": share for name, share in verdict.phase_shares.items()}
    if verdict.steps:
        for role, use in utilisation_in(data.tables, steps).items():
            found[f"system.{role}.cpu_utilisation"] = use.cpu
            found[f"system.{role}.gpu_utilisation"] = use.gpu
    if data.cost is not None:
        found["cost_usd"] = data.cost.usd
        found["usd_per_1k_samples"] = data.cost.usd_per_1k_samples
    return {name: float(value) for name, value in found.items() if value is not None}


_MOST_POINTS = 50
"""Of each phase's series: MLflow's database takes a tenth of a millisecond for each."""


def phase_series(data: PageData) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yield (step, at_ms, values) over the run: the mean ms of each phase and of the whole step.

    A point stands for as many steps as make fifty points at most, over all ranks.
    """
    steps = read_steps(data.tables)
    hosts = columns(data.tables, "hosts")
    if not len(steps) or not len(hosts["unix_offset_ns"]):
        return
    numbers, offset_ns = steps.rows["step"], int(hosts["unix_offset_ns"][0])
    times = {f"phase_ms/{phase}": steps.phase_ns(phase) / 1e6 for phase in PHASES}
    times["phase_ms/all"] = steps.wall_ns / 1e6
    for group in np.array_split(np.unique(numbers), min(_MOST_POINTS, len(np.unique(numbers)))):
        inside = (numbers >= group[0]) & (numbers <= group[-1])
        ended_ns = int((steps.rows["start_ns"] + steps.rows["wall_ns"])[inside].max()) + offset_ns
        values = {name: float(each[inside].mean()) for name, each in times.items()}
        yield int(group[-1]), ended_ns // 1_000_000, values
