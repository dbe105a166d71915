"""What the exactness benchmark plans to kill, and that nothing else counts as its kill."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from kills import ON_A_CLUSTER, ON_ONE_HOST, Attempt, NotKilledError, kill_as_planned, schedule

CHANGES = {(1, 2), (2, 4), (4, 2), (2, 1), (1, 4), (4, 1)}


@pytest.mark.parametrize("on_cluster", [True, False])
def test_each_seed_has_every_change_of_world_size_and_kills_every_kind(on_cluster: bool):
    for seed in range(50):
        plan = list(schedule(9, seed, on_cluster=on_cluster))
        assert set(pairwise(each.world for each in plan)) == CHANGES
        assert {each.kind for each in plan if not each.on_cluster} == set(ON_ONE_HOST)
        clustered = [each.kind for each in plan if each.on_cluster]
        assert len(set(clustered)) == len(clustered) == (3 if on_cluster else 0)
        assert all(each.workers for each in plan if each.kind == "worker")
    plans = [schedule(9, seed, on_cluster=True) for seed in range(4)]
    killed = {each.kind for plan in plans for each in plan if each.on_cluster}
    assert killed == set(ON_A_CLUSTER)
    assert [*schedule(9, 3, on_cluster=on_cluster)] == [*schedule(9, 3, on_cluster=on_cluster)]


@pytest.mark.parametrize("code", [0, 1, 137])
def test_a_job_that_ends_by_itself_was_not_killed(tmp_path: Path, code: int):
    attempt = Attempt(number=0, world=1, kind="rank", steps=5)
    (tmp_path / "log-000.txt").write_text("Traceback: it crashed")
    with (
        subprocess.Popen(["sh", "-c", f"exit {code}"]) as job,
        pytest.raises(NotKilledError, match=f"ended by itself with {code}"),
    ):
        kill_as_planned(job, tmp_path, attempt)
