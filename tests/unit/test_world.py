"""Rank and world size from the launcher, the process group or the caller."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from headrace import DataLoader
from headrace.core.errors import UsageError
from headrace.core.world import World, current_world, usable_cores
from headrace.jobs.torchrun_args import threads_per_rank

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, "2412", strict=True):
        monkeypatch.setenv(name, value)


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_without_a_launcher_there_is_one_rank():
    assert current_world() == World(rank=0, size=1, local_rank=0, local_size=1)


@pytest.mark.usefixtures("launched")
def test_the_launchers_variables_say_which_rank_this_is():
    assert current_world() == World(rank=2, size=4, local_rank=1, local_size=2)


@pytest.mark.usefixtures("launched", "group")
def test_a_process_group_comes_before_the_variables():
    assert (current_world().rank, current_world().size) == (0, 1)


@pytest.mark.usefixtures("launched", "group")
def test_what_the_caller_names_comes_first():
    assert (current_world(5, 8).rank, current_world(5, 8).size) == (5, 8)


@pytest.mark.usefixtures("launched")
def test_a_loader_gives_each_rank_of_the_launcher_its_part():
    loader = DataLoader(range(40), 5, num_workers=0)
    assert (loader.batch_size, loader.global_batch) == (5, 20)
    assert [batch.tolist() for batch in loader] == [
        list(range(10, 15)),
        list(range(30, 35)),
    ]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0"}, "RANK=0 and WORLD_SIZE=None"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "rank 4 of world size 4"),
        ({"RANK": "first", "WORLD_SIZE": "4"}, "RANK='first' is not a whole number"),
    ],
)
def test_variables_that_cannot_be_are_reported(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message):
        current_world()


V2 = "30 1 0:26 {root} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw"
V1 = "30 1 0:26 {root} {mount} rw - cgroup cgroup rw,cpu,cpuacct"


@pytest.mark.parametrize(
    ("cgroup", "mountinfo", "root", "files", "cores"),
    [
        ("0::/", V2, "/", {"cpu.max": "100000 100000"}, 1),
        ("0::/", V2, "/", {"cpu.max": "10000 100000"}, 1),  # a rank needs one
        ("0::/a/b", V2, "/", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 1),
        ("0::/a/b", V2, "/a/b", {"cpu.max": "100000 100000"}, 1),  # in a container
        ("1:cpu,cpuacct:/a", V1, "/", {"a/cpu.cfs_quota_us": "9000"}, 1),
        ("1:cpu,cpuacct:/a", V1, "/a", {"cpu.cfs_quota_us": "100000"}, 1),
        ("1:cpu,cpuacct:/a", V1, "/", {"a/cpu.cfs_quota_us": "-1"}, None),
        ("0::/", V2, "/", {"cpu.max": "max 100000"}, None),
        ("0::/", V2, "/", {"cpu.max": "99900000 100000"}, None),
        ("0::/", V2, "/", {}, None),
        ("", "", "/", {}, None),
    ],
)
def test_cores_are_those_that_affinity_and_every_control_group_leave(
    cgroup: str, mountinfo: str, root: str, files: dict[str, str], cores: int | None, tmp_path: Path
):
    proc, mount = tmp_path / "self", tmp_path / "cgroup"
    proc.mkdir()
    (proc / "cgroup").write_text(cgroup)
    (proc / "mountinfo").write_text(mountinfo.format(root=root, mount=mount))
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(f"{text}\n")
        if name.endswith("quota_us"):
            (mount / name).with_name("cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(proc) == (cores or len(os.sched_getaffinity(0)))


def test_ranks_share_what_a_quota_leaves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    for quota, threads in ((None, 16), (8.0, 2), (2.5, 1), (0.1, 1)):
        monkeypatch.setattr("headrace.core.world.cpu_quota", lambda _, quota=quota: quota)
        assert threads_per_rank(4) == threads
