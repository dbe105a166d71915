"""Stopping anywhere and resuming is the same as not stopping, at any world size."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace import DataLoader
from headrace.core.errors import CheckpointError, DatasetError
from headrace.data.loader.dataloader import DataLoader as Loader
from plain_datasets import Indices, RandomStream


def make(samples: int, rank: int = 0, world: int = 1, batch: int = 12, **more) -> Loader:
    return DataLoader(
        Indices(samples), shuffle=True, num_workers=0, global_batch=batch, rank=rank, world=world,
        seed=7, **more,
    )  # fmt: skip


def stop_after(loader: Loader, batches: int) -> tuple[list[list[int]], dict]:
    """Take some batches and the state inside the loop, as a checkpoint does."""
    taken: list[list[int]] = []
    state = loader.state_dict()
    for batch in loader:
        taken.append(batch.tolist())
        state = loader.state_dict()
        if len(taken) >= batches:
            break
    return taken, json.loads(json.dumps(state))


@settings(max_examples=40, deadline=None)
@given(
    samples=st.integers(12, 200),
    stop=st.integers(1, 20),
    world_before=st.sampled_from([1, 2, 4]),
    world_after=st.sampled_from([1, 2, 3, 4]),
    batch_after=st.sampled_from([12, 24, 36]),
    drop_last=st.booleans(),
)
@example(samples=145, stop=12, world_before=1, world_after=2, batch_after=12, drop_last=False)
def test_each_sample_comes_once_across_a_change_of_world_and_batch(
    samples: int, stop: int, world_before: int, world_after: int, batch_after: int, drop_last: bool
):
    before = [stop_after(make(samples, rank, world_before), stop) for rank in range(world_before)]
    states = [state for _, state in before]
    assert all(state == states[0] for state in states)
    assert len(json.dumps(states[0])) < 1024
    seen = [i for taken, _ in before for batch in taken for i in batch]
    taken, steps = sorted(seen), set()
    cannot_be_dealt = not drop_last and 0 < samples - len(taken) < world_after
    for rank in range(world_after):
        loader = make(samples, rank, world_after, batch_after, drop_last=drop_last)
        loader.load_state_dict(states[0])
        batches = [batch.tolist() for batch in loader]
        steps.add(len(batches))
        seen += [i for batch in batches for i in batch]
        assert loader.state_dict()["epoch"] == 1
    assert len(steps) == 1
    assert len(set(seen)) == len(seen)
    if drop_last:
        assert samples - len(seen) < batch_after
    else:  # fewer than the ranks, with no batch to join, are left out (docs/shuffle.md)
        assert sorted(seen) == (taken if cannot_be_dealt else list(range(samples)))


def test_fewer_samples_than_ranks_are_left_out_of_the_epoch_with_a_warning():
    _, state = stop_after(make(145), 12)
    for rank in range(2):
        loader = make(145, rank, world=2)
        loader.load_state_dict(state)
        with pytest.warns(UserWarning, match="last 1 samples of the epoch are left out"):
            assert list(loader) == []
        assert loader.epoch == 1


@settings(max_examples=30, deadline=None)
@given(samples=st.integers(12, 100), stop=st.integers(1, 12))
def test_going_on_equals_not_stopping(samples: int, stop: int):
    whole = make(samples)
    epochs = [[batch.tolist() for batch in whole] for _ in range(2)]
    taken, state = stop_after(make(samples), stop)
    resumed = make(samples)
    resumed.load_state_dict(state)
    assert taken + [batch.tolist() for batch in resumed] == epochs[0]
    assert [batch.tolist() for batch in resumed] == epochs[1]


def test_a_state_from_after_the_loop_is_the_next_epochs_begin():
    whole = make(50)
    first, second = ([batch.tolist() for batch in whole] for _ in range(2))
    loader = make(50)
    list(loader)
    resumed = make(50)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.epoch == 1
    assert [batch.tolist() for batch in resumed] == second != first


def test_a_state_nobody_iterated_from_is_kept():
    loader = make(50)
    _, state = stop_after(loader, 2)
    resumed = make(50)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state


def test_a_place_among_batches_is_for_the_same_batches_alone():
    # In this process: as for one worker, and nobody imports torch for the iterable a second time.
    arguments = {"batch_size": 3, "num_workers": 0}
    loader = DataLoader(RandomStream(), **arguments)
    next(iter(loader))
    state = loader.state_dict()
    for changed, words in (
        ({"batch_size": 4}, r"3 sample\(s\) a batch, and the loader has 4"),
        ({"world": 2, "rank": 1}, r"1 rank\(s\), and the loader has 2"),
        ({"num_workers": 2}, r"1 worker\(s\), and the loader has 2"),
    ):
        with pytest.raises(CheckpointError, match=words):
            DataLoader(RandomStream(), **arguments | changed).load_state_dict(state)
    DataLoader(RandomStream(), **arguments).load_state_dict(state)
    DataLoader(RandomStream(), **arguments | {"num_workers": 1}).load_state_dict(state)


def test_a_samplers_place_is_the_same_for_any_number_of_workers():
    loader = DataLoader(Indices(10), 3, sampler=range(10), num_workers=0)
    next(iter(loader))
    resumed = DataLoader(Indices(10), 3, sampler=range(10), num_workers=2)
    resumed.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in resumed] == [[3, 4, 5], [6, 7, 8], [9]]


def test_a_given_samplers_state_is_its_count():
    order = [3, 1, 4, 1, 5, 9, 2, 6]
    loader = DataLoader(Indices(10), 3, sampler=order, num_workers=0)
    taken, state = stop_after(loader, 1)
    assert state["position"] == 1
    asked: list[int] = []

    class Asked(Indices):
        def __getitem__(self, index: int) -> int:
            asked.append(index)
            return index

    resumed = DataLoader(Asked(10), 3, sampler=order, num_workers=0)
    resumed.load_state_dict(state)
    assert taken + [batch.tolist() for batch in resumed] == [[3, 1, 4], [1, 5, 9], [2, 6]]
    assert asked == [1, 5, 9, 2, 6]  # of what was delivered before, nothing is read again


def test_states_of_other_datasets_and_other_loaders_are_refused():
    _, state = stop_after(make(50), 1)
    with pytest.raises(DatasetError, match="belongs to dataset"):
        make(51).load_state_dict(state)
    with pytest.raises(CheckpointError, match="kind 'plan'"):
        DataLoader(Indices(50), 3, sampler=[1], num_workers=0).load_state_dict(state)
    with pytest.raises(CheckpointError):
        make(50).load_state_dict({})


@pytest.mark.parametrize("state", [None, 5, "x", [1], {}])
@pytest.mark.parametrize("sampler", [None, [1]])
def test_what_is_no_state_is_refused(state, sampler):
    with pytest.raises(CheckpointError):
        DataLoader(Indices(9), sampler=sampler, num_workers=0).load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in ("epoch", "position", "seed") for value in (None, "1", 1.5)]
    + [("epoch", -1), ("position", -1)],
)
def test_a_damaged_place_among_batches_is_refused(name, value):
    loader = DataLoader(Indices(9), sampler=[1], num_workers=0)
    with pytest.raises(CheckpointError, match="no state of a loader"):
        loader.load_state_dict({**loader.state_dict(), name: value})


def test_numpys_numbers_make_the_same_loader_and_a_state_that_is_json():
    for more in ({"sampler": [1, 2, 3]}, {"shuffle": True}):
        loader = DataLoader(Indices(9), 2, seed=3, num_workers=0, **more)
        size, seed, workers = np.int64(2), np.uint8(3), np.int32(0)
        same = DataLoader(Indices(9), size, seed=seed, num_workers=workers, **more)
        assert json.dumps(same.state_dict()) == json.dumps(loader.state_dict())
        assert [batch.tolist() for batch in same] == [batch.tolist() for batch in loader]
