"""What a rank records of its iterators: batches that lie ready, and what came."""

from __future__ import annotations

import select
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from headrace.observe.probe.iterator_state import (
    IteratorState,
    delivered,
    known_state,
    ready_count,
    state_of,
)
from headrace.observe.probe.sampler_reads import SamplerReads, register_sampler_reads


def iterator_of(tasks: dict[int, tuple[Any, ...]], outstanding: int) -> Any:
    """Return the part of one of torch's iterators that says which batches have come."""
    return SimpleNamespace(_task_info=tasks, _tasks_outstanding=outstanding)


@pytest.mark.parametrize(
    ("tasks", "outstanding", "held"),
    [
        ({}, 0, 0),
        ({3: (0,), 4: (1,)}, 2, 0),
        ({3: (0,), 4: (1, "batch")}, 1, 1),  # came before the one that is next
        ({3: (0,), 4: (1, "batch"), 5: (0, "batch")}, 1, 2),
        ({3: (0,), 4: (1,)}, 1, 0),  # a worker's stream has ended
        ({3: (0,), 4: (1, "batch"), 5: (1,)}, 1, 1),
    ],
)
def test_batches_that_have_come_are_ready(
    tasks: dict[int, tuple[Any, ...]], outstanding: int, held: int
):
    iterator, in_queue = iterator_of(tasks, outstanding), []
    ready = ready_count(iterator, lambda _: lambda _: in_queue)
    assert ready is not None
    assert ready(iterator) == held
    in_queue.append("a batch")
    assert ready(iterator) == 1  # a pinning thread's queue does not tell how many it has


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize(("put", "is_polled"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_queue_is_polled_where_its_count_does_not_say_whether_a_batch_is_there(
    put: int, is_polled: bool, is_there: bool
):
    """Two workers have put so many, of which each may still be writing one."""
    iterator, polls = iterator_of({}, 0), []

    def poll(timeout_ms: int) -> bool:
        polls.append(timeout_ms)
        return is_there

    semaphore = SimpleNamespace(_semlock=SimpleNamespace(_get_value=lambda: 100 - put))
    iterator._data_queue = SimpleNamespace(_sem=semaphore, _maxsize=100)
    iterator._num_workers = 2
    ready = ready_count(iterator, lambda _: poll)
    assert ready is not None
    assert ready(iterator) == (put if is_there or not is_polled else 0)
    assert polls == [0] * is_polled


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


class Numbers(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_the_count_of_a_queue_agrees_with_polling_it(persistent_workers: bool):
    loader = DataLoader(Numbers(), 4, num_workers=2, persistent_workers=persistent_workers)
    for _ in range(2):
        iterator: Any = iter(loader)
        poller = select.poll()
        poller.register(iterator._data_queue._reader.fileno(), select.POLLIN)
        poll = poller.poll
        ready = ready_count(iterator, lambda _, poll=poll: poll)
        assert ready is not None
        while iterator._tasks_outstanding > 0:
            assert poll(10_000), "no batch comes"
            assert ready(iterator) >= 1
            next(iterator)
        assert ready(iterator) == len(iterator._task_info)
        list(iterator)


def test_an_iterator_without_workers_or_attributes_has_no_known_number():
    iterator = iter([1])
    assert ready_count(iterator, lambda _: lambda _: True)(iterator) == -1
    assert known_state(iterator) is None
    assert delivered(iterator, state_of(iterator), [1], ended=True) == (0, -1)


def test_samples_of_a_map_style_dataset_are_those_that_the_sampler_named():
    state = IteratorState()
    state.sampler = SamplerReads()
    state.sampler.add(0, [5, 6, 7, 8])
    state.sampler.spent_ns = 30
    iterator = SimpleNamespace(_rcvd_idx=1)
    assert delivered(iterator, state, object(), ended=False) == (4, 30)
    assert delivered(iterator, state, None, ended=True) == (0, 0)


@pytest.mark.parametrize(
    ("batch_size", "batch", "found"),
    [(4, "abc", 4), (4, [1, 2], 2), (4, torch.zeros(4, 2), 4), (None, torch.zeros(3, 2), 3)],
)
def test_samples_of_a_stream_are_those_asked_for_or_fewer(
    batch_size: int | None, batch: Any, found: int
):
    iterator: Any = iter(DataLoader(Stream(), batch_size))
    state = IteratorState()
    state.sampler = register_sampler_reads(iterator, DataLoader(Stream(), batch_size))
    assert state.sampler is not None
    state.sampler.spent_ns = 30
    assert delivered(iterator, state, batch, ended=False) == (found, 30)
    assert delivered(iterator, state, None, ended=True) == (0, 0)
