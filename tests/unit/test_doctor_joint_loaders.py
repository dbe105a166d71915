"""What the doctor says where each step takes batches of two loaders, and waits for either."""

from __future__ import annotations

import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.findings import Remedy
from headrace.observe.whatif.comparison import compare
from run_tables import AUGMENT, SCRIPT, WORKER_LOOP, Run, RunTables, play, stack

CROPS, BLURS = f"{AUGMENT}:5:crop", f"{AUGMENT}:25:blur"


def two_loaders(
    *,
    share: float,
    workers: tuple[int, int] = (1, 1),
    code: str = CROPS,
    every: int = 1,
    nested: bool = False,
) -> RunTables:
    """Return a run whose steps also take batches of a second loader.

    Those need a `share` of the time that batches of the first need, and are taken every so many
    steps; or by the dataset of the first, if `nested`.
    """
    run = Run(workers=workers[0], service_ms=40, busy_cores=3, batches=200)
    run.worker_stacks = [(stack(WORKER_LOOP, CROPS), 1.0, 1.0)]
    run.rank_stacks = [(f"{SCRIPT}:50:main", "forward", 0.3, 1.0)]
    tables = play(run)
    rows = tables.rows
    first = rows["loaders"][0]
    rows["loaders"].append({**first, "loader": 1, "workers": workers[1], "line": 41})
    for row in list(rows["batches"])[::every]:
        wall = int(share * row["wall_ns"])
        rows["batches"].append({**row, "loader": 1, "wall_ns": wall, "cpu_ns": wall})
    for row in list(rows["fetches"])[::every]:  # right after that of the first
        asked = row["start_ns"] + (row["wait_ns"] // 2 if nested else row["wait_ns"])
        rows["fetches"].append({**row, "loader": 1, "start_ns": asked, "wait_ns": 0})
    for row in [each for each in rows["stacks"] if each["worker"] >= 0]:
        if workers[1]:
            rows["stacks"].append({**row, "loader": 1, "stack": stack(WORKER_LOOP, code)})
    return tables


def remedy_of(tables: RunTables, name: str) -> Remedy:
    found = [each for finding in diagnose(tables).findings for each in finding.remedies]
    return next(each for each in found if each.name == name)


@pytest.mark.parametrize(
    ("share", "workers", "every", "both"),
    [
        (1.0, (1, 1), 1, True),
        (0.6, (1, 1), 1, True),  # the next limit, though it keeps up now
        (0.1, (1, 1), 1, False),
        (1.0, (1, 8), 1, False),
        (1.0, (1, 1), 10, False),  # an evaluation's, in some steps
        (0.3, (1, 0), 1, True),  # in the rank, which waits for both
        (0.01, (1, 0), 1, False),
        (1.0, (0, 0), 1, True),
    ],
)
def test_more_workers_are_proposed_for_each_loader_that_would_be_the_limit(
    share: float, workers: tuple[int, int], every: int, both: bool
):
    remedy = remedy_of(two_loaders(share=share, workers=workers, every=every), "workers")
    assert ("train.py:41" in remedy.how) == both
    assert ("for each of 2 loaders" in remedy.change) == both
    assert {override.place for override in remedy.overrides} == (
        {"train.py:40", "train.py:41"} if both else {"train.py:40"}
    )


def test_a_loader_that_the_dataset_of_another_iterates_feeds_no_step_itself():
    remedy = remedy_of(two_loaders(share=1.0, workers=(0, 0), nested=True), "workers")
    assert "train.py:41" not in remedy.how


@pytest.mark.parametrize(
    ("share", "code", "most"), [(0.8, BLURS, 1.3), (0.8, CROPS, 4.0), (0.05, BLURS, 4.0)]
)
def test_faster_code_of_one_loader_gives_no_more_than_the_other_allows(
    share: float, code: str, most: float
):
    speedup = remedy_of(two_loaders(share=share, code=code), "move-code").predicted_speedup
    assert speedup is not None
    assert most / 1.25 < speedup <= most


def test_a_comparison_holds_each_loader_against_itself_whichever_is_waited_for():
    before, after = two_loaders(share=0.6), two_loaders(share=0.6)
    for row in before.rows["loaders"] + after.rows["loaders"]:
        row["dataset"] = ("Photos", "Paintings")[row["loader"]]
    after.rows["loaders"][1]["workers"] = 3
    for row in after.rows["steps"]:
        row["loader"] = 1
    changed = [(each.setting, each.before, each.after) for each in compare(before, after).settings]
    assert changed == [("num_workers of loader 2", "1", "3")]
