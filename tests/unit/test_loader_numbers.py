"""Loaders that ranks number differently, as one of them constructs more than the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.whatif.loader_numbers import changed_numbers
from headrace.observe.whatif.tables import CachedTables, columns
from run_tables import SCRIPT, Run, RunTables, play


def loaders(*lines_of_ranks: list[int]) -> dict[str, Any]:
    """Return a table of loaders, of each rank those that these lines construct, in order."""
    rows = [
        (rank, number, line)
        for rank, lines in enumerate(lines_of_ranks)
        for number, line in enumerate(lines)
    ]
    ranks, numbers, lines = (np.array(each, np.int64) for each in zip(*rows, strict=True))
    texts = {name: np.array(["x"] * len(rows), object) for name in ("kind", "dataset", "style")}
    files = np.array([SCRIPT] * len(rows), object)
    return {"rank": ranks, "loader": numbers, "line": lines, "file": files, **texts}


@pytest.mark.parametrize(
    ("lines", "changes"),
    [
        ([[40], [40]], {}),
        ([[40, 44], [40, 44], [40, 44]], {}),
        ([[33, 40], [40]], {(1, 0): 1}),  # rank 0 alone validates, or counts its classes
        ([[40], [33, 40]], {(0, 0): 1}),
        ([[33, 40, 44], [40, 44]], {(1, 0): 1, (1, 1): 2}),
        ([[40, 44], [44, 40]], {(1, 0): 1, (1, 1): 0}),
        ([[40, 40, 50], [40, 50]], {(1, 1): 2}),  # one line constructs several
        ([[40], [42]], {}),  # each by a line of its own: they feed the same steps
        ([[40, 44], [40, 50]], {}),
        ([[33, 40], [40, 50]], {(1, 0): 1, (1, 1): 2}),
    ],
)
def test_a_loader_has_the_number_that_it_has_with_the_rank_of_most_loaders(lines, changes):
    assert changed_numbers(loaders(*lines)) == changes


def test_no_loaders_have_no_other_numbers():
    assert changed_numbers(columns(RunTables(), "loaders")) == {}


def with_validation_on_rank_0(tables: RunTables) -> RunTables:
    for name in ("loaders", "steps", "fetches", "batches", "processes", "transforms", "stacks"):
        for row in tables.rows[name]:
            if row["rank"] == 0 and row["loader"] == 0:
                row["loader"] = 1
    tables.add("loaders", rank=0, loader=0, kind="torch", dataset="Held", style="map", workers=1,
               prefetch_factor=2, batch_size=32, in_order=1, start_method="fork", file=SCRIPT,
               line=33)  # fmt: skip
    return tables


def test_a_loader_of_one_rank_changes_nothing_of_the_diagnosis():
    run = Run(ranks=2, workers=2, batches=60, service_ms=30)
    alike, unlike = diagnose(play(run)), diagnose(with_validation_on_rank_0(play(run)))
    assert alike.findings[0].rule == "too-few-workers"
    assert "train.py:40" in alike.verdict.sentence
    assert unlike.verdict.sentence == alike.verdict.sentence
    assert [each.rule for each in unlike.findings] == [each.rule for each in alike.findings]


def test_every_table_of_ranks_and_loaders_has_the_common_numbers():
    tables = CachedTables(with_validation_on_rank_0(play(Run(ranks=2, batches=20))))
    for name in ("steps", "fetches", "batches"):
        rows = tables.columns(name)
        assert set(rows["loader"].tolist()) == {1}
        assert set(rows["rank"].tolist()) == {0, 1}
        assert rows.having(rank=1)["loader"].tolist() == [1] * rows.having(rank=1).count
    described = tables.columns("loaders").having(loader=1)
    assert described["line"].tolist() == [40, 40]
