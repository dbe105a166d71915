"""A loader whose rank 0 reads for all ranks, as Accelerate's: each rank's waits are its own."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.observe.probe import library_batches
from headrace.observe.probe.iterator_state import known_state
from headrace.observe.probe.library_batches import RecordedIterator
from headrace.observe.probe.loaders import LoaderRegistry


class Base:
    """The loader within, that rank 0 reads."""


class Dispatcher:
    """Like accelerate.data_loader.DataLoaderDispatcher."""

    def __init__(self) -> None:
        self.base_dataloader = Base()

    def __iter__(self) -> Iterator[int]:
        yield from range(3)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> LoaderRegistry:
    made = LoaderRegistry()
    monkeypatch.setattr(library_batches, "LOADER_REGISTRY", made)
    return made


def hooked() -> Any:
    dispatcher = type("DataLoaderDispatcher", (Dispatcher,), {"__iter__": Dispatcher.__iter__})
    library_batches.hook_accelerate(SimpleNamespace(DataLoaderDispatcher=dispatcher))  # type: ignore[arg-type]
    return dispatcher()


def test_its_batches_are_those_of_the_loader_within(registry: LoaderRegistry):
    loader = hooked()
    loader.base_dataloader.__dict__["_headrace_loader"] = 4
    for epoch in range(2):
        batches = iter(loader)
        assert isinstance(batches, RecordedIterator)
        state = known_state(batches)
        assert state is not None
        assert (state.loader, state.epoch, state.fetches) == (4, epoch, 0)
        assert list(batches) == [0, 1, 2]
    assert registry.counted_outside == {4}


def test_a_loader_that_is_not_recorded_stays_as_it_is(registry: LoaderRegistry):
    batches = iter(hooked())
    assert not isinstance(batches, RecordedIterator)
    assert list(batches) == [0, 1, 2]
    assert registry.counted_outside == set()


def test_in_an_old_release_the_dispatcher_is_the_loader(registry: LoaderRegistry):
    loader = hooked()
    del loader.base_dataloader
    loader.__dict__["_headrace_loader"] = 2
    assert list(iter(loader)) == [0, 1, 2]
    assert registry.counted_outside == {2}
