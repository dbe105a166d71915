"""The numbers that describe a recorded run among others: speed, data wait, utilisation, cost."""

from __future__ import annotations

from headrace.decide.cost.run_use import utilisation_in
from headrace.observe.whatif.train_steps import read_steps
from headrace.report.page_data import PageData


def run_metrics(data: PageData) -> dict[str, float]:
    """Return what is known of them; shares are 0 to 1, and phases are in `phase.NAME`."""
    verdict = data.diagnosis.verdict
    found: dict[str, float | None] = {
        "steps": verdict.steps or None,
        "step_ms": verdict.step_ms,
        "data_wait_share": verdict.data_wait_share,
        "samples_per_s": read_steps(data.tables).samples_per_s if verdict.steps else None,
    }
    found |= {f"phase.{name}": share for name, share in verdict.phase_shares.items()}
    if verdict.steps:
        for role, use in utilisation_in(data.tables).items():
            found[f"system.{role}.cpu_utilisation"] = use.cpu
            found[f"system.{role}.gpu_utilisation"] = use.gpu
    if data.cost is not None:
        found["cost_usd"] = data.cost.usd
        found["usd_per_1k_samples"] = data.cost.usd_per_1k_samples
    return {name: float(value) for name, value in found.items() if value is not None}
