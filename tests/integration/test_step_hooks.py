"""The hooks of a training step: on their fast path they report what the recorder itself does."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from recorded import check, record_several

SEEDS = range(4)

Found = dict[tuple[int, str], dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return what each script printed, by its seed and by whether it could take the fast path."""
    scripts = [["varied_steps", str(seed), how] for seed in SEEDS for how in ("slow", "fast")]
    # By the first step it is known which thread trains: so all but the first begin alike.
    run = record_several(tmp_path_factory.mktemp("varied"), [["plain"], *scripts])
    check(run)
    parts = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {(part["seed"], part["how"]): part for part in parts}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_fast_path_reports_what_the_recorder_does(found: Found, seed: int):
    slow, fast = found[seed, "slow"], found[seed, "fast"]
    assert slow["fast_steps"] == 0
    assert fast["fast_steps"] > 10
    assert fast["reports"] == slow["reports"]
    assert fast["catch_ups"] == slow["catch_ups"]  # in steps that ask for no batch
    assert len(fast["reports"]) > 500


def test_all_kinds_of_reports_are_among_them(found: Found):
    names = Counter(name for part in found.values() for name, *_ in part["reports"])
    expected = {
        *("iterator_began", "iterator_ended", "fetch_began", "fetch_ended", "fetch_failed"),
        *("backward_began", "backward_ended", "optimizer_began", "optimizer_ended"),
    }
    assert set(names) == expected
