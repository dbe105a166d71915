"""What every executor owes the loader: the same batches, in order, whatever the workers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain

import numpy as np
import pytest
import torch

import plain_datasets
from headrace import DataLoader
from headrace.core.errors import UsageError, WorkerError
from plain_datasets import Images, Ragged
from sample_datasets import Draws, Numbers, Pair, Raises, assert_same, noisy, pad
from shared_workers import SharedWorkers, shared_workers


@cache
def reference_epochs() -> list[list[object]]:
    loader = DataLoader(Draws(37), 5, shuffle=True, seed=11, num_workers=0)
    return [list(loader) for _ in range(2)]


@pytest.fixture(scope="module")
def shared() -> Iterator[SharedWorkers]:
    with shared_workers() as workers:
        yield workers


@pytest.fixture(params=[0, 2], ids="{} workers".format)
def workers(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.mark.parametrize("workers", [0, 2, 7])
def test_batches_are_the_same_bit_for_bit(shared: SharedWorkers, workers: int):
    loader = shared.loader(Draws(37), 5, shuffle=True, seed=11, workers=workers)
    for expected in reference_epochs():
        epoch = list(loader)
        assert len(epoch) == len(loader) == len(expected)
        for mine, yours in zip(epoch, expected, strict=True):
            assert_same(mine, yours)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_of_a_loader_s_own_make_the_same_batches_epoch_after_epoch(workers: int):
    inline, made = (
        DataLoader(plain_datasets.Draws(37), 5, shuffle=True, seed=11, num_workers=count)
        for count in (0, workers)
    )
    for _ in range(2):
        assert_same(list(made), list(inline))


@pytest.mark.parametrize("workers", [2, 7])
def test_a_collate_fn_that_draws_makes_the_same_batches(shared: SharedWorkers, workers: int):
    inline, made = (
        list(shared.loader(Draws(37), 5, shuffle=True, seed=3, collate_fn=noisy, workers=count))
        for count in (0, workers)
    )
    assert_same(made, inline)
    assert len({tuple(batch.tolist()) for batch in inline}) == len(inline) == 8


def test_epochs_and_seeds_differ():
    one, two = ([batch["index"].tolist() for batch in epoch] for epoch in reference_epochs())
    assert one != two
    other = DataLoader(Draws(37), 5, shuffle=True, seed=12, num_workers=0)
    assert [batch["index"].tolist() for batch in other] != one


def test_every_sample_comes_once(shared: SharedWorkers, workers: int):
    loader = shared.loader(Draws(37), 5, shuffle=True, workers=workers)
    assert sorted(i for batch in loader for i in batch["index"].tolist()) == list(range(37))


def test_collating_is_torchs(shared: SharedWorkers, workers: int):
    loader = shared.loader(Draws(12), 4, workers=workers, seed=1)
    batch = next(iter(loader))
    assert batch["index"].dtype == torch.int64
    assert batch["pixels"].dtype == torch.uint8
    assert batch["pixels"].shape == (4, 4, 6, 3)
    assert batch["python"].dtype == torch.float64
    assert batch["torch"].shape == (4, 2)
    assert batch["name"] == ["s0", "s1", "s2", "s3"]
    doubled, (as_float, even) = batch["nested"]
    assert doubled.tolist() == [0, 2, 4, 6]
    assert as_float.dtype == torch.float64
    assert even.dtype == torch.bool


def test_a_users_collate_fn_gets_the_samples(shared: SharedWorkers, workers: int):
    loader = shared.loader(Ragged(), 6, collate_fn=pad, workers=workers)
    batches = list(loader)
    assert [batch.shape[0] for batch in batches] == [6, 6, 6, 6, 6, 6, 4]
    assert batches[-1].shape[1] == 39_000
    assert batches[-1][3, :39_000].tolist() == list(range(39_000))


def test_what_a_collate_fn_returns_comes_back_as_it_is(shared: SharedWorkers, workers: int):
    def collate(samples: list[np.ndarray]) -> Pair:
        return Pair({"kept": ("as", {1, 2})}, [np.stack(samples), torch.zeros(2).bfloat16()])

    batch = next(iter(shared.loader(Images(), 2, collate_fn=collate, workers=workers)))
    assert isinstance(batch, Pair)
    assert batch.index == {"kept": ("as", {1, 2})}
    assert isinstance(batch.values[0], np.ndarray)
    assert batch.values[0].shape == (2, 512, 512)
    assert batch.values[1].dtype == torch.bfloat16


def test_batch_size_none_gives_samples(shared: SharedWorkers, workers: int):
    samples = list(shared.loader(Draws(3), None, workers=workers))
    assert [sample["index"] for sample in samples] == [0, 1, 2]
    assert isinstance(samples[0]["pixels"], torch.Tensor)


def test_an_exception_reaches_the_caller_with_sample_and_traceback(
    shared: SharedWorkers, workers: int
):
    loader = shared.loader(Raises(20), 4, workers=workers)
    with pytest.raises(WorkerError, match="sample 13") as caught:
        list(loader)
    assert "ZeroDivisionError: thirteen" in str(caught.value)
    assert "sample_datasets.py" in str(caught.value)  # the traceback names the user's line
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_loader_works_again_after_an_exception(workers: int):
    loader = DataLoader(plain_datasets.Raises(13), 4, num_workers=workers)
    failing = DataLoader(plain_datasets.Raises(20), 4, num_workers=workers)
    for _ in range(2):
        with pytest.raises(WorkerError):
            list(failing)
        assert len(list(loader)) == 4


def test_iterables_are_split_as_in_torch(shared: SharedWorkers, workers: int):
    ours = shared.loader(Numbers(23), 3, workers=workers)
    torchs = torch.utils.data.DataLoader(Numbers(23), 3, num_workers=workers)
    for _ in range(2):
        for mine, yours in zip(ours, torchs, strict=True):
            assert_same(mine, yours)


def test_a_given_sampler_is_the_order(shared: SharedWorkers, workers: int):
    order = [5, 3, 3, 9, 0]
    batches = list(shared.loader(Draws(10), 2, sampler=order, workers=workers))
    assert [batch["index"].tolist() for batch in batches] == [[5, 3], [3, 9], [0]]
    given = list(shared.loader(Draws(10), batch_sampler=[[1], [2, 3, 4]], workers=workers))
    assert [batch["index"].tolist() for batch in given] == [[1], [2, 3, 4]]


def test_leaving_a_loop_early_and_iterating_side_by_side(workers: int):
    loader = DataLoader(plain_datasets.Draws(30), 3, num_workers=workers)
    for _ in loader:
        break
    whole = [batch["index"].tolist() for batch in loader]
    assert list(chain(*whole)) == list(range(30))
    pairs = list(zip(loader, loader, strict=True))
    assert [a["index"].tolist() for a, _ in pairs] == [b["index"].tolist() for _, b in pairs]


def test_the_models_generators_are_left_alone(shared: SharedWorkers, workers: int):
    torch.manual_seed(5)
    np.random.seed(5)
    expected = (torch.rand(3), np.random.rand(3))
    torch.manual_seed(5)
    np.random.seed(5)
    list(shared.loader(Draws(9), 3, workers=workers))
    assert torch.equal(torch.rand(3), expected[0])
    np.testing.assert_array_equal(np.random.rand(3), expected[1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 0}, "at least one"),
        ({"batch_size": 4, "global_batch": 8}, "give one of them"),
        ({"global_batch": 8, "rank": 0, "world": 3}, "nearest that are: 6 and 9"),
        ({"sampler": [1], "shuffle": True}, "exclude"),
        ({"batch_sampler": [[1]], "drop_last": True}, "excludes"),
        ({"num_workers": -1}, "0 or more"),
        ({"rank": 1}, "give both"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, object], words: str):
    with pytest.raises(UsageError, match=words):
        DataLoader(Draws(9), **arguments)
