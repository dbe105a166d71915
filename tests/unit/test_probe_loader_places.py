"""Where the script constructed a loader, also where a library makes another one of it."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import DataLoader

from headrace.core.source_location import CallPlace, call_places
from headrace.observe.probe import loaders
from headrace.observe.probe.loaders import LoaderRegistry

TRAINER = f"{sysconfig.get_path('purelib')}/accelerate/data_loader.py"
SCRIPT = "/home/ann/train.py"
Place = tuple[str, int]


def function(file: str, line: int, source: str = "call(*arguments)") -> Callable[..., Any]:
    """Return a function at a line of a file, which calls another one."""
    names: dict[str, Any] = {}
    body = "\n" * (line - 1) + f"def function(call, *arguments): return {source}"
    exec(compile(body, file, "exec"), names)  # noqa: S102 - a frame with this file and line
    found: Callable[..., Any] = names["function"]
    return found


class Rows:
    """A dataset."""


class BatchSampler:
    """A sampler of batches, as of Accelerate for several ranks."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size


class Loader:
    """A loader, like torch's."""

    def __init__(
        self, dataset: object, *, batch_size: int | None = 8, num_workers: int = 2,
        collate_fn: Callable[..., Any] = list, batch_sampler: BatchSampler | None = None,
    ) -> None:  # fmt: skip
        self.dataset = dataset
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.batch_sampler = batch_sampler


def copied(loader: Loader) -> Loader:
    """Return a copy as Accelerate makes one, which samples whole batches."""
    sampler = loader.batch_sampler or BatchSampler(loader.batch_size or 0)
    return Loader(
        loader.dataset, batch_size=None, num_workers=loader.num_workers,
        collate_fn=loader.collate_fn, batch_sampler=sampler,
    )  # fmt: skip


class Iterator:
    """An iterator over a loader."""


class Script:
    """A script's loaders, their lines and what libraries make of them."""

    def __init__(self) -> None:
        self.registry = LoaderRegistry()

    def makes(self, line: int, loader: Loader) -> Loader:
        """Have a line of the script construct a loader."""
        self._number(loader)
        places = self.registry.places_of(loader, *function(SCRIPT, line)(call_places))
        assert places[1] == CallPlace()
        return loader

    def place(self, line: int, loader: Loader) -> Place:
        """Return the script's place of a loader that a library makes, called at a line."""
        self._number(loader)
        made = function(SCRIPT, line)(function(TRAINER, 900), function(TRAINER, 439), call_places)
        script, library = self.registry.places_of(loader, *made)
        assert (library.file == TRAINER) == (script.line == line)
        return script.file, script.line

    def iterates(self, loader: Loader) -> None:
        self.registry.mark(Iterator(), vars(loader)["_headrace_loader"])

    def _number(self, loader: Loader) -> None:
        vars(loader)["_headrace_loader"] = self.registry._numbers.new()


def test_a_loader_that_a_library_rebuilds_is_where_the_script_made_its_own():
    script = Script()
    loader = script.makes(20, Loader(Rows()))
    copy = copied(loader)
    assert script.place(25, copy) == (SCRIPT, 20)
    again = copied(copy)
    assert script.place(26, again) == (SCRIPT, 20)
    del loader, copy
    assert script.place(27, copied(again)) == (SCRIPT, 20)


def test_a_loader_that_only_a_library_makes_is_where_the_script_called_it():
    script, rows = Script(), Rows()
    assert script.place(30, Loader(rows)) == (SCRIPT, 30)
    other = script.makes(20, Loader(Rows()))
    assert script.place(30, Loader(rows)) == (SCRIPT, 30)
    assert other.dataset is not rows


def test_a_dataset_that_is_gone_lends_its_place_to_none():
    script = Script()
    for _ in range(20):  # a new one may get the id of the one before
        script.makes(20, Loader(Rows()))
        assert script.place(25, Loader(Rows())) == (SCRIPT, 25)


def test_a_list_lends_its_place_to_loaders_of_itself_alone():
    script = Script()  # it has no weak reference
    loader = script.makes(20, Loader([1, 2]))
    assert script.place(25, copied(loader)) == (SCRIPT, 20)
    assert script.place(26, Loader([1, 2])) == (SCRIPT, 26)


def test_a_librarys_own_loader_is_not_where_the_script_read_the_dataset_for_statistics():
    script, rows = Script(), Rows()
    statistics = script.makes(20, Loader(rows, batch_size=256, num_workers=0))
    script.iterates(statistics)
    own = Loader(rows, batch_size=256, num_workers=4)
    assert script.place(30, own) == (SCRIPT, 30)
    assert script.place(30, copied(own)) == (SCRIPT, 30)
    assert script.place(30, Loader(rows, batch_size=256, num_workers=0, collate_fn=tuple))[1] == 30
    # As many trainers leave workers and collating as they are by default.
    own = Loader(rows, batch_size=32, num_workers=0)
    assert script.place(30, own) == (SCRIPT, 30)
    assert script.place(30, copied(own)) == (SCRIPT, 30)


def test_a_copy_is_where_the_loader_with_its_settings_was_made():
    script, rows = Script(), Rows()
    first = script.makes(20, Loader(rows, num_workers=4))
    second = script.makes(21, Loader(rows, num_workers=0))
    assert script.place(30, copied(first)) == (SCRIPT, 20)
    assert script.place(31, copied(second)) == (SCRIPT, 21)
    for each in (first, second):
        script.iterates(each)
    assert script.place(32, copied(first)) == (SCRIPT, 20)
    latest = script.makes(22, Loader(rows, num_workers=4))
    assert script.place(33, copied(latest)) == (SCRIPT, 22)


def test_a_loader_whose_first_batch_the_script_looked_at_is_still_the_one_that_is_copied():
    script, rows = Script(), Rows()
    loader = script.makes(20, Loader(rows))
    script.iterates(loader)
    assert script.place(30, copied(loader)) == (SCRIPT, 20)


def test_a_copy_with_other_settings_is_where_the_latest_unused_loader_was_made():
    script, rows = Script(), Rows()
    loader = script.makes(20, Loader(rows))
    statistics = script.makes(21, Loader(rows, batch_size=256))
    script.iterates(statistics)
    changed = Loader(rows, batch_size=loader.batch_size, collate_fn=tuple)
    assert script.place(30, changed) == (SCRIPT, 20)


def test_a_copy_is_of_a_loader_that_still_exists():
    script, rows = Script(), Rows()
    script.makes(20, Loader(rows))
    assert script.place(30, Loader(rows)) == (SCRIPT, 30)


@pytest.mark.parametrize(
    ("given", "recorded"), [(None, 0), ("", 0), (0, 0), (True, 1), ("cuda", 1), ([1], 1)]
)
def test_what_torch_takes_for_true_or_false_is_recorded_as_that(given: Any, recorded: int):
    rows: Any = [1, 2]
    loader = DataLoader(rows, pin_memory=given, persistent_workers=given and False)
    loader.in_order = given
    _, _, _, _, _, _, pinned, persistent, in_order, _ = loaders._describe_torch(loader)
    assert (pinned, persistent, in_order) == (recorded, 0, recorded)
