"""Edges of the loader that once were faults; each test names what must hold."""

from __future__ import annotations

import copy
import os
import resource
import subprocess
import sys
import textwrap
import time
import warnings
from asyncio import CancelledError
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from headrace import DataLoader
from headrace.core.errors import LoaderError, UsageError, WorkerError
from headrace.data.loader.executors.process import ProcessExecutor
from jobs import eventually
from plain_datasets import Draws, Images, KillsItsWorker
from sample_datasets import (
    Boxes,
    Encoding,
    Graph,
    Instances,
    Numbers,
    Quantity,
    RaisesThis,
    RandomStream,
    Restarts,
    Shared,
    SlowStream,
    Speechless,
    Stored,
    Target,
    WholeBatches,
    assert_same,
    collate_and_look,
)
from shared_workers import SharedWorkers, shared_workers


@pytest.fixture(scope="module")
def shared() -> Iterator[SharedWorkers]:
    with shared_workers() as workers:
        yield workers


def numbers(loader: DataLoader) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def test_failed_epochs_cost_no_slots():
    loader = DataLoader(KillsItsWorker(20, None), 4, num_workers=1)
    for _ in range(6):
        with pytest.raises(LoaderError, match="sample 13"):
            list(loader)


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), CancelledError(), Speechless()]
)
def test_whatever_a_sample_raises_in_a_worker_names_the_sample(
    shared: SharedWorkers, error: BaseException
):
    with pytest.raises(WorkerError, match=f"{type(error).__name__}.*\n.*sample 13") as caught:
        list(shared.loader(RaisesThis(error), 4, workers=1))
    assert isinstance(caught.value.__cause__, type(error))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_transforms_own_names_the_sample(shared: SharedWorkers, workers: int):
    dataset = RaisesThis(UsageError("The mask has 3 channels."))
    with pytest.raises(UsageError, match=r"3 channels\. That was sample 13\."):
        list(shared.loader(dataset, 4, workers=workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_draws_anew_for_each_sample(shared: SharedWorkers, workers: int):
    drawn = [float(batch) for batch in shared.loader(RandomStream(), 1, workers=workers)]
    assert len(set(drawn)) == len(drawn) == 6 * max(workers, 1)


@pytest.mark.parametrize("dataset", [RandomStream(), Restarts(), Numbers(6)])
def test_by_default_an_iterable_gives_each_sample_once(dataset: object):
    """It need not share its samples among workers; a number of workers says that it does."""
    loader = DataLoader(dataset, 1)
    assert loader.num_workers == 1
    assert len(list(loader)) == len(list(DataLoader(dataset, 1, num_workers=0)))
    assert DataLoader(dataset, 1, num_workers=3).num_workers == 3


def test_ranks_draw_differently_where_they_choose_their_own_samples():
    streams, samplers = [], []
    for rank in range(2):
        place = {"rank": rank, "world": 2, "num_workers": 0}
        streams.append([float(b) for b in DataLoader(RandomStream(), 1, **place)])
        batch = next(iter(DataLoader(Draws(4), 2, sampler=[0, 1], **place)))
        samplers.append(batch["python"].tolist())
    assert streams[0] != streams[1]
    assert samplers[0] != samplers[1]


@pytest.mark.parametrize(
    ("count", "world", "left_out"), [(10, 4, 2), (7, 4, 3), (8, 4, 0), (7, 2, 1), (5, 1, 0)]
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_single_samples_that_ranks_cannot_share_evenly_are_left_out_with_a_warning(
    count: int, world: int, left_out: int, *, shuffle: bool
):
    seen = []
    for rank in range(world):
        place = {"rank": rank, "world": world, "num_workers": 0}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = DataLoader(range(count), None, shuffle=shuffle, **place)
            samples = [int(sample) for sample in loader]
        said = [str(each.message).partition(" of the samples are left out")[0] for each in caught]
        assert said == ([str(left_out)] if left_out else [])
        assert len(samples) == len(loader) == loader.stats().samples == count // world
        seen += samples
    assert len(set(seen)) == len(seen) == count - left_out


def test_a_resumed_epoch_of_single_samples_says_what_is_left_out():
    def loader(rank: int, world: int) -> DataLoader:
        return DataLoader(range(12), None, rank=rank, world=world, num_workers=0)

    first = loader(0, 4)
    next(iter(first))
    with pytest.warns(UserWarning, match="^2 of the samples are left out"):
        resumed = loader(0, 5)
    resumed.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match="^3 of the samples are left out"):
        assert len(list(resumed)) == 1  # of the 8 that are left


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_begins_anew_still_ends(shared: SharedWorkers, workers: int):
    batches = [[1, 2], [3, 4], [5]]
    each = [batch for batch in batches for _ in range(max(workers, 1))]  # from workers in turn
    assert numbers(shared.loader(Restarts(), 2, workers=workers)) == each


def test_slow_workers_of_an_iterable_are_waited_for(shared: SharedWorkers):
    assert len(list(shared.loader(SlowStream(), 1, workers=2))) == 6


def test_many_batches_ahead_do_not_block():
    loader = DataLoader(Numbers(3000), 1, num_workers=2, prefetch_batches=1500, timeout_s=60)
    assert sum(len(batch) for batch in loader) == 3000
    planned = DataLoader(range(3000), 1, num_workers=2, prefetch_batches=1500, timeout_s=60)
    assert sum(len(batch) for batch in planned) == 3000


def test_a_process_with_many_open_files_can_load():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        assert len(list(DataLoader(Images(), 8, num_workers=1))) == 8
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_dead_forkserver_costs_neither_state_nor_epoch():
    whole = DataLoader(range(12), 3, shuffle=True, num_workers=0)
    expected = numbers(whole)
    others = psutil.Process().children()
    loader = DataLoader(range(12), 3, shuffle=True, num_workers=1)
    iterator = iter(DataLoader(range(12), 3, shuffle=True, num_workers=0))
    next(iterator)
    state = whole.state_dict() | {"epoch": 0, "position": 3}
    loader.load_state_dict(state)
    (forkserver,) = set(psutil.Process().children()) - set(others)
    assert "headrace.data.loader.workers.forkserver" in " ".join(forkserver.cmdline())
    forkserver.kill()
    forkserver.wait()
    assert numbers(loader) == expected[1:]


@pytest.mark.parametrize(
    "values",
    [[True, 5, 0], [np.uint8(1), np.int64(300)], [np.float32(1), np.float64(2)], [1, 2.5]],
    ids=str,
)
def test_numbers_of_different_kinds_are_collated_as_torch_does(values: list):
    ours = next(iter(DataLoader(values, len(values), num_workers=0)))
    assert_same(ours, next(iter(torch.utils.data.DataLoader(values, len(values)))))


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_arrive_as_they_are(layout: torch.layout):
    parts = [torch.arange(2.0), torch.arange(3.0)]

    def collate(_: list[int]) -> torch.Tensor:
        return torch.nested.nested_tensor(parts, layout=layout)

    (batch,) = DataLoader(range(2), 2, num_workers=0, collate_fn=collate)
    assert (batch.is_nested, batch.layout) == (True, layout)
    for mine, part in zip(batch.unbind(), parts, strict=True):
        assert_same(mine, part)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_ready_made_batch_is_left_alone(shared: SharedWorkers, workers: int):
    loader = shared.loader(WholeBatches(), 4, collate_fn=lambda batch: batch, workers=workers)
    assert [batch["x"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_torchs_collating_in_a_worker_needs_no_dev_shm(shared: SharedWorkers):
    before = set(Path("/dev/shm").iterdir())  # noqa: S108 - looked at, not written to
    torchs = shared.loader(Shared(), 2, workers=1, collate_fn=collate_and_look)
    assert [flag for _, flag in torchs] == [False, False]
    ours = shared.loader(Shared(), 2, workers=1)
    assert [batch.dtype for batch in ours] == [torch.bfloat16] * 2
    # Others put something there for a moment.
    eventually(lambda: set(Path("/dev/shm").iterdir()) <= before, "nothing more")  # noqa: S108


def test_the_device_transform_follows_a_loaded_seed():
    def noisy(batch: torch.Tensor) -> torch.Tensor:
        return batch + torch.rand(())

    first = DataLoader(range(9), 3, seed=5, num_workers=0, device_transform=noisy)
    iterator = iter(first)
    next(iterator)
    state = first.state_dict()
    resumed = DataLoader(range(9), 3, seed=0, num_workers=0, device_transform=noisy)
    resumed.load_state_dict(state)
    assert_same(list(resumed), list(iterator))


def test_a_batch_whose_transform_failed_is_not_delivered():
    def fail(batch: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError(batch)

    loader = DataLoader(range(9), 3, num_workers=0, device_transform=fail)
    with pytest.raises(ZeroDivisionError):
        next(iter(loader))
    assert loader.state_dict()["position"] == 0


def test_mappings_keep_their_class_on_the_way_to_the_device():
    def collate(samples: list[int]) -> UserDict:
        return UserDict({"x": torch.tensor(samples)})

    loader = DataLoader(range(4), 2, num_workers=0, collate_fn=collate, device="cpu")
    assert [type(batch) for batch in loader] == [UserDict] * 2


@pytest.mark.parametrize("kind", [Instances, Graph, Boxes, Target, Encoding])
@pytest.mark.parametrize("within", [lambda part: part, lambda part: {"parts": [part, (part, 1)]}])
def test_an_object_that_can_move_itself_goes_to_the_device_by_its_own_method(kind: type, within):
    loader = DataLoader(
        range(4),
        2,
        num_workers=0,
        collate_fn=lambda samples: within(kind(torch.tensor(samples))),
        device="meta",
    )
    for batch in loader:
        parts = [batch] if isinstance(batch, kind) else [batch["parts"][0], batch["parts"][1][0]]
        assert [type(part) for part in parts] == [kind] * len(parts)
        assert {part.x.device.type for part in parts} == {"meta"}


def test_a_packed_sequence_keeps_its_batch_sizes_on_the_cpu():
    def collate(samples: list[int]) -> dict[str, PackedSequence]:
        return {"words": pack_sequence([torch.arange(3.0), torch.arange(2.0)][: len(samples)])}

    for batch in DataLoader(range(4), 2, num_workers=0, collate_fn=collate, device="meta"):
        assert isinstance(batch["words"], PackedSequence)
        assert batch["words"].data.device.type == "meta"
        assert batch["words"].batch_sizes.tolist() == [2, 2, 1]


@pytest.mark.parametrize(
    "kept", [Quantity(), Stored(), Instances, torch.nn.Linear(2, 1), object(), "to", np.arange(3)]
)
def test_what_has_no_such_method_arrives_as_it_is(kept: object):
    def collate(samples: list[int]) -> list[object]:
        return [kept, torch.tensor(samples)]

    for batch in DataLoader(range(4), 2, num_workers=0, collate_fn=collate, device="meta"):
        assert type(batch[0]) is type(kept)
        assert batch[1].device.type == "meta"
        if isinstance(kept, torch.nn.Module):
            assert {each.device.type for each in batch[0].parameters()} == {"cpu"}


def test_a_given_executor_serves_many_epochs_and_stays_its_owners():
    executor = ProcessExecutor(1, 2, rank=0)
    loader = DataLoader(range(6), 2, executor=executor)
    assert [numbers(loader) for _ in range(4)] == [[[0, 1], [2, 3], [4, 5]]] * 4
    executor.close()


def test_a_loader_can_be_copied_and_goes_on():
    loader = DataLoader(range(8), 2, shuffle=True, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    twin = copy.deepcopy(loader)
    assert numbers(twin) == [batch.tolist() for batch in iterator]


def test_samples_of_iterables_are_counted(shared: SharedWorkers):
    loader = shared.loader(Numbers(7), 2, workers=2)
    list(loader)
    assert loader.stats().samples == 7


WHOLE = ("batch_size", "global_batch", "seed", "prefetch_batches", "prefetch_factor", "lanes")


@pytest.mark.parametrize(
    "arguments",
    [{"executor": "ray"}, {"timeout": -1}, {"timeout_s": "5"}, {"timeout_s": float("nan")}]
    + [{name: value} for name in (*WHOLE, "window", "num_workers") for value in (4.5, "4", True)]
    + [{"seed": None}, {"generator": 5}, {"batch_sampler": [[1]], "global_batch": 2}],
)
@pytest.mark.parametrize("dataset", [range(3), Numbers(3)])
def test_an_argument_that_cannot_be_is_refused(arguments: dict, dataset: object):
    with pytest.raises(UsageError):
        DataLoader(dataset, **{"num_workers": 0, **arguments})


def test_a_batch_sampler_decides_the_batches_whatever_the_batch_size():
    for size in (1, None):
        assert numbers(DataLoader(range(3), size, batch_sampler=[[2, 0], [1]], num_workers=0)) == [
            [2, 0],
            [1],
        ]


def test_a_script_may_change_its_folder_and_shadow_a_module(tmp_path: Path):
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "random.py").write_text("raise SystemExit('the wrong random')")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "content.txt").write_text("found")
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
        import os, sys
        from dataclasses import dataclass
        from pathlib import Path
        from headrace import DataLoader

        @dataclass(frozen=True)
        class Key:
            number: int

        class Reads:
            def __getitem__(self, key):
                print("from a worker", key.number)
                return Path("content.txt").read_text()
            def __len__(self):
                return 2

        loader = DataLoader(Reads(), 2, sampler=[Key(0), Key(1)], num_workers=1)
        os.chdir(sys.argv[1])
        print(*loader)
        """)
    )
    run = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "here")],
        cwd=tmp_path / "shadow", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "['found', 'found']" in run.stdout
    assert run.stdout.count("from a worker") == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_the_data_wait_begins_with_iter(workers: int):
    loader = DataLoader(Images(), 4, num_workers=workers)
    before_ns = time.monotonic_ns()
    iterator = iter(loader)
    started = copy.copy(loader.stats())
    assert 0 < started.wait_ns <= time.monotonic_ns() - before_ns
    assert started.elapsed_ns == started.wait_ns
    next(iterator)
    stats = loader.stats()
    assert started.wait_ns < stats.first_batch_ns <= time.monotonic_ns() - before_ns
    assert stats.wait_ns <= stats.elapsed_ns


@pytest.mark.parametrize("workers", [0, 2])
def test_a_device_transform_that_runs_out_is_an_error_and_no_end(
    shared: SharedWorkers, workers: int
):
    other = iter(range(3))
    loader = shared.loader(
        Numbers(40), 4, workers=workers, device_transform=lambda batch: (batch, next(other))
    )
    batches = iter(loader)
    assert [number for _, (_, number) in zip(range(3), batches, strict=False)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="device_transform raised StopIteration"):
        next(batches)


def test_an_iteration_whose_executor_was_taken_says_so():
    executor = ProcessExecutor(2, 4, rank=0)
    try:
        first = iter(DataLoader(range(40), 4, executor=executor))
        next(first)
        second = iter(DataLoader(range(8), 4, executor=executor))
        with pytest.raises(LoaderError, match="executor of its own"):
            next(first)
        del first
        assert [len(batch) for batch in second] == [4, 4]
        third = DataLoader(range(40), 4, executor=executor)
        assert len(list(third)) == 10
    finally:
        executor.close()


MEETS_LATER = textwrap.dedent("""
    import sys
    from torch import distributed, multiprocessing
    from headrace import DataLoader
    from headrace.core.errors import UsageError

    def train(rank, meeting):
        early, placed = DataLoader(range(8), 2), DataLoader(range(8), 2, rank=0, world=1)
        method = f"file://{meeting}"
        distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
        assert len(list(placed)) == 4
        assert len(list(DataLoader(range(8), 2))) == 2
        try:
            iter(early)
        except UsageError as error:
            open(f"{meeting}-{rank}", "w").write(str(error))
        distributed.destroy_process_group()

    if __name__ == "__main__":
        multiprocessing.start_processes(train, (sys.argv[1],), nprocs=2, start_method="fork")
""")


def test_a_loader_that_was_made_before_its_ranks_met_says_so(tmp_path: Path):
    (tmp_path / "script.py").write_text(MEETS_LATER)
    subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "meeting")],
        check=True,
        timeout=120,
    )
    for rank in range(2):
        text = (tmp_path / f"meeting-{rank}").read_text()
        assert text.startswith(
            f"This loader was made for rank 0 of 1, and this is rank {rank} of 2"
        )
