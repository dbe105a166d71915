"""The numbers of loaders: one a construction, in all processes that are a rank in turn."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from headrace.observe.probe import loaders
from headrace.observe.probe.rank_loaders import RankLoaders

TRAINING, EVALUATION, OTHER = (("train.py", line, 32, None) for line in (10, 20, 30))


class Process:
    """A process that constructs loaders of a rank, with the numbers that it has given."""

    def __init__(self, path: Path) -> None:
        self._loaders, self.given = RankLoaders(path), list[int]()

    def constructs(self, *constructions: Hashable | None) -> list[int]:
        numbers = []
        for each in constructions:
            least = max(self.given, default=-1) + 1
            numbers.append(self._loaders.new(each, self.given, least))
            self.given.append(numbers[-1])
        return numbers


def test_a_loader_has_the_number_that_an_earlier_process_gave_it(tmp_path: Path):
    path = tmp_path / "rank-0.loaders"
    assert Process(path).constructs(TRAINING, EVALUATION) == [0, 1]
    assert Process(path).constructs(EVALUATION, TRAINING) == [1, 0]
    assert Process(path).constructs(OTHER, TRAINING) == [2, 0]
    assert Process(path).constructs(EVALUATION, OTHER) == [1, 2]


def test_several_loaders_of_one_construction_have_a_number_each(tmp_path: Path):
    path = tmp_path / "rank-0.loaders"
    first, second = Process(path), Process(path)
    assert first.constructs(TRAINING, TRAINING) == [0, 1]
    assert second.constructs(TRAINING, OTHER, TRAINING, TRAINING) == [0, 2, 1, 3]
    assert first.constructs(TRAINING, EVALUATION) == [3, 4]


def test_a_loader_of_unknown_construction_has_a_number_of_its_own(tmp_path: Path):
    path = tmp_path / "rank-0.loaders"
    assert Process(path).constructs(None, TRAINING, None) == [0, 1, 2]
    assert Process(path).constructs(None, TRAINING) == [3, 1]


def test_numbers_that_were_given_without_the_file_are_not_given_again(tmp_path: Path):
    process = Process(tmp_path / "rank-0.loaders")
    process.given += [0, 1, 2]
    assert process.constructs(TRAINING, EVALUATION) == [3, 4]


@pytest.mark.parametrize("damage", [b"1 0123", b"1", b"x" * 200])
def test_a_line_that_was_cut_off_is_written_over(tmp_path: Path, damage: bytes):
    path = tmp_path / "rank-0.loaders"
    assert Process(path).constructs(TRAINING) == [0]
    path.write_bytes(path.read_bytes() + damage)
    assert Process(path).constructs(EVALUATION, TRAINING, OTHER) == [1, 0, 2]
    assert Process(path).constructs(OTHER, EVALUATION, TRAINING) == [2, 1, 0]


@pytest.mark.parametrize("damage", [b"\n", b"one 12\n", b"\xff\xfe\n", b"-3 12\n", b"7\n"])
def test_lines_that_are_none_are_passed_over(tmp_path: Path, damage: bytes):
    path = tmp_path / "rank-0.loaders"
    first = Process(path)
    assert first.constructs(TRAINING) == [0]
    path.write_bytes(path.read_bytes() + damage)
    later = Process(path).constructs(TRAINING, EVALUATION)
    assert later[0] == 0
    assert first.constructs(EVALUATION) == later[1:]


def unpickled(loader: Any, protocol: int) -> Any:
    return pickle.loads(pickle.dumps(loader, protocol))


def loaded(loader: Any) -> Any:
    file = io.BytesIO()
    torch.save(loader, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    ("copied", "known"),
    [
        (loaded, -1),
        *((lambda loader, each=each: unpickled(loader, each), -1) for each in range(6)),
        (copy.copy, 3),
        (copy.deepcopy, 3),
    ],
)
def test_a_number_is_of_use_where_it_was_given(copied: Callable[[Any], Any], known: int):
    """Not where a loader was pickled for, or in another run."""
    rows: Any = [1, 2]
    loader = DataLoader(rows)
    vars(loader)["_headrace_loader"] = loaders._Number(3)
    assert loaders._known_number(copied(loader)) == known
    assert loaders._known_number(loader) == 3


class Rows:
    """A loader, like torch's: one function calls another one for an iterator."""

    def __init__(self, number: int) -> None:
        vars(self)["_headrace_loader"] = number


def test_threads_that_make_iterators_at_once_are_distinguished():
    """As one that evaluates while another one trains: to start workers takes seconds."""
    registry = loaders.LoaderRegistry()
    calls: list[tuple[int, bool]] = []
    made: list[object] = []
    registry.on_iterator = lambda number, begins: calls.append((number, begins))
    training, evaluation = Rows(0), Rows(1)

    def get_iterator(loader: Rows) -> object:
        return registry.iterate(lambda _: object(), loader)

    def begin(_: Rows) -> object:
        thread = threading.Thread(
            target=lambda: made.append(registry.iterate(get_iterator, evaluation))
        )
        thread.start()
        thread.join(60)
        return get_iterator(training)

    made.append(registry.iterate(begin, training))
    assert len(made) == 2
    assert calls == [(0, True), (1, True), (1, False), (0, False)]
    get_iterator(training)
    assert calls[4:] == [(0, True), (0, False)]
