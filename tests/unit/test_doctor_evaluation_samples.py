"""Evaluation in the rank's own thread: its code is no code of the training steps."""

from __future__ import annotations

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
