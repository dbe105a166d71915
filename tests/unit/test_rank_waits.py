"""Ranks that wait, within a training step, for one that evaluates or saves: whose time that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.observe.whatif.train_steps import read_steps
from played_script import LOOP, SAVE, Script, account, epochs, found
from run_tables import SCRIPT, stack

LONG_MS, RANKS = 4000, 4
BACKWARD = stack(LOOP, f"{SCRIPT}:61:train_step")


def alone(script: Script, each: Callable[[Script], Any], wait: dict[str, float]) -> Script:
    """Return ranks of which rank 0 does something after each epoch, and the others wait for it.

    They do in the first step of the next epoch, in some phases by ms.
    """
    epochs(script, each, count=5)
    for rank in range(1, RANKS):
        other = Script(rank=rank, tables=script.tables)
        for epoch in range(5):
            other.iterates()
            if epoch:
                usual = {"forward": 15, "backward": 23, "sync": 0, "optimizer": 1, "other": 0}
                began = other.now
                other.train(1, **{name: ms + wait.get(name, 0) for name, ms in usual.items()})
                other.seen(BACKWARD, "backward", began)
            other.train(49 if epoch else 50)
    return script


def saves(each: Script) -> Script:
    return each.between(LONG_MS, SAVE)


def validates(each: Script) -> Script:
    began = each.now
    each.evaluate(batches=100, forward=LONG_MS / 100 - 1)
    return each.seen(stack(LOOP, f"{SCRIPT}:30:validate"), "forward", began)


def starves(each: Script) -> Script:
    return each.evaluate(batches=100, wait_ms=LONG_MS / 100 - 15)


WAITS = [{"backward": LONG_MS}, {"sync": LONG_MS, "backward": 0}, {"forward": LONG_MS}]


ALONE = [
    (saves, "most of it in save at train.py:77", "between-epochs", "between"),
    (validates, "in validate at train.py:30", "evaluation", "evaluation"),
]


@pytest.mark.parametrize(
    ("does", "named", "rule", "part", "wait"),
    [(*each, wait) for each in ALONE for wait in WAITS] + [(*ALONE[1], {"other": LONG_MS})],
)
def test_what_one_rank_does_alone_costs_all_of_them_its_time(
    does: Callable[[Script], Any], named: str, rule: str, part: str, wait: dict[str, float]
):
    diagnosis, rules = found(alone(Script(), does, wait))
    assert named in diagnosis.verdict.sentence
    assert list(rules) == [rule]
    # 5 epochs of 50 steps of 40 ms; the last time nobody waits.
    share = 4.25 * LONG_MS / (4.25 * LONG_MS + 5 * 50 * 40)
    assert diagnosis.verdict.time_shares[part] == pytest.approx(share, abs=0.03)
    assert sum(diagnosis.verdict.time_shares.values()) == pytest.approx(1.0)


def test_an_evaluation_of_one_rank_that_waits_for_its_data_is_told_with_all_its_time():
    diagnosis, rules = found(alone(Script(), starves, WAITS[0]))
    facts = rules["evaluation"].evidence
    assert facts["data_wait_seconds"] == pytest.approx(4.25 / 5 * 500 * 0.025, rel=0.1)
    assert "which has no workers" in diagnosis.verdict.sentence


def test_steps_are_as_long_as_without_the_wait():
    steps = read_steps(alone(Script(), saves, WAITS[0]).tables)
    assert steps.wall_ns.max() == pytest.approx(40e6, rel=0.01)
    assert steps.share("backward") == pytest.approx(23 / 40, rel=0.01)
    assert steps.starts_loader.sum() == 4 * RANKS


def test_a_rank_that_trains_on_meanwhile_waits_for_none():
    script = epochs(Script(), saves)
    epochs(Script(rank=1, tables=script.tables), lambda each: each.train(100), count=4)
    wall = account(script)
    assert wall.seconds("between") == pytest.approx(4 * LONG_MS / 1e3 / 2)
    assert wall.between.count == 4


def test_what_a_rank_does_itself_while_another_waits_for_it_is_no_wait():
    """Rank 1 saves in its last step of each epoch; rank 0 waits for that in a barrier."""
    barrier = stack(LOOP, "/venv/lib/python3.11/site-packages/torch/distributed/"
                    "distributed_c10d.py:4000:barrier")  # fmt: skip
    script = epochs(Script(), lambda each: each.between(LONG_MS, barrier))
    other = Script(rank=1, tables=script.tables)
    for _ in range(4):
        other.iterates().train(49)
        began = other.now
        other.train(1, other=LONG_MS).seen(SAVE, "other", began)
    steps = read_steps(script.tables)
    assert (steps.wall_ns > 1e9).sum() == 4
