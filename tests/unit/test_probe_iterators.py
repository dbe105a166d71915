"""What a rank records of its iterators: batches that lie ready, and what came."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.observe.probe.iterator_state import (
    IteratorState,
    delivered,
    known_state,
    ready_batches,
    state_of,
)
from headrace.observe.probe.sampler_reads import SamplerReads


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
    state = state_of(iterator)
    made: list[Any] = []

    def new_poll(of: Any) -> Callable[[int], object]:
        made.append(of)
        return lambda _: in_queue

    assert ready_batches(iterator, state, new_poll) == held
    in_queue.append("a batch")
    assert ready_batches(iterator, state, new_poll) == held + 1
    assert made == [iterator]


def test_an_iterator_without_workers_or_attributes_has_no_known_number():
    iterator = iter([1])
    assert ready_batches(iterator, state_of(iterator), lambda _: lambda _: 1) == -1
    assert known_state(iterator) is None
    assert delivered(iterator, state_of(iterator), [1], ended=True) == (0, -1)


@pytest.mark.parametrize(
    ("is_stream", "batch", "found"), [(False, object(), 4), (True, "abc", 4), (True, [1, 2], 2)]
)
def test_samples_are_those_that_the_sampler_named(is_stream: bool, batch: Any, found: int):
    state = IteratorState()
    state.sampler = SamplerReads(is_stream=is_stream)
    state.sampler.add(0, [5, 6, 7, 8])
    state.sampler.spent_ns = 30
    iterator = SimpleNamespace(_rcvd_idx=1)
    assert delivered(iterator, state, batch, ended=False) == (found, 30)
    assert delivered(iterator, state, None, ended=True) == (0, 0)
