"""Rank and world size from the launcher, the process group or the caller."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from headrace import DataLoader
from headrace.core.errors import UsageError
from headrace.core.world import World, current_world

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
