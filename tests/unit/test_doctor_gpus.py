"""Of a host with more GPUs than ranks, those that idle are not the run's."""

from __future__ import annotations

import pytest

from headrace.observe.doctor.diagnose import diagnose
from headrace.observe.doctor.evidence import gather
from headrace.observe.doctor.gpus import gpu_utilisation
from run_tables import Run, RunTables, play


def on_four_gpus(ranks: int, **columns: list[float]) -> RunTables:
    """Return a healthy run of so many ranks; columns of `system` are repeated to its length."""
    tables = play(Run(workers=4, service_ms=8, busy_cores=3, ranks=ranks, cores=16))
    ticks = len(tables.system["t_ns"])
    for name, values in columns.items():
        tables.system[name] = (values * ticks)[:ticks]
    return tables


def utilisations(*percents: float) -> dict[str, list[float]]:
    return {f"gpu_{gpu}_utilisation_percent": [each] for gpu, each in enumerate(percents)}


@pytest.mark.parametrize(
    ("ranks", "percents", "used"),
    [
        (1, (0.0, 97.0, 0.0, 0.0), 0.97),
        (2, (0.0, 97.0, 0.0, 91.0), 0.94),
        (4, (96.0, 97.0, 0.0, 91.0), 0.71),
        (1, (20.0, 97.0, 0.0, 0.0), None),  # another job's, perhaps
    ],
)
def test_one_gpu_a_rank_counts(ranks: int, percents: tuple[float, ...], used: float | None):
    evidence = gather(on_four_gpus(ranks, **utilisations(*percents)))
    assert gpu_utilisation(evidence) == (None if used is None else pytest.approx(used))


def test_a_rank_that_keeps_its_gpu_busy_is_healthy_beside_idle_ones():
    told = {each.rule for each in diagnose(on_four_gpus(1, **utilisations(97, 0, 0, 0))).findings}
    assert "compute-bound" in told
    assert "small-batch" not in told


def test_another_jobs_memory_on_another_gpu_is_not_this_runs():
    tables = on_four_gpus(1, **utilisations(97, 50))
    ticks = len(tables.system["t_ns"])
    tables.system["gpu_0_memory_bytes"] = [2**30] * ticks
    tables.system["gpu_1_memory_bytes"] = [2**30 + 2**26 * tick for tick in range(ticks)]
    assert "memory-growth" not in {each.rule for each in diagnose(tables).findings}
