"""Evaluation in the rank's own thread: its code is no code of the training steps."""

from __future__ import annotations

import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.findings import Finding
from run_tables import AUGMENT, MS, SCRIPT, Run, RunTables, play, stack

SECOND = 1000 * MS
LASTS = 6 * SECOND
TORCH = "/venv/lib/python3.11/site-packages/torch"
LOADER = f"{TORCH}/utils/data/dataloader.py"
FETCH = f"{TORCH}/utils/data/_utils/fetch.py:54:fetch"
NEXT = f"{LOADER}:700:_BaseDataLoaderIter.__next__"
TRAINS = stack(f"{SCRIPT}:60:main", NEXT, FETCH, f"{AUGMENT}:31:Faces.__getitem__")
MAKES = stack(f"{SCRIPT}:80:evaluate", NEXT, FETCH, "/home/ann/held_out.py:12:Held.__getitem__")
VISION = "/venv/lib/python3.11/site-packages/torchvision"
LIBRARY_MAKES = stack(
    f"{SCRIPT}:80:evaluate", NEXT, FETCH,
    f"{VISION}/datasets/folder.py:245:DatasetFolder.__getitem__",
    f"{VISION}/transforms/transforms.py:95:Compose.__call__",
    f"{VISION}/transforms/transforms.py:354:Resize.forward",
)  # fmt: skip
AWAITS = stack(
    f"{SCRIPT}:80:evaluate", NEXT, f"{LOADER}:1440:_MultiProcessingDataLoaderIter._get_data",
    f"{LOADER}:1290:_MultiProcessingDataLoaderIter._try_get_data",
    "/usr/lib/python3.11/multiprocessing/queues.py:100:Queue.get",
)  # fmt: skip
MODEL = stack(f"{SCRIPT}:62:main", f"{TORCH}/nn/modules/module.py:1:Module._call_impl")


def evaluated(workers: int, makes: str = MAKES) -> RunTables:
    """Return a run without workers that evaluates for seconds, longer than it trains.

    `makes` is the stack of the rank as it makes the evaluation's batches itself.
    """
    tables = play(Run(workers=0, service_ms=8, batches=300))
    began = sorted(row["start_ns"] for row in tables.rows["steps"])[150]
    for name in ("steps", "fetches", "batches"):
        for row in tables.rows[name]:
            if row["start_ns"] >= began:
                row["start_ns"] += LASTS
    tables.add("loaders", rank=0, loader=1, kind="torch", dataset="Held", style="map",
               workers=workers, prefetch_factor=2 if workers else 0, batch_size=32, in_order=1,
               file=SCRIPT, line=44)  # fmt: skip
    for number in range(LASTS // (60 * MS)):
        its = {"rank": 0, "loader": 1, "start_ns": began + number * 60 * MS}
        tables.add("steps", step=number, kind="eval", wall_ns=60 * MS, data_wait_ns=54 * MS,
                   forward_ns=6 * MS, batches=1, samples=32, **its)  # fmt: skip
        tables.add("fetches", batch=number, wait_ns=54 * MS, ready=-1, receive_ns=-1,
                   receive_cpu_ns=-1, **its)  # fmt: skip
        worker = number % workers if workers else -1
        tables.add("batches", worker=worker, batch=number // max(workers, 1), wall_ns=54 * MS,
                   cpu_ns=53 * MS, process_cpu_ns=53 * MS, samples=32, reads=-1,
                   **its)  # fmt: skip
    end = max(row["start_ns"] + row["wall_ns"] for row in tables.rows["steps"])
    tables.add(
        "code_folders", rank=0, kind="libraries", folder="/venv/lib/python3.11/site-packages"
    )
    for start in range(0, end, SECOND):
        evaluates = began <= start and start + SECOND <= began + LASTS
        own = makes if workers == 0 else AWAITS
        waits = (own, 900 * MS) if evaluates else (TRAINS, 400 * MS)
        for text, wall, phase in ((*waits, "data_wait"), (MODEL, SECOND - waits[1], "forward")):
            tables.add("stacks", pid=100, rank=0, loader=-1, worker=-1, phase=phase, stack=text,
                       start_ns=start, samples=50, wall_ns=wall, cpu_ns=wall,
                       end_ns=start + SECOND)  # fmt: skip
    return tables


def findings(tables: RunTables) -> dict[str, Finding]:
    return {each.rule: each for each in diagnose(tables).findings}


def test_the_line_that_makes_batches_in_the_rank_is_none_of_the_evaluation():
    rules = findings(evaluated(0))
    cause = rules["cpu-bound-worker"].cause
    assert cause is not None
    assert cause.place == "augment.py:31"
    assert cause.share > 0.95
    evaluation = rules["evaluation"].cause
    assert evaluation is not None
    assert evaluation.place == "held_out.py:12"


def test_a_librarys_transform_in_an_evaluation_is_named_at_the_line_that_constructs_its_loader():
    cause = findings(evaluated(0, LIBRARY_MAKES))["evaluation"].cause
    assert cause is not None
    assert cause.place == "train.py:44"
    assert str(cause) == "torchvision Resize for the loader at train.py:44"


def test_the_workers_of_an_evaluation_do_not_make_the_training_steps_batches():
    rules = findings(evaluated(2))
    assert "the rank makes its batches itself" in rules["too-few-workers"].title
    assert not any("another loader" in each.title for each in rules.values())


NETWORK = f"{SCRIPT}:12:Network.forward"
TRAINED = stack(f"{SCRIPT}:90:main", f"{SCRIPT}:30:train", NETWORK)
STEPPED = stack(f"{SCRIPT}:90:main", f"{SCRIPT}:32:train")
EVALUATED = stack(f"{SCRIPT}:91:main", f"{SCRIPT}:50:evaluate", NETWORK)
EVERY_STEPS = 32


def evaluated_each_second(evaluation_ms: int, at_once: int) -> RunTables:
    """Return a run that evaluates after every 32 of its steps, so that each second has both.

    Stacks are those of `at_once` seconds.
    """
    tables = play(Run(workers=2, service_ms=1, batches=640))
    steps = sorted(tables.rows["steps"], key=lambda row: row["start_ns"])
    begins = [row["start_ns"] + row["wall_ns"] for row in steps[EVERY_STEPS - 1 :: EVERY_STEPS]]
    for name in ("steps", "fetches", "batches"):
        for row in tables.rows[name]:
            row["start_ns"] += sum(row["start_ns"] >= at for at in begins) * evaluation_ms * MS
    rows = [(row["start_ns"], row["wall_ns"], TRAINED) for row in tables.rows["steps"]]
    for number, begin in enumerate(begins):
        its = {"rank": 0, "start_ns": begin + number * evaluation_ms * MS}
        tables.add("steps", step=number, kind="eval", loader=-1, wall_ns=evaluation_ms * MS,
                   forward_ns=evaluation_ms * MS, batches=4, samples=32, **its)  # fmt: skip
        rows.append((its["start_ns"], evaluation_ms * MS, EVALUATED))
    end = max(begin + lasts for begin, lasts, _ in rows)
    for start in range(0, end, at_once * SECOND):
        until = min(start + at_once * SECOND, end)
        spent = dict.fromkeys((TRAINED, EVALUATED), 0)
        for begin, lasts, text in rows:
            spent[text] += max(min(begin + lasts, until) - max(begin, start), 0)
        seen = (
            (TRAINED, 0.8 * spent[TRAINED], "forward"),
            (STEPPED, 0.15 * spent[TRAINED], "backward"),
            (EVALUATED, spent[EVALUATED], "forward"),
        )
        for text, wall, phase in seen:
            tables.add("stacks", pid=100, rank=0, loader=-1, worker=-1, phase=phase, stack=text,
                       start_ns=start, samples=50, wall_ns=int(wall), cpu_ns=int(wall),
                       end_ns=until)  # fmt: skip
    return tables


@pytest.mark.parametrize("evaluation_ms", [200, 700, 1500])
@pytest.mark.parametrize("at_once", [1, 60])
def test_the_model_that_steps_run_too_is_not_what_evaluates(evaluation_ms: int, at_once: int):
    cause = findings(evaluated_each_second(evaluation_ms, at_once))["evaluation"].cause
    assert cause is not None
    assert (cause.place, cause.function) == ("train.py:50", "evaluate")


def test_what_evaluates_is_named_by_its_loader_where_it_waits_for_that_however_short_the_run_is():
    tables = evaluated(0)
    for row in tables.rows["steps"]:
        if row["kind"] == "eval":
            row["data_wait_ns"], row["forward_ns"] = row["data_wait_ns"] // 4, 46 * MS
    finding = findings(tables)["evaluation"]
    assert "waiting for the loader" in finding.title
