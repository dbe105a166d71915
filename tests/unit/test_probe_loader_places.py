"""Where the script constructed a loader, also where a library makes another one of it."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from typing import Any

from headrace.core.source_location import CallPlace
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


def script_place(places: tuple[CallPlace, CallPlace]) -> Place:
    return places[0].file, places[0].line


class Rows:
    """A dataset."""


def test_a_loader_that_a_library_rebuilds_is_where_the_script_made_its_own():
    registry, rows = LoaderRegistry(), Rows()
    construct, prepare, rebuild = function(SCRIPT, 20), function(SCRIPT, 25), function(TRAINER, 439)
    assert script_place(construct(registry.places_of, rows)) == (SCRIPT, 20)
    assert script_place(prepare(rebuild, registry.places_of, rows)) == (SCRIPT, 20)
    assert script_place(prepare(rebuild, rebuild, registry.places_of, rows)) == (SCRIPT, 20)


def test_a_loader_that_only_a_library_makes_is_where_the_script_called_it():
    registry, rows = LoaderRegistry(), Rows()
    train, build = function(SCRIPT, 30), function(TRAINER, 900)
    assert script_place(train(build, registry.places_of, rows)) == (SCRIPT, 30)
    function(SCRIPT, 20)(registry.places_of, Rows())  # of another dataset
    assert script_place(train(build, registry.places_of, rows)) == (SCRIPT, 30)


def test_a_dataset_that_is_gone_lends_its_place_to_none():
    registry = LoaderRegistry()
    construct, prepare, rebuild = function(SCRIPT, 20), function(SCRIPT, 25), function(TRAINER, 439)
    for _ in range(20):  # a new one may get the id of the one before
        construct(registry.places_of, Rows())
        assert script_place(prepare(rebuild, registry.places_of, Rows())) == (SCRIPT, 25)
    construct(registry.places_of, [1, 2])  # a list, which has no weak reference
    assert script_place(prepare(rebuild, registry.places_of, [1, 2])) == (SCRIPT, 25)
