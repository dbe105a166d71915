"""`headrace.DataLoader` over Ray Datasets, with a real Ray."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.data
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray._private.authentication_test_utils import reset_auth_token_state
from ray.data._internal.usage.poller import get_poller

from headrace import DataLoader
from headrace.cluster.ray_node import EmulatedCluster
from headrace.core.errors import CheckpointError, DatasetError, UsageError, WorkerError
from headrace.platforms.instance_groups import GroupSpec
from headrace.records.reader import open_records
from jobs import on_two_hosts
from jobs_here import run_job
from ray_functions import failing, mixed, of_two_sizes

POINTS = Path(__file__).parents[1] / "scripts" / "probed" / "points.py"
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:Each of . ranks has Ray prepare"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmulatedCluster]:
    cluster = EmulatedCluster([GroupSpec(name="gpu", hosts=2, cpus=2)], devices=[])
    reset_auth_token_state()  # which Ray has read as it was imported
    yield cluster
    cluster.close()
    reset_auth_token_state()


@pytest.fixture(scope="module", autouse=True)
def _started(cluster: EmulatedCluster) -> Iterator[None]:
    ray.init(
        cluster.address, log_to_driver=False, logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[1])}},
    )  # fmt: skip
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()
    # Its thread stays, fails every ten seconds from now on, and formats a traceback: beside another
    # `ast.parse` that makes Python 3.11 lose count of the depth of its trees.
    get_poller()._metrics.clear()


def numbers(count: int, blocks: int = 3) -> Any:
    return ray.data.range(count, override_num_blocks=min(blocks, max(count, 1)))


def ids(batches: list[dict[str, Any]]) -> list[int]:
    return list(chain.from_iterable(batch["id"].tolist() for batch in batches))


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    samples=st.integers(1, 40), blocks=st.integers(1, 5), batch=st.integers(1, 6),
    world=st.integers(1, 4), shuffle=st.booleans(), drop_last=st.booleans(),
    window=st.sampled_from([None, 1, 10]),
)  # fmt: skip
def test_each_sample_comes_once_and_ranks_have_equal_steps(
    samples: int, blocks: int, batch: int, world: int, shuffle: bool, drop_last: bool,
    window: int | None,
):  # fmt: skip
    loaders = [
        DataLoader(
            numbers(samples, blocks), batch, shuffle=shuffle, drop_last=drop_last, rank=rank,
            world=world, window=window if shuffle else None, seed=3,
        )
        for rank in range(world)
    ]  # fmt: skip
    if samples < world and not drop_last:
        with pytest.raises(DatasetError, match="not every rank could"):
            list(loaders[0])
        return
    epochs = [list(loader) for loader in loaders]
    seen = [sample for rank in epochs for sample in ids(rank)]
    assert len(seen) == len(set(seen))
    kept = samples // (batch * world) * batch * world if drop_last else samples
    assert len(seen) == kept
    if not shuffle:
        assert set(seen) == set(range(kept))
    assert {len(rank) for rank in epochs} == {len(loaders[0])}


def test_columns_are_tensors_and_what_torch_has_no_type_for_is_listed():
    (batch,) = DataLoader(numbers(4).map_batches(mixed), 4)
    assert batch["id"].tolist() == [0, 1, 2, 3]
    assert batch["image"].shape == (4, 3, 4)
    assert batch["image"].dtype == torch.float32
    batch["image"] += 1  # it is the script's own
    assert [each.tolist() for each in batch["ragged"]] == [[], [0], [0, 1], []]
    assert batch["name"] == ["row 0", "row 1", "row 2", "row 3"]


def test_a_tail_of_other_shapes_joins_the_batch_before_it():
    pictures = numbers(9, 1).map_batches(of_two_sizes, batch_size=1)
    sides = [
        [len(picture) for batch in DataLoader(pictures, 4, rank=rank, world=2)
         for picture in batch["picture"]]
        for rank in range(2)
    ]  # fmt: skip
    assert sorted(sides[0] + sides[1]) == sorted(2 + number % 2 for number in range(9))
    assert len(sides[0]) == 4
    assert len(sides[1]) == 5


def test_the_place_in_another_shuffle_is_refused():
    loader = DataLoader(numbers(12), 2, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    DataLoader(numbers(12), 2, shuffle=True).load_state_dict(state)
    for other in ({}, {"shuffle": True, "window": 2}):
        with pytest.raises(CheckpointError, match=r"sample\(s\) shuffled together"):
            DataLoader(numbers(12), 2, **other).load_state_dict(state)


def test_a_wait_without_a_deadline():
    assert len(list(DataLoader(numbers(4), 2, timeout_s=float("inf")))) == 2


def test_collate_and_the_transform_on_the_device_get_what_they_should():
    loader = DataLoader(
        numbers(6), 2, collate_fn=lambda columns: torch.from_numpy(columns["id"] * 2), device="cpu",
        device_transform=lambda batch: batch + 1, pin_memory=True,
    )  # fmt: skip
    assert [batch.tolist() for batch in loader] == [[1, 3], [5, 7], [9, 11]]
    assert (loader.stats().samples, loader.stats().batches) == (6, 3)


def test_shuffled_anew_each_epoch_and_the_same_each_time():
    loaders = [DataLoader(numbers(40), 4, shuffle=True, seed=5) for _ in range(2)]
    first, again = ([ids(list(loader)) for _ in range(2)] for loader in loaders)
    assert first == again
    assert first[0] != first[1] != sorted(first[1])
    assert sorted(first[0]) == sorted(first[1]) == list(range(40))


def test_left_in_the_middle_and_resumed():
    loader = DataLoader(numbers(20), 4, shuffle=True)
    whole = [ids([batch]) for batch in loader]
    list(loader)
    other = DataLoader(numbers(20), 4, shuffle=True)
    begun = []
    for batch in other:
        begun.append(ids([batch]))
        if len(begun) == 2:
            break
    state = json.loads(json.dumps(other.state_dict()))
    assert other.epoch == 0
    resumed = DataLoader(numbers(20), 4, shuffle=True)
    resumed.load_state_dict(state)
    assert begun + [ids([batch]) for batch in resumed] == whole
    assert not [each for each in threading.enumerate() if each.name == "headrace-ray"]
    with pytest.raises(CheckpointError, match="4 sample"):
        DataLoader(numbers(20), 5).load_state_dict(state)


def test_an_iterator_of_rays_is_one_ranks_already():
    first, second = numbers(12).streaming_split(2, equal=True)
    found: list[list[int]] = [[], []]

    def take(rank: int, part: Any) -> None:
        found[rank] = ids(list(DataLoader(part, 3, rank=rank, world=2)))

    threads = [threading.Thread(target=take, args=pair) for pair in enumerate([first, second])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found[0] + found[1]) == list(range(12))
    assert len(found[0]) == len(found[1])
    with pytest.raises(TypeError, match="not known before it has run"):
        len(DataLoader(first, 3))
    with pytest.warns(UserWarning, match="each sample comes to every rank"):
        DataLoader(numbers(12).iterator(), 3, rank=0, world=2)


def test_a_length_that_would_need_the_whole_dataset_to_run_is_not_known():
    loader = DataLoader(numbers(10).map_batches(mixed), 4)
    with pytest.raises(TypeError, match=r"dataset\.materialize\(\)"):
        len(loader)
    assert len(DataLoader(numbers(10).map_batches(mixed).materialize(), 4)) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampler": [1, 2]}, "sampler and a Ray Dataset"),
        ({"batch_sampler": [[1, 2]]}, "batch_sampler and a Ray Dataset"),
        ({"num_workers": 2}, "num_workers and a Ray Dataset: Ray's own processes"),
        ({"worker_init_fn": print}, "worker_init_fn and a Ray Dataset"),
        ({"executor": object()}, "executor and a Ray Dataset"),
        ({"lanes": 4}, "lanes and a Ray Dataset"),
        ({"window": 4}, "with shuffle=True"),
        ({"batch_size": None}, "Give a number"),
    ],
)
def test_what_means_nothing_for_it_is_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        DataLoader(numbers(4), **arguments)


def test_what_fails_in_rays_processes_reaches_the_script():
    with pytest.raises(WorkerError, match="seven is not liked"):
        list(DataLoader(numbers(12).map_batches(failing, batch_size=4), 4))


LATE = """
import sys, ray, ray.data, headrace
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
wants = ray.data.range(4).map_batches(lambda batch: batch, num_cpus=64)  # which nobody has
next(iter(headrace.DataLoader(wants, 4, timeout_s=0.5)))
"""


def test_a_batch_has_a_deadline():
    # By itself: Ray goes on to wait in a thread, which ends with the process.
    done = subprocess.run(
        [sys.executable, "-c", LATE, ray.get_runtime_context().gcs_address],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "LoaderTimeoutError: " in done.stderr
    assert "batch 0 did not arrive within 0.5 s" in done.stderr


def test_ray_is_not_imported_where_the_dataset_is_none_of_its():
    code = (
        "import sys, headrace, torch\n"
        "list(headrace.DataLoader(torch.arange(4), num_workers=0))\n"
        "print('ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


OF_RANKS = """
import os, torch, torch.distributed as dist, ray, ray.data
import headrace
from points import Descent
dist.init_process_group("gloo")
ray.init(log_to_driver=False, logging_level="ERROR")
model = torch.nn.Linear(1, 1)
optimizer = Descent(model.parameters())
plain = ray.data.range(32).map_batches(lambda batch: batch)
for _ in range(2):
    for batch in plain.iter_torch_batches(batch_size=8, prefetch_batches=2):
        model(batch["id"][:, None].float()).sum().backward()
        optimizer.step()
data = ray.data.range(50, override_num_blocks=7).map_batches(lambda batch: batch)
loader = headrace.DataLoader(data, 4, shuffle=True)
mine = []
for batch in loader:
    mine += batch["id"].tolist()
    model(batch["id"][:, None].float()).sum().backward()
    optimizer.step()
gathered = [None] * dist.get_world_size()
dist.all_gather_object(gathered, mine)
print("once", sorted(sum(gathered, [])) == list(range(50)), [*map(len, gathered)], flush=True)
dist.destroy_process_group()
"""
OF_TRAINER = """
import ray, ray.data, ray.train, torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
import headrace

def train():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = headrace.DataLoader(ray.train.get_dataset_shard("train"), 4)
    seen = 0
    for batch in loader:
        seen += len(batch["id"])
        model(batch["id"][:, None].float()).sum().backward()
        optimizer.step()
    with open(f"{PLACE}/rank-{ray.train.get_context().get_world_rank()}", "w") as file:
        file.write(str(seen))

ray.init()
print(next(iter(ray.data.range(4).iter_torch_batches(batch_size=2))))  # a look is no training
torch.utils.data.DataLoader([1.0])
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2),
             datasets={"train": ray.data.range(48)}).fit()
"""


def check_records(folder: Path, file: str, steps: int, first_loader: int = -1) -> None:
    """Each rank's waits are counted once, at the loader that the script made."""
    records = open_records(folder)

    def rows(table: str) -> list[dict[str, Any]]:
        return [row for row in records.table(table).to_pylist() if row["loader"] >= first_loader]

    assert [
        row for row in records.table("events").to_pylist() if row["kind"] == "probe-fault"
    ] == []
    loaders = rows("loaders")
    assert sorted((row["rank"], row["kind"], row["workers"]) for row in loaders) == [
        (0, "ray", 0), (1, "ray", 0)
    ]  # fmt: skip
    assert {Path(row["file"]).name for row in loaders} == {file}
    fetched = [row["rank"] for row in rows("fetches")]
    assert sorted(fetched) == [0] * (steps + 1) + [1] * (steps + 1)
    trained = [row for row in rows("steps") if row["kind"] == "train"]
    assert sorted(row["rank"] for row in trained) == [0] * steps + [1] * steps
    assert records.table("batches").num_rows == 0  # they are Ray's


def check_records_of_rays_own_batches(folder: Path, file: str) -> None:
    """Two epochs of four batches that each rank took from Ray itself, before any other."""
    records = open_records(folder)
    tables = ("loaders", "fetches", "steps")
    loaders, fetches, steps = (
        [row for row in records.table(name).to_pylist() if row["loader"] == 0] for name in tables
    )
    assert sorted(row["rank"] for row in loaders) == [0, 1]
    styles = {(row["kind"], row["batch_size"], row["prefetch_factor"]) for row in loaders}
    assert styles == {("ray", 8, 2)}
    assert {Path(row["file"]).name for row in loaders} == {file}
    fetched = Counter((row["rank"], row["epoch"]) for row in fetches)
    assert fetched == {(rank, epoch): 5 for rank in range(2) for epoch in range(2)}
    trained = [row for row in steps if row["kind"] == "train"]
    assert Counter(row["rank"] for row in trained) == {0: 8, 1: 8}
    assert all(row["data_wait_ns"] for row in trained)


def test_ranks_with_a_ray_program_each_share_a_dataset_and_are_recorded(
    cluster: EmulatedCluster, tmp_path: Path
):
    shutil.copy(POINTS, tmp_path)
    (tmp_path / "train.py").write_text(OF_RANKS)
    ended = run_job(
        tmp_path, *on_two_hosts(cluster.address), "--apply", "num_workers=2", "train.py"
    )
    assert ended.returncode == 0, ended.stderr
    assert "once True [25, 25]" in ended.stdout
    assert "Each of 2 ranks has Ray prepare this whole dataset" in ended.stderr
    not_applied = "num_workers=2 is not applied to Dataset: Ray's own processes make its batches"
    assert ended.stderr.count(not_applied) == 2
    check_records(tmp_path / "r", "train.py", 7, first_loader=1)
    check_records_of_rays_own_batches(tmp_path / "r", "train.py")


def test_workers_of_ray_train_take_their_shards_and_are_recorded_as_ranks(
    cluster: EmulatedCluster, tmp_path: Path
):
    (tmp_path / "train.py").write_text(OF_TRAINER.replace("{PLACE}", str(tmp_path)))
    ended = run_job(
        tmp_path, *on_two_hosts(cluster.address), "--driver", "train.py", HOME=str(tmp_path)
    )
    assert ended.returncode == 0, ended.stderr
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)] == ["24", "24"]
    check_records(tmp_path / "r", "train.py", 6)
