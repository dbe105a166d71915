"""Modules that a worker imports before its first batch."""

from __future__ import annotations

import functools
from typing import Any

from headrace.data.loader.workers.pool import modules_of

SCRIPT = """
import json, wave
from fractions import Fraction as Ratio

def level(value):
    return json.dumps(value)

class Scale:
    def __call__(self, value):
        return [Ratio(part) for part in value]

class Composed:
    def __init__(self, *parts):
        self.parts = parts

class Images:
    def __init__(self, transform):
        self.transform = transform
        self.paths = ["a.jpg"] * 1000

    def __getitem__(self, index):
        return level(index)

    def collate(self, samples):
        return wave.open(samples)
"""


def script() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, names)  # noqa: S102 - what a script defines is in `__main__`
    return names


def test_modules_that_the_code_of_a_script_names_are_found():
    names = script()
    nested = names["Composed"](names["Composed"](names["Scale"]()))
    assert modules_of(nested, None) == ["fractions"]
    assert modules_of(names["Images"](nested), None) == ["fractions", "json", "wave"]
    assert modules_of([], names["level"]) == ["json"]
    assert modules_of([], functools.partial(names["level"], 1)) == ["json"]
    assert modules_of([], names["Images"](None).collate) == ["json", "wave"]


def test_what_a_module_defines_needs_that_module_and_no_more():
    assert modules_of([1, 2], functools.wraps) == ["functools"]


def test_parts_that_hold_one_another_end():
    names = script()
    composed = names["Composed"]()
    composed.parts = [composed]
    assert modules_of(composed, None) == []
