"""The comparison of two runs: what differs beyond noise."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.errors import RecordsError
from headrace.observe.whatif.comparison import compare
from run_tables import RunTables


def run_of(step_ms: float, steps: int = 200, seed: int = 0) -> RunTables:
    """Return a run whose steps take so long on average, a tenth of it noise."""
    tables, now_ns = RunTables(), 0
    noise = np.random.default_rng(seed).normal(1.0, 0.1, steps)
    for number, factor in enumerate(noise):
        wall_ns = int(step_ms * 1e6 * factor)
        half_ns = wall_ns // 2
        tables.add(
            "steps", step=number, kind="train", start_ns=now_ns, wall_ns=wall_ns,
            data_wait_ns=half_ns, backward_ns=wall_ns - half_ns, batches=1, samples=8,
        )  # fmt: skip
        now_ns += wall_ns
    return tables


def test_a_run_is_no_faster_than_itself():
    found = compare(run_of(20), run_of(20, seed=1))
    assert not found.differ
    assert found.low <= 1 <= found.high


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2.0])
def test_a_difference_is_seen_and_measured(factor: float):
    found = compare(run_of(20), run_of(20 / factor, seed=1))
    assert found.differ
    assert found.low <= factor <= found.high
    assert found.speedup == pytest.approx(factor, rel=0.05)


def test_larger_batches_are_faster_where_they_give_more_samples():
    before, after = run_of(20), run_of(30, seed=1)
    for row in after.rows["steps"]:
        row["samples"] = 16
    found = compare(before, after)
    assert found.differ
    assert found.speedup == pytest.approx(2 * 20 / 30, rel=0.05)
    assert found.low <= found.speedup <= found.high
    assert found.after_samples_per_s == pytest.approx(16 / 0.030, rel=0.05)


def test_ranks_that_keep_step_do_not_make_noise_a_difference():
    """Their steps take the same time, so eight of them say no more than one."""
    found = []
    for seed in range(40):
        runs = run_of(20, seed=seed), run_of(20, seed=100 + seed)
        for tables in runs:
            one = list(tables.rows["steps"])
            tables.rows["steps"] = [{**row, "rank": rank} for rank in range(8) for row in one]
        found.append(compare(*runs).differ)
    assert sum(found) <= 10


def test_long_runs_of_one_script_that_differ_by_a_percent_do_not_differ():
    found = compare(run_of(20, steps=20_000), run_of(20.2, steps=20_000, seed=1))
    assert not found.differ
    assert found.high - found.low >= 0.03


def test_ranks_count_together():
    before, after = run_of(20), run_of(25, seed=1)
    after.rows["steps"] += [{**row, "rank": 1} for row in after.rows["steps"]]
    found = compare(before, after)
    assert found.speedup == pytest.approx(2 * 20 / 25, rel=0.05)
    assert [(each.setting, each.before, each.after) for each in found.settings] == [
        ("ranks", "1", "2")
    ]


def test_without_samples_steps_count():
    before, after = run_of(20), run_of(10, seed=1)
    for row in after.rows["steps"]:
        row["samples"] = -1
    found = compare(before, after)
    assert found.after_samples_per_s is None
    assert found.speedup == pytest.approx(2, rel=0.05)


def test_what_the_runs_were_made_with_is_reported_where_it_differs():
    runs = [run_of(20), run_of(20, seed=1)]
    for workers, run in zip((2, 4), runs, strict=True):
        run.add("loaders", kind="torch", workers=workers, batch_size=8, dataset="Images")
    settings = compare(*runs).settings
    assert [(each.setting, each.before, each.after) for each in settings] == [
        ("num_workers", "2", "4")
    ]


def test_phases_add_up_to_the_step():
    found = compare(run_of(20), run_of(30))
    assert [each.phase for each in found.phases] == ["data_wait", "backward"]
    assert sum(each.before_ms for each in found.phases) == pytest.approx(found.before_ms)
    assert sum(each.after_ms for each in found.phases) == pytest.approx(found.after_ms)


def test_a_phase_that_changed_is_distinguished_from_noise():
    before, after = run_of(20), run_of(20, seed=1)
    for row in after.rows["steps"]:
        row["data_wait_ns"] += 2_000_000
        row["wall_ns"] += 2_000_000
    found = compare(before, after)
    wait, backward = found.phases
    assert wait.differ
    assert wait.low_ms <= 2 <= wait.high_ms
    assert not backward.differ
    assert backward.low_ms <= 0 <= backward.high_ms
    assert found.step.differ
    assert found.step.low_ms <= found.after_ms - found.before_ms <= found.step.high_ms
    content = found.to_json()
    assert [each["differ"] for each in content["phases"]] == [True, False]
    assert content["step"]["differ"]


def test_too_few_steps_are_reported():
    with pytest.raises(RecordsError, match="The second run has 3 training steps"):
        compare(run_of(20), run_of(20, steps=5))
