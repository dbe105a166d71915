"""Where a run's time goes outside of its steps: what the doctor says of it, and what stays out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.evidence import gather_evidence
from headrace.observe.doctor.findings import Finding
from headrace.report.top.state import TimeWindow, read_processes, read_step_rates
from played_script import (
    HELD_OUT,
    ITEM,
    LOCK,
    LOOP,
    SAVE,
    TORCH,
    TRAIN,
    Script,
    account,
    epochs,
    found,
)
from run_tables import MS, SCRIPT, RunTables, stack


def found_in(tables: RunTables) -> dict[str, Finding]:
    return {finding.rule: finding for finding in diagnose(tables).findings}


def test_evaluation_that_waits_for_a_loader_without_workers():
    script = epochs(Script(), lambda each: each.evaluate(wait_ms=200))
    script.seen(ITEM, "data_wait", 50 * MS)
    diagnosis, rules = found(script)
    sentence = diagnosis.verdict.sentence
    assert sentence.startswith("Evaluation takes 68% of the run's time, 63% waiting for the loader")
    assert "loader at train.py:41, which has no workers; with 8 workers instead of none" in sentence
    evaluation = rules["evaluation"]
    assert evaluation.seconds_lost == pytest.approx(16.0)
    assert evaluation.cause is not None
    assert (evaluation.cause.line, evaluation.cause.name) == (9, "Rows.__getitem__")
    assert evaluation.remedies[0].overrides[0].value == 8
    shares = diagnosis.verdict.time_shares
    assert shares["evaluation"] == pytest.approx(0.68, abs=0.01)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_workers_of_an_evaluation_that_are_started_again_each_time():
    script = epochs(
        Script(workers=(2, 2)), lambda each: each.evaluate(batches=10, first_ms=900), count=5
    )
    diagnosis, rules = found(script)
    assert "whose workers are started again for each of 5 evaluations: 0.9 s each" in (
        diagnosis.verdict.sentence
    )
    assert [each.name for each in rules["evaluation"].remedies] == ["persistent-workers"]


@pytest.mark.parametrize("late", ["the first batch", "its sampler"])
def test_what_a_late_first_batch_of_an_evaluation_takes_is_no_start_of_workers(late: str):
    def evaluates(script: Script) -> None:
        began = script.now
        script.evaluate(batches=10, first_ms=900)
        if late == "its sampler":
            script.tables.rows["fetches"][-10]["sampler_ns"] = 890 * MS
            return
        script.tables.add("batches", rank=0, loader=HELD_OUT, worker=0, start_ns=began + 5 * MS,
                          wall_ns=890 * MS, cpu_ns=890 * MS, process_cpu_ns=890 * MS, samples=8,
                          read_ns=-1)  # fmt: skip

    diagnosis, rules = found(epochs(Script(workers=(2, 2)), evaluates, count=5))
    assert "whose 2 workers do not keep up" in diagnosis.verdict.sentence
    assert "persistent-workers" not in [each.name for each in rules["evaluation"].remedies]


def test_a_dataset_that_iterates_another_loader_waits_for_that_ones_workers():
    """Not for a lock or storage; and a worker of its own could start no others."""
    iteration = f"{TORCH}/utils/data/dataloader.py:1500:_MultiProcessingDataLoaderIter._get_data"
    fetch = f"{TORCH}/utils/data/_utils/fetch.py:54:_MapDatasetFetcher.fetch"
    text = stack(LOOP, f"{TORCH}/utils/data/dataloader.py:700:__next__", fetch,
                 f"{SCRIPT}:10:Packed.__iter__", iteration,
                 "/usr/lib/python3.11/multiprocessing/queues.py:113:Queue.get")  # fmt: skip
    script = Script(workers=(0, 2)).iterates().train(200, wait_ms=60)
    _, rules = found(script.seen(text, "data_wait", 50 * MS))
    assert not set(rules) & {"lock-contention", "slow-storage", "too-few-workers"}
    assert "waits for another loader that it iterates" in rules["data-wait"].title
    assert rules["data-wait"].cause is not None
    assert rules["data-wait"].cause.line == 10


def test_the_loader_of_a_library_is_changed_by_the_librarys_arguments():
    script = Script(workers=(2, 0))
    site = "/venv/lib/python3.11/site-packages"
    script.tables.add("code_folders", rank=0, kind="library", folder=site)
    script.tables.add(
        "library_loaders",
        rank=0,
        loader=HELD_OUT,
        line=9,
        function="loader",
        file=f"{site}/transformers/trainer.py",
    )
    _, rules = found(epochs(script, lambda each: each.evaluate(wait_ms=100)))
    (remedy,) = rules["evaluation"].remedies
    for argument in ("num_workers", "persistent_workers"):
        assert f"TrainingArguments(dataloader_{argument}=" in remedy.how
    assert "DataLoader" not in remedy.how


def test_evaluation_that_computes_for_most_of_the_time():
    forward = f"{SCRIPT}:12:Net.forward"
    script = Script()
    for _ in range(4):
        began = script.now
        script.iterates().train().seen(stack(LOOP, forward), "forward", began)
        began = script.now
        text = stack(LOOP, f"{SCRIPT}:30:evaluate", forward)
        script.evaluate(batches=100).seen(text, "forward", began)
    diagnosis, rules = found(script)
    assert "in evaluate at train.py:30" in diagnosis.verdict.sentence
    assert rules["evaluation"].remedies[0].name == "evaluation"
    assert rules["evaluation"].remedies[0].predicted_speedup == pytest.approx(1.286, abs=0.01)


def test_code_that_evaluation_shares_with_short_epochs_is_not_what_evaluation_is_named_by():
    """As of a model on an emulated device, where each second is of both."""
    forward = f"{SCRIPT}:12:Net.forward"
    script = Script()
    second, ends = 1000 * MS, []
    for steps in (20, *[10] * 7):  # 0.8 s, and then 0.4 s
        began = script.now
        script.iterates().train(steps)
        ends.append((began, script.now, LOOP))
        began = script.now
        script.evaluate(batches=(2000 - 40 * steps) // 26, other=10)  # 0.58 of it in the model
        ends.append((began, script.now, f"{SCRIPT}:30:evaluate"))
    for start in range(0, script.now, second):
        for began, end, caller in ends:
            shared = max(min(end, start + second) - max(began, start), 0)
            spent = int(shared * (0.95 if caller == LOOP else 0.58))
            texts = [(stack(LOOP, caller, forward), "forward", spent)]
            if caller != LOOP:
                texts.append((stack(LOOP, f"{SCRIPT}:33:evaluate"), "other", int(shared * 0.38)))
            for text, phase, wall in texts:
                if wall:
                    script.tables.add("stacks", pid=100, rank=0, loader=-1, worker=-1, phase=phase,
                                      stack=text, start_ns=start, end_ns=start + second,
                                      samples=50, wall_ns=wall, cpu_ns=wall)  # fmt: skip
    cause = found(script)[1]["evaluation"].cause
    assert cause is not None
    assert (cause.line, cause.name) == (30, "evaluate")


def test_saving_between_epochs():
    diagnosis, rules = found(epochs(Script(), lambda each: each.between(4000)))
    assert diagnosis.verdict.sentence.startswith(
        "67% of the run's time, 16 of 24 s, passes between epochs, most of it in save at"
    )
    assert rules["between-epochs"].remedies[0].change == "no save between epochs"
    assert rules["between-epochs"].severity == "critical"


@pytest.mark.parametrize("ms", [500, 2000, 4000, 40_000])
def test_without_what_passes_between_epochs_nearly_all_of_its_time_goes(ms: int):
    (remedy,) = found(epochs(Script(), lambda each: each.between(ms)))[1]["between-epochs"].remedies
    assert remedy.predicted_speedup is not None
    assert remedy.low is not None
    assert remedy.high is not None
    before_s, after_s = 8 + 4 * ms / 1000, 8.0  # 24 s with 4 s after each of four epochs
    assert remedy.predicted_speedup == pytest.approx(
        before_s / (after_s + 0.4 * ms / 1000), rel=0.02
    )
    assert remedy.low < before_s / (after_s + 2 * ms / 1000)  # in the background it may take some
    assert remedy.high > before_s / after_s


C10D = f"{TORCH}/distributed/distributed_c10d.py"
AT_BARRIER = stack(LOOP, f"{SCRIPT}:66:train", f"{C10D}:4800:barrier")


def both_ranks(first: Callable[[Script], Any], ms: float) -> Script:
    """Return rank 0 with something each epoch of `ms`, for which rank 1 waits in a barrier."""
    script = epochs(Script(), first)
    epochs(Script(rank=1, tables=script.tables), lambda each: each.between(ms, AT_BARRIER))
    return script


def test_a_rank_that_waits_for_the_evaluation_of_another_spends_time_on_that():
    text = stack(LOOP, f"{SCRIPT}:30:validate")

    def validate(each: Script) -> Any:
        began = each.now
        return each.evaluate(batches=100, forward=39).seen(text, "forward", began)

    diagnosis, rules = found(both_ranks(validate, 100 * (1 + 39) + 10))
    assert "in validate at train.py:30" in diagnosis.verdict.sentence
    assert list(rules) == ["evaluation"]
    shares = diagnosis.verdict.time_shares
    assert shares["evaluation"] == pytest.approx(0.66, abs=0.01)
    assert shares["between"] == pytest.approx(0.002, abs=0.001)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_rank_that_waits_for_another_to_save_is_not_the_cause():
    diagnosis, rules = found(both_ranks(lambda each: each.between(3800), 4000))
    assert "most of it in save at train.py:77" in diagnosis.verdict.sentence
    assert list(rules) == ["between-epochs"]


def test_time_between_epochs_in_which_all_ranks_wait_is_still_told():
    diagnosis, _ = found(both_ranks(lambda each: each.between(4000, AT_BARRIER), 4000))
    assert "most of it in train at train.py:66" in diagnosis.verdict.sentence


@pytest.mark.parametrize("exports_in", ["main", "export"])
def test_an_export_after_the_only_epoch_is_not_between_epochs(exports_in: str):
    script = Script()
    began = script.now
    script.iterates().train().seen(stack(f"{SCRIPT}:50:main", f"{SCRIPT}:9:step"), "forward", began)
    script.between(20_000, stack(f"{SCRIPT}:60:{exports_in}"))
    diagnosis, rules = found(script)
    assert f"of 22 s, passes after the last step, most of it in {exports_in} at train.py:60" in (
        diagnosis.verdict.sentence
    )
    named = "no export after the last step"
    change = rules["between-epochs"].remedies[0].change
    assert change == (named if exports_in == "export" else "nothing after the last step")


def test_an_evaluation_without_a_loader_is_named_and_not_the_model_that_steps_run_too():
    forward = f"{SCRIPT}:12:Net.forward"
    text = stack(LOOP, f"{SCRIPT}:30:evaluate", forward)
    script = Script()
    for _ in range(4):
        began = script.now
        script.iterates().train().seen(stack(LOOP, forward), "forward", began)
        script.between(4000, text)
    assert "most of it in evaluate at train.py:30" in found(script)[0].verdict.sentence


CALLED = stack(f"{TORCH}/nn/modules/module.py:1700:Module._call_impl", f"{SCRIPT}:12:Net.forward")


@pytest.mark.parametrize("also_saves_ms", [0, 2000])
def test_the_model_between_epochs_is_evaluation(also_saves_ms: int):
    script = Script()
    for _ in range(4):
        began = script.now
        script.iterates().train().seen(stack(LOOP, CALLED), "forward", began)
        script.between(6000, stack(LOOP, f"{SCRIPT}:30:evaluate", CALLED))
        if also_saves_ms:
            script.between(also_saves_ms)
    diagnosis, rules = found(script)
    whole = f"{32 if also_saves_ms == 0 else 40} s, most of it in evaluate at train.py:30"
    assert f"evaluation takes {0.75 if also_saves_ms == 0 else 0.6:.0%}".capitalize() in (
        diagnosis.verdict.sentence
    )
    assert f"24 of {whole}" in diagnosis.verdict.sentence
    assert ("between-epochs" in rules) == (also_saves_ms > 0)
    wall = account(script)
    assert wall.seconds("evaluation") == pytest.approx(24)
    assert wall.seconds("between") == pytest.approx(4 * also_saves_ms / 1000)
    assert wall.evaluation_loader == -1


def test_what_runs_the_model_for_a_small_part_is_no_evaluation():
    script = epochs(Script(), lambda each: each.between(3000).between(800, stack(LOOP, CALLED)))
    assert account(script).seconds("evaluation") == 0


IMPORT = "<frozen importlib._bootstrap>:241:_call_with_frames_removed"
DYNAMO = f"{TORCH}/_dynamo/__init__.py:1:<module>"
SITE = "/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("frames", "is_import"),
    [
        ((f"{TORCH}/optim/adam.py:90:Adam.__init__", IMPORT, DYNAMO), True),
        ((IMPORT, DYNAMO, IMPORT, f"{TORCH}/_dynamo/utils.py:9:register"), True),
        ((IMPORT, f"{SITE}/sklearn/__init__.py:1:<module>", f"{SITE}/scipy/x.py:9:f"), True),
        ((IMPORT, f"{SCRIPT}:1:<module>"), False),  # the script's own
        ((f"{SITE}/timm/train.py:9:<module>", f"{SITE}/timm/train.py:5:save"), False),  # python -m
        ((f"{TORCH}/_dynamo/eval_frame.py:9:wrapper",), False),
    ],
)
def test_a_librarys_import_after_the_first_batch_is_start_up(
    frames: tuple[str, ...], is_import: bool
):
    script = Script().iterates().train(1)
    before = account(script)
    script.between(6000, stack(LOOP, *frames)).train(200)
    wall = account(script)
    assert wall.start_seconds - before.start_seconds == pytest.approx(6 if is_import else 0)
    assert wall.run_seconds == pytest.approx(before.run_seconds + 8 + (0 if is_import else 6))
    assert ("Evaluation" in found(script)[0].verdict.sentence) == ("eval_frame" in frames[-1])


EVALUATE = f"{SCRIPT}:31:evaluate"
NEXT = f"{TORCH}/utils/data/dataloader.py:700:__next__"
EVALUATION_LOOP = (
    "/venv/lib/python3.11/site-packages/transformers/trainer.py:2000:Trainer._maybe_log_save",
    "/venv/lib/python3.11/site-packages/transformers/trainer.py:4000:Trainer.evaluation_loop",
)
SAVED = f"{TORCH}/serialization.py:900:save"


def evaluated(
    *,
    before: tuple[float, str] | None = None,
    after: tuple[float, str],
    asks: tuple[str, ...],
    is_quick: bool = False,
) -> Script:
    """Play epochs with an evaluation, and what comes right before and after it: ms and a stack.

    Where the loader and backward are quick, no sample sees them, only the model.
    """
    script = Script(workers=(0, 0))
    trains = (CALLED, "forward") if is_quick else (f"{TORCH}/_tensor.py:1:b", "backward")
    for _ in range(6):
        began = script.now
        script.iterates().train(25).seen(stack(LOOP, trains[0]), trains[1], began)
        if before:
            script.between(*before)
        began = script.now
        script.evaluate(20)
        if is_quick:
            script.seen(stack(LOOP, *asks, CALLED), "forward", began)
        else:
            script.seen(stack(LOOP, *asks, NEXT), "data_wait", began, began + 20 * MS)
        script.between(*after)
    return script


@pytest.mark.parametrize(
    ("asks", "ending", "is_evaluation"),
    [
        ((EVALUATE,), (f"{SCRIPT}:35:evaluate", f"{SCRIPT}:9:mean_precision"), True),
        ((EVALUATE,), (f"{SCRIPT}:35:evaluate",), True),
        ((f"{SCRIPT}:20:validate", EVALUATE), (f"{SCRIPT}:22:validate", f"{SCRIPT}:9:bleu"), True),
        ((EVALUATE, "/venv/lib/python3.11/site-packages/tqdm/std.py:1181:tqdm.__iter__"),
         (f"{SCRIPT}:35:evaluate",), True),
        (EVALUATION_LOOP, (*EVALUATION_LOOP, f"{SCRIPT}:9:compute_metrics"), True),
        ((EVALUATE,), (f"{SCRIPT}:77:save",), False),
        ((EVALUATE,), (f"{SCRIPT}:36:evaluate", f"{SCRIPT}:77:save_best", SAVED), False),
        ((EVALUATE,), (f"{SCRIPT}:36:evaluate", SAVED), False),
        (EVALUATION_LOOP, (EVALUATION_LOOP[0], f"{SCRIPT}:9:Plots.on_save"), False),
        ((), (f"{SCRIPT}:9:mean_precision",), False),  # within the training loop's own function
    ],
)  # fmt: skip
@pytest.mark.parametrize("ms", [400, 4000])
@pytest.mark.parametrize("is_quick", [False, True])
def test_the_end_of_an_evaluation_is_evaluation_and_saving_after_it_is_not(
    ms: int, is_quick: bool, asks: tuple[str, ...], ending: tuple[str, ...], is_evaluation: bool
):
    script = evaluated(after=(ms, stack(LOOP, *ending)), asks=asks, is_quick=is_quick)
    own_s, ends_s = 6 * 20 * 16e-3, 6 * ms / 1000
    wall = account(script)
    assert wall.seconds("evaluation") == pytest.approx(own_s + (ends_s if is_evaluation else 0))
    assert wall.seconds("between") == pytest.approx(0 if is_evaluation else ends_s)
    diagnosis, _ = found(script)
    expected = "Evaluation takes" if is_evaluation else "between epochs"
    assert expected in diagnosis.verdict.sentence


def test_what_an_evaluation_does_before_its_first_batch_is_evaluation():
    prototypes = stack(LOOP, f"{SCRIPT}:29:evaluate", f"{SCRIPT}:5:prototypes")
    wall = account(evaluated(before=(900, prototypes), after=(5, SAVE), asks=(EVALUATE,)))
    assert wall.seconds("between") == pytest.approx(6 * 5e-3)
    metric = (300, stack(LOOP, f"{SCRIPT}:35:evaluate"))
    wall = account(evaluated(before=(900, prototypes), after=metric, asks=(EVALUATE,)))
    assert wall.seconds("between") == 0
    wall = account(evaluated(before=(900, SAVE), after=metric, asks=(EVALUATE,)))
    assert wall.seconds("between") == pytest.approx(6 * 0.9)


def test_an_evaluation_of_the_training_data_before_training_is_no_resumption():
    script = Script(workers=(0, 0)).iterates()
    for _ in range(200):
        script.fetch(30)
        script.row("eval", data_wait=30, forward=0.9)
    _, rules = found(script.iterates().train(100, wait_ms=30))
    assert "passed-over-batches" not in rules


def first_batch_after(script: Script, passed: int) -> Script:
    """Add a step whose batch a library delivers after others, of 30 ms each."""
    for number in range(passed + 1):  # and the one that the rank gets
        script.tables.add(
            "batches",
            rank=0,
            loader=TRAIN,
            worker=0,
            batch=number,
            samples=8,
            start_ns=script.now + number * 30 * MS,
            wall_ns=30 * MS,
        )
    waited_ms = (passed + 2) * 30
    script.fetch(waited_ms)
    return script.row("train", forward=15, other=waited_ms, backward=23, optimizer=1)


@pytest.mark.parametrize("passed", [0, 300])
def test_batches_that_a_library_passes_over_within_one_wait(passed: int):
    script = first_batch_after(Script(workers=(1, 0)).iterates(), passed)
    diagnosis, rules = found(script.train(60))
    if not passed:
        assert not set(rules) & {"passed-over-batches", "slow-start"}
        return
    assert diagnosis.verdict.sentence.startswith("300 batches of the loader at train.py:40 were")
    assert "9 s" in diagnosis.verdict.sentence
    assert "slow-start" not in rules


def test_what_is_passed_over_within_a_wait_is_of_its_own_iteration():
    script = Script(workers=(1, 0)).iterates().train(60)
    began = [script.now]
    first_batch_after(script.iterates(), 40).train(20)
    script.iterates().train(60)
    began.append(script.now)
    first_batch_after(script.iterates(), 20)
    script.tables.rows["fetches"].reverse()  # no order is promised
    passed = account(script).passed_over
    assert passed is not None
    assert dict(zip(passed.start_ns.tolist(), passed.batches.tolist(), strict=True)) == {
        began[0]: 40,
        began[1]: 20,
    }


@pytest.mark.parametrize("passed", [20, 300], ids=["within the first step", "in rows of their own"])
def test_batches_that_a_resumed_run_passes_over(passed: int):
    script = Script().iterates()
    if passed == 300:
        script.passes_over(300, 30)
    else:
        waits = [script.fetch(200) for _ in range(passed)]
        # Each is asked for when the one before has come.
        for table in ("fetches", "batches"):
            for number, row in enumerate(script.tables.rows[table]):
                row["start_ns"] += number * 200 * MS
        script.row("train", batches=passed + 1, data_wait=sum(waits) / MS, forward=39)
        script.tables.add("fetches", rank=0, batch=passed, start_ns=script.now - 39 * MS)
        script.batch += 1
    script.train(100)
    diagnosis, rules = found(script)
    finding = rules["passed-over-batches"]
    assert f"{passed:,} batches of the loader at train.py:40 were fetched" in finding.title
    assert finding.evidence["batches"] == passed
    assert finding.seconds_lost == pytest.approx(passed * 30.05e-3 if passed == 300 else 4.0)
    assert finding.cause is not None
    assert finding.cause.line == 40
    assert finding.remedies[0].change == "a sampler that begins later"
    lost_s, whole_s = finding.seconds_lost, script.now / 1e9
    assert finding.remedies[0].high >= whole_s / (whole_s - lost_s) >= finding.remedies[0].low
    assert diagnosis.verdict.sentence.startswith(f"{passed:,} batches of the loader")
    assert "slow-start" not in rules


@pytest.mark.parametrize("batches", [40, 300])
def test_batches_that_are_kept_before_training_are_start_up(batches: int):
    """`list(loader)`: the step clock holds some of them back, as part of the first step."""
    script = Script().iterates()
    held_back = min(batches, 64)
    script.passes_over(batches - held_back, 50)
    for _ in range(held_back):
        script.fetch(50)
        script.now += 50 * MS
    script.now -= held_back * 50 * MS
    script.row("train", batches=held_back, data_wait=50 * held_back, forward=20, backward=20)
    for _ in range(400):
        script.row("train", batches=0, forward=20, backward=20)
    assert not set(found(script)[1]) & {"passed-over-batches", "evaluation"}
    wall = account(script)
    assert wall.seconds("passed_over") == wall.seconds("evaluation") == 0
    assert wall.start_seconds == pytest.approx(0.05 + (batches - held_back) * 0.05005, abs=0.01)


def keeps_batches(script: Script, batches: int, wait_ms: float, used_ms: float = 0.05) -> Script:
    """Play an epoch that fetches all of its batches first: `for batch in list(loader)`."""
    held_back = min(batches, 64)
    for _ in range(batches - held_back):
        script.fetch(wait_ms)
        script.row("eval", data_wait=wait_ms, forward=used_ms)
    began = script.now
    for _ in range(held_back):
        script.fetch(wait_ms)
        script.now += int((wait_ms + used_ms) * MS)
    script.now = began
    waited = {"data_wait": wait_ms * held_back, "other": used_ms * held_back}
    script.row("train", batches=held_back, forward=15, backward=23, optimizer=1, **waited)
    for _ in range(batches - 1):
        script.row("train", batches=0, forward=15, backward=23, optimizer=1)
    return script


LISTED = stack(
    f"{SCRIPT}:61:main", f"{TORCH}/utils/data/dataloader.py:700:__next__", f"{SCRIPT}:9:Rows.load"
)


@pytest.mark.parametrize("batches", [16, 40, 300])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_each_epoch_that_are_kept_before_it_trains(batches: int, workers: int):
    script, text = Script(workers=(workers, 0)), LISTED
    if workers:  # which make them elsewhere
        text = text.rpartition("\n")[0]
    for _ in range(4):
        began = script.now
        keeps_batches(script.iterates(), batches, 50)
        script.seen(text, "data_wait", began, began + batches * 50 * MS)
    diagnosis, rules = found(script)
    assert not set(rules) & {"passed-over-batches", "evaluation", "between-epochs"}
    finding = rules["batch-lists"]
    assert diagnosis.verdict.sentence.startswith(f"{4 * batches:,} batches of the loader at train")
    assert finding.seconds_lost == pytest.approx(4 * batches * 50e-3, rel=0.02)
    assert finding.cause is not None
    assert (finding.cause.line, finding.cause.function.partition(" ")[0]) == (61, "main")
    assert 1.0 < (finding.remedies[0].predicted_speedup or 0.0) < 2.4
    shares = account(script).shares
    assert shares["batch_lists"] == pytest.approx(0.56, abs=0.02)
    assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(("at_a_time", "kept"), [(50, 400), (12, 96), (4, 0)])
def test_many_batches_at_a_time_are_kept_and_a_few_are_the_parts_of_a_step(
    at_a_time: int, kept: int
):
    script = Script()
    for _ in range(2):
        script.iterates()
        for _ in range(4):
            keeps_batches(script, at_a_time, 50)
    wall = account(script)
    assert wall.seconds("passed_over") == 0
    assert (int(wall.batch_lists.batches.sum()) if kept else wall.batch_lists) == (kept or None)
    assert wall.seconds("batch_lists") == pytest.approx(kept * 50e-3, rel=0.03)


def test_features_that_are_computed_before_an_epoch_trains_on_them_are_no_batch_lists():
    script = Script()
    for _ in range(3):
        keeps_batches(script.iterates(), 300, 30, used_ms=20)
    assert account(script).batch_lists is None


def test_a_resumed_epoch_passes_over_and_those_after_it_keep():
    script = Script().iterates().passes_over(300, 30).train(100)
    for _ in range(2):
        keeps_batches(script.iterates(), 40, 50)
    wall = account(script)
    assert (int(wall.passed_over.batches.sum()), int(wall.batch_lists.batches.sum())) == (300, 80)


def test_several_steps_on_each_batch_keep_none():
    script = Script()
    for _ in range(3):
        script.iterates()
        for _ in range(10):
            script.train(1, wait_ms=50)
            script.row("train", batches=0, forward=15, backward=23, optimizer=1)
    assert account(script).batch_lists is None


def test_batches_whose_optimizer_did_not_step_are_not_passed_over():
    # As where a gradient scaler skips the first steps, of which the very first tunes its kernels.
    script = Script().iterates()
    used_ms = (8000, 400, 300, 39)
    for number in range(len(used_ms)):
        script.fetch(60)
        row = script.tables.rows["fetches"][-1]
        row["start_ns"] += (60 * number + sum(used_ms[:number])) * MS
    script.row("train", batches=4, data_wait=60 * 4, forward=sum(used_ms))
    script.train(100)
    _, rules = found(script)
    assert "passed-over-batches" not in rules


def test_whole_epochs_that_are_passed_over():
    script = Script().iterates().passes_over(100, 30)
    script.iterates().passes_over(50, 30).train(100)
    _, rules = found(script)
    assert rules["passed-over-batches"].evidence["batches"] == 150


def test_statistics_of_the_training_data_are_no_batches_passed_over():
    script = Script().iterates()
    for _ in range(100):
        script.fetch(10)
        script.row("eval", data_wait=10, forward=20)
    script.iterates().train(100)
    assert account(script).passed_over is None
    assert account(script).seconds("evaluation") == pytest.approx(3.0)


def looks_at(script: Script, batches: int, used_ms: float, **more_ms: float) -> Script:
    """Ask for batches of the iteration that is trained on, and do something with them."""
    for _ in range(batches):
        script.fetch(20)
        script.row("eval", data_wait=20, forward=used_ms, **more_ms)
    return script


@pytest.mark.parametrize("passed", [0, 200])
def test_an_evaluation_that_draws_from_the_training_iterator_before_the_first_step(passed: int):
    """As nanoGPT's `estimate_loss`, also after batches that were passed over."""
    script = Script(workers=(0, 0)).iterates().passes_over(passed, 30)
    looks_at(script, 100, 20).train(150, wait_ms=20)
    looks_at(script, 100, 20).train(150, wait_ms=20)
    _, rules = found(script)
    assert ("passed-over-batches" in rules) == bool(passed)
    assert "evaluation" in rules
    wall = account(script)
    assert wall.seconds("passed_over") == pytest.approx(passed * 30.05e-3)
    assert wall.seconds("evaluation") == pytest.approx(200 * 40e-3)


def test_batches_that_a_script_looks_at_before_the_first_step_are_not_passed_over():
    script = looks_at(Script().iterates(), 5, 0.05).train(100)
    assert account(script).passed_over is None


def test_batches_that_are_copied_to_the_device_and_passed_over():
    script = looks_at(Script().iterates(), 300, 0.05, copy=4)
    script.row("eval", data_wait=20, forward=90)  # logs once where it goes on
    _, rules = found(script.train(100))
    assert rules["passed-over-batches"].evidence["batches"] == 301


def test_a_long_time_before_the_first_step_that_is_no_start():
    """83 s of batches passed over are not lists of files and compiled models."""
    _, rules = found(Script().iterates().passes_over(2000, 41).train(100))
    assert set(rules) & {"slow-start", "passed-over-batches"} == {"passed-over-batches"}


def test_a_long_start_before_the_loader_is_constructed():
    script = Script(start_ms=90_000)
    diagnosis, rules = found(script.iterates().train(500))
    assert diagnosis.verdict.sentence == (
        "90 s, 82% of all its time, pass before the first step, 90 of them before the loader at "
        "train.py:40 is constructed."
    )
    assert rules["slow-start"].severity == "serious"


@pytest.mark.parametrize(
    "little",
    [
        lambda each: each.evaluate(batches=10),
        lambda each: each.evaluate(batches=10, first_ms=100),
        lambda each: each.between(150),
        lambda each: each.evaluate(batches=30).between(50),
    ],
)
def test_what_takes_a_few_per_cent_stays_out(little: Callable[[Script], Any]):
    diagnosis, rules = found(epochs(Script(), little, count=8))
    assert diagnosis.verdict.sentence.startswith("The accelerator is the limit")
    assert set(rules) == {"compute-bound"}


def test_each_step_writes_a_log():
    script = Script().iterates().train(400, other=20)
    script.seen(stack(LOOP, f"{SCRIPT}:60:plot"), "other", 50 * MS)
    diagnosis, _ = found(script)
    assert "33% of the run's time passes outside the model in each step" in (
        diagnosis.verdict.sentence
    )
    assert "in plot at train.py:60" in diagnosis.verdict.sentence


UPDATES = [
    "def update(net):\n    for p in net.parameters():\n        p.data = p.data - 0.1 * p.grad\n",
    "def update(p, lr):\n    g = p.grad\n    p -= lr * g\n",
    "for x, y in loader:\n    loss(x, y).backward()\n    for p in ps: p.sub_(lr * p.grad)\n",
    "def update(ps):\n    for p in ps:\n        step(p.add_, p.grad)\n        p.add_(p.grad)\n",
]
OTHERS = [
    "def log(net):\n    for p in net.parameters():\n        norms.append(p.grad.norm())\n",
    "def log(net):\n    for p in net.parameters():\n        total += p.grad.norm()\n",
    "for x, y in loader:\n    loss(x, y).backward()\n    save(p.grad)\n    p.sub_(p.grad)\n",
    "def plot(net):\n    net.train_()\n    draw()\n",
]


@pytest.mark.parametrize("torchs_own", [False, True])
@pytest.mark.parametrize("source", [*UPDATES, *OTHERS])
def test_an_optimizer_that_a_script_has_written_itself_is_not_outside_of_the_model(
    source: str, torchs_own: bool, tmp_path: Path
):
    (tmp_path / "own.py").write_text(source)
    script = Script().iterates().train(400, other=20)
    script.seen(stack(LOOP, f"{tmp_path}/own.py:3:update"), "other", 50 * MS)
    if not torchs_own:
        for row in script.tables.rows["steps"]:
            row["forward_ns"] += row["optimizer_ns"]
            row["optimizer_ns"] = 0
    fires = "time-outside-model" in found(script)[1]
    assert fires == (torchs_own or source in OTHERS)


MODULE = torch.nn.modules.module.__file__
MODULE_SOURCE = Path(MODULE).read_text().splitlines()
CALLS_HOOK, CALLS_FORWARD = (
    next(
        f"{MODULE}:{at}:Module._call_impl"
        for at, text in enumerate(MODULE_SOURCE, 1)
        if call in text
    )
    for call in (" = hook(self, args, result)", "return forward_call(*args, **kwargs)")
)
ENGINE = stack(
    f"{SCRIPT}:55:<module>",
    f"{TORCH}/_tensor.py:623:Tensor.backward",
    f"{TORCH}/autograd/graph.py:979:_engine_run_backward",
)
LOGS = stack(f"{SCRIPT}:14:Watch.<locals>.hook", f"{SCRIPT}:18:log_histogram")


def mostly_in(text: str, phase: str) -> Script:
    """Return a script whose steps are in a stack for most of a phase, and in torch for the rest."""
    script = Script().iterates()
    torchs = ENGINE if phase == "backward" else stack(LOOP, CALLS_FORWARD)
    for _ in range(200):
        script.fetch(1)
        before = {"forward": 1, "backward": 16, "other": 31}[phase]
        began = script.now + before * MS
        script.row("train", data_wait=1, **{"forward": 15, "backward": 15, phase: 60})
        script.seen(text, phase, began, began + 45 * MS)
        script.seen(torchs, phase, began + 45 * MS, began + 60 * MS)
    return script


@pytest.mark.parametrize(
    ("phase", "inside", "name"),
    [
        ("backward", stack(ENGINE, LOGS), "log_histogram at train.py:18"),
        ("backward", stack(ENGINE, f"{TORCH}/utils/hooks.py:139:BackwardHook.hook", LOGS), "log_h"),
        (
            "backward",
            stack(ENGINE, f"{TORCH[:-6]}/wandb/integration/torch/wandb_torch.py:9:log_stats"),
            "wandb",
        ),
        ("forward", stack(LOOP, CALLS_HOOK, LOGS), "log_histogram at train.py:18"),
    ],
)
def test_hooks_that_torch_calls_are_outside_of_the_model(phase: str, inside: str, name: str):
    """Histograms of gradients and activations, as `wandb.watch` makes them."""
    diagnosis, rules = found(mostly_in(inside, phase))
    assert f"outside the model in each step, most of it in {name}" in diagnosis.verdict.sentence
    assert rules["time-outside-model"].evidence["share_of_time"] == pytest.approx(45 / 77, abs=0.02)


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize(
    ("source", "fires"), [("time.sleep(0.03)", False), ("requests.post(url, statistics)", True)]
)
def test_a_hook_that_sleeps_stands_for_the_device(
    phase: str, source: str, fires: bool, tmp_path: Path
):
    (tmp_path / "train.py").write_text(f"{source}\n")
    called = ENGINE if phase == "backward" else stack(LOOP, CALLS_HOOK)
    script = mostly_in(stack(called, f"{tmp_path}/train.py:1:hook"), phase)
    for row in script.tables.rows["stacks"]:
        row["cpu_ns"] = 0
    assert ("time-outside-model" in found(script)[1]) == fires


@pytest.mark.parametrize("phase", ["other", "backward"])
@pytest.mark.parametrize(("on_cpu", "fires"), [(1.0, True), (0.02, False)])
def test_a_line_that_reads_a_tensor_of_the_cpu_is_work_of_its_own(
    phase: str, on_cpu: float, fires: bool, tmp_path: Path
):
    (tmp_path / "train.py").write_text("seen[name] = torch.histc(gradient, 64).tolist()\n")
    line = f"{tmp_path}/train.py:1:log"
    script = mostly_in(stack(ENGINE if phase == "backward" else LOOP, line), phase)
    for row in script.tables.rows["stacks"]:
        row["cpu_ns"] = int(on_cpu * row["wall_ns"])
    assert ("time-outside-model" in found(script)[1]) == fires


@pytest.mark.parametrize(
    ("phase", "inside"),
    [
        ("backward", (f"{TORCH}/autograd/function.py:310:BackwardCFunction.apply", LOGS)),
        ("backward", (f"{TORCH}/utils/checkpoint.py:1100:unpack_hook", CALLS_FORWARD, LOGS)),
        ("backward", (LOGS, f"{TORCH}/optim/sgd.py:120:SGD.step")),
        ("backward", (f"{TORCH[:-6]}/deepspeed/runtime/zero/stage3.py:9:reduce",)),
        ("forward", (CALLS_FORWARD, f"{SCRIPT}:12:Net.forward")),
        ("forward", (CALLS_HOOK, LOGS, CALLS_FORWARD, f"{SCRIPT}:12:Net.forward")),
    ],
    ids=["function", "checkpoint", "optimizer", "library", "forward", "model"],
)
def test_what_torch_calls_for_the_model_is_no_hook(phase: str, inside: tuple[str, ...]):
    outer = ENGINE if phase == "backward" else LOOP
    assert "time-outside-model" not in found(mostly_in(stack(outer, *inside), phase))[1]


SAVES_MASKS = stack(LOOP, f"{SCRIPT}:61:save_masks", f"{TORCH[:-6]}/PIL/Image.py:2400:Image.save")
FUNCTIONAL = stack(LOOP, f"{SCRIPT}:13:attention")  # may be the model, or its loss


def before_backward(*texts: str, kind: str = "train", ms: float = 60) -> Script:
    """Return a script whose steps are in these stacks in turn before backward, for `ms` in all."""
    script = Script().iterates()
    for _ in range(200):
        script.fetch(1)
        began = script.now
        script.row(kind, data_wait=1, forward=ms, **({"backward": 5} if kind == "train" else {}))
        for place, text in enumerate(texts):
            part = int(ms * MS / len(texts))
            script.seen(text, "forward", began + MS + place * part, began + MS + (place + 1) * part)
    return script


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_what_follows_a_batch_need_not_be_the_model(kind: str):
    """Masks that inference saves, tokens that a training loop makes."""
    script = before_backward(SAVES_MASKS, stack(LOOP, CALLED), kind=kind)
    diagnosis, rules = found(script)
    assert "outside the model in each step, most of it in save_masks at train.py:61" in (
        diagnosis.verdict.sentence
    )
    share = rules["time-outside-model"].evidence["share_of_time"]
    assert share == pytest.approx(30 / (66 if kind == "train" else 61), abs=0.01)
    assert "compute-bound" not in rules


@pytest.mark.parametrize("kind", ["train", "eval"])
@pytest.mark.parametrize(
    ("source", "is_outside"),
    [
        ("from itertools import groupby\n\ndef encode(mask):\n    return runs(mask)\n", True),
        ("import numpy as np\n\ndef encode(mask):\n    return mask.argmax()\n", True),
        ("import torch\n\ndef encode(mask):\n    return mask.argmax()\n", False),
        ("from .ops import F\n\ndef encode(mask):\n    return F.relu(mask)\n", False),
        ("# of a tensor\n\ndef encode(mask):\n    return mask.argmax()\n", False),
        ("", False),  # it is not there
    ],
)
def test_code_of_files_that_say_nothing_of_tensors_is_outside_of_the_model(
    kind: str, source: str, is_outside: bool, tmp_path: Path
):
    file = tmp_path / "rle.py"
    if source:
        file.write_text(source)
    encodes = stack(LOOP, f"{SCRIPT}:70:add", f"{file}:4:encode")
    _, rules = found(before_backward(encodes, stack(LOOP, CALLED), kind=kind))
    assert ("time-outside-model" in rules) == is_outside
    if is_outside:
        cause = rules["time-outside-model"].cause
        assert cause is not None
        assert (cause.place, cause.function) == ("rle.py:4", "encode")
    assert "time-outside-model" not in found(before_backward(encodes, kind=kind))[1]


AUGMENTS = stack(LOOP, f"{SCRIPT}:90:augmented")
ASKS = f"{TORCH}/utils/data/dataloader.py:700:__next__"


def seen_asking(script: Script, *frames: str) -> Script:
    """Add the waits of a script's steps, of a second in all."""
    return script.seen(stack(*frames, ASKS), "data_wait", 50 * MS, 1050 * MS)


@pytest.mark.parametrize(
    "inner",
    [(), (f"{TORCH}/functional.py:9:stft",), (f"{SCRIPT}:95:noise",)],
    ids=["lines of its own", "torch", "a function of the script's"],
)
@pytest.mark.parametrize("model", [stack(LOOP, CALLED), FUNCTIONAL], ids=["module", "functions"])
def test_what_a_generator_does_that_hands_batches_on_is_outside_of_the_model(
    inner: tuple[str, ...], model: str
):
    script = before_backward(stack(AUGMENTS, *inner), model)
    diagnosis, rules = found(seen_asking(script, LOOP, f"{SCRIPT}:88:augmented"))
    name = "noise at train.py:95" if "noise" in "".join(inner) else "augmented at train.py:90"
    assert f"outside the model in each step, most of it in {name}" in diagnosis.verdict.sentence
    assert rules["time-outside-model"].evidence["share_of_time"] == pytest.approx(30 / 66, abs=0.02)


@pytest.mark.parametrize("name", ["main", "train_epoch"])
def test_the_function_of_the_loop_hands_no_batches_on(name: str):
    """Its own lines may be the model, whether its backward is ever sampled or not."""
    frames = (LOOP,) if name == "main" else (LOOP, f"{SCRIPT}:30:train_epoch")
    inside = stack(*frames, *([] if name == "main" else [f"{SCRIPT}:31:train_epoch"]))
    script = seen_asking(before_backward(inside, stack(*frames, CALLED)), *frames)
    assert "time-outside-model" not in found(script)[1]


@pytest.mark.parametrize(
    "texts",
    [
        (stack(LOOP, CALLED),),
        (FUNCTIONAL,),
        (FUNCTIONAL, stack(LOOP, CALLED)),
        (stack(LOOP, f"{TORCH[:-6]}/onnxruntime/capi/session.py:220:Session.run"),),
        (stack(LOOP, CALLED, f"{TORCH[:-6]}/triton/runtime/jit.py:1:JITFunction.run"),),
        (AT_BARRIER, stack(LOOP, CALLED)),
    ],
)
def test_what_may_be_the_model_is_not_outside_of_it(texts: tuple[str, ...]):
    for kind in ("train", "eval"):
        assert "time-outside-model" not in found(before_backward(*texts, kind=kind))[1]


def test_what_an_evaluation_does_with_its_batches_is_in_no_step():
    script = Script()
    for _ in range(4):
        began = script.now
        script.iterates().train(200).seen(stack(LOOP, CALLED), "forward", began)
        began = script.now
        script.evaluate(batches=60, forward=60).seen(SAVES_MASKS, "forward", began)
    assert "time-outside-model" not in found(script)[1]


def test_gradient_clipping_is_part_of_the_model():
    script = Script().iterates().train(400, other=20)
    clips = stack(LOOP, f"{TORCH}/nn/utils/clip_grad.py:20:clip_grad_norm_")
    _, rules = found(script.seen(clips, "other", 50 * MS))
    assert "time-outside-model" not in rules


def test_a_fault_of_training_steps_is_weighed_by_their_part_of_the_run():
    script = Script(workers=(0, 0))
    script.iterates().train(60, wait_ms=10)
    _, alone = found(script)
    assert "too-few-workers" in alone
    _, rules = found(script.between(60_000))
    assert rules["too-few-workers"].severity == "info"
    assert next(iter(rules)) == "between-epochs"


def test_inference_is_diagnosed_by_its_batches():
    script = Script(workers=(0, 0)).iterates()
    for _ in range(100):
        script.fetch(40)
        script.row("eval", data_wait=40, forward=10)
    script.seen(ITEM, "data_wait", 50 * MS)
    diagnosis, rules = found(script)
    assert diagnosis.verdict.steps == 98
    assert diagnosis.verdict.sentence.startswith("80% of step time waits for data")
    assert rules["too-few-workers"].cause is not None
    assert rules["too-few-workers"].cause.line == 9
    assert not set(rules) & {"evaluation", "passed-over-batches"}


def hanging(seconds: int = 24, **of_script: Any) -> Script:
    script = Script(**of_script).iterates().train(30).hangs(seconds)
    for worker in (0, 1):
        until = script.now + seconds * 1000 * MS
        script.seen(LOCK, "work", script.now, until, worker=worker)
    return script


def test_a_wait_that_has_not_ended_comes_first_with_the_workers_line():
    script = hanging()
    script.tables.rows["hosts"][0]["unix_offset_ns"] = 10**18
    diagnosis, rules = found(script)
    sentence = diagnosis.verdict.sentence
    assert sentence.startswith("The script has waited for its batch for 24 s (")
    assert sentence.endswith("in Rows.__getitem__ at train.py:21 in workers 0 and 1.")
    assert rules["open-wait"].severity == "critical"
    assert rules["open-wait"].evidence["batch"] == 30
    assert account(script).seconds("open") == pytest.approx(24.0)
    # At the rates of the last steps it would wait for little.
    window = TimeWindow(script.now + 14_000 * MS, script.now + 24_000 * MS)
    assert read_step_rates(script.tables, window).shares["data_wait"] > 0.9
    (rank, *_) = read_processes(script.tables, window)
    assert rank.busy == pytest.approx(0.0, abs=0.1)


def test_a_wait_that_ctrl_c_has_ended():
    """The rank closes its records then, with a row of a wait in which no batch came."""
    script = hanging()
    script.row("between", data_wait=24_000)
    script.tables.add("events", at_ns=script.now, kind="rank-ended")
    diagnosis, rules = found(script)
    assert diagnosis.verdict.sentence.startswith("The script has waited for its batch for 24 s")
    assert "between-epochs" not in rules


def test_workers_that_are_stuck_before_their_first_batch():
    script = Script().iterates().hangs(30)
    until = script.now + 30_000 * MS
    loop = LOCK.split("\n", maxsplit=1)[0]
    forked = stack(LOOP, f"{TORCH}/utils/data/dataloader.py:9:__iter__", loop)
    script.seen(stack(forked, f"{SCRIPT}:15:open_archive"), "idle", script.now, until, worker=0)
    script.seen(stack(forked, "/usr/lib/queues.py:1:get"), "idle", script.now, until, worker=1)
    assert "in open_archive at train.py:15 in worker 0." in found(script)[0].verdict.sentence


def test_workers_that_native_code_holds_are_told_by_their_silence():
    script = Script().iterates().train(30).hangs(30)
    end = script.now + 30_000 * MS
    for worker in (0, 1):
        script.tables.add("processes", pid=1000 + worker, role="worker", rank=0, loader=TRAIN,
                          worker=worker, started_ns=50 * MS)  # fmt: skip
        for pid in (100, 1000 + worker):
            script.tables.add("process_usage", t_ns=end, pid=pid, threads=2)
    script.seen(LOCK, "work", script.now, end, worker=1)
    sentence = found(script)[0].verdict.sentence
    assert "in worker 1; worker 0 ran no Python meanwhile." in sentence


def silent(*, closed: bool = False, off: bool = False) -> Script:
    """A rank that lives and has no stack samples for 30 s."""
    script = Script(workers=(0, 0)).iterates()
    began = script.now
    script.train(100).seen(ITEM, "data_wait", began)
    if closed:
        script.tables.add("events", at_ns=script.now, kind="rank-ended")
    if off:
        script.tables.add("events", at_ns=script.now, kind="switched", text="off")
    script.tables.add("process_usage", t_ns=script.now + 30_000 * MS, pid=100, threads=2)
    return script


def test_a_rank_that_native_code_holds_is_told_by_its_silence():
    sentence = found(silent())[0].verdict.sentence
    assert sentence.startswith("The script has run no Python for 30 s, as if stopped or held by")
    assert sentence.endswith("; it was seen last in Rows.__getitem__ at train.py:9.")


@pytest.mark.parametrize("why", ["closed", "off"])
def test_a_rank_that_records_no_more_is_not_silent(why: str):
    assert "open-wait" not in found(silent(**{why: True}))[1]


def test_a_wait_for_the_very_first_batch():
    script = Script(workers=(0, 0)).iterates().hangs(30, ITEM)
    diagnosis, _ = found(script)
    assert diagnosis.verdict.sentence == (
        "The script has waited for its batch for 30 s, and has not got it, "
        "in Rows.__getitem__ at train.py:9."
    )


@pytest.mark.parametrize(
    ("phase", "starts"),
    [
        ("backward", "The script has been in one step for 60 s, which has not ended, in reduce"),
        ("other", "The script has been outside of the model for 60 s, and has not come back, in"),
    ],
)
def test_what_has_not_ended_need_be_no_wait_for_a_batch(phase: str, starts: str):
    script = Script().iterates().train(30)
    script.hangs(60, stack(LOOP, f"{SCRIPT}:66:reduce"), phase)
    sentence = found(script)[0].verdict.sentence
    assert sentence.startswith(starts)
    assert "reduce at train.py:66" in sentence


def test_of_several_ranks_the_one_is_named_that_waits_for_no_other():
    script = hanging()
    other = Script(rank=1, tables=script.tables).iterates().train(29)
    other.hangs(25, stack(LOOP, f"{TORCH}/autograd/__init__.py:1:backward"), "backward")
    sentence = found(script)[0].verdict.sentence
    assert sentence.startswith("Rank 0 has waited for its batch for 24 s")


@pytest.mark.parametrize("phase", ["other", "data_wait", "forward"])
def test_a_rank_in_a_collective_waits_for_the_one_that_is_elsewhere(phase: str):
    """Rank 0 saves, or reads, while the others are at a barrier that they reached before it."""
    script = Script().iterates().train(30)
    waiting = Script(rank=1, tables=script.tables).iterates().train(29).hangs(61, AT_BARRIER, phase)
    assert waiting.now < script.now
    script.hangs(60, SAVE, "other")
    sentence = found(script)[0].verdict.sentence
    assert sentence.startswith("Rank 0 has been outside of the model for 60 s")
    assert "in save at train.py:77" in sentence


INIT = stack(f"{SCRIPT}:60:main", f"{SCRIPT}:12:Rows.__init__")
IMPORTS = stack(f"{SCRIPT}:3:<module>", f"{TORCH}/utils/cpp_extension.py:9:load")
BARRIER = stack(
    f"{SCRIPT}:70:main",
    f"{TORCH}/distributed/c10d_logger.py:83:wrapper",
    f"{TORCH}/distributed/distributed_c10d.py:4900:barrier",
)


def starting(
    tables: RunTables, text: str, since_s: int, until_s: int, rank: int = 0, cpu_share: float = 0.0
) -> RunTables:
    """Add where a process was before its first batch; a text "" ends that."""
    known = {"pid": 500 + rank, "rank": rank, "loader": -1, "worker": -1, "phase": "start"}
    for second in range(since_s, until_s):
        spent = {"wall_ns": 1000 * MS, "cpu_ns": int(cpu_share * 1000 * MS), "samples": 1}
        times = {"start_ns": second * 1000 * MS, "end_ns": (second + 1) * 1000 * MS}
        tables.add("startup_stacks", stack=text, **known, **times, **(spent if text else {}))
    return tables


def test_a_script_that_hangs_before_it_asks_for_a_batch():
    tables = starting(starting(RunTables(), IMPORTS, 0, 5), INIT, 5, 30)
    diagnosis = diagnose(tables)
    assert diagnosis.verdict.sentence == (
        "The script has begun no step for 30 s; it has waited for 25 s in "
        "Rows.__init__ at train.py:12."
    )
    (finding,) = diagnosis.findings
    assert finding.evidence["seconds_there"] == pytest.approx(25.0)
    window = TimeWindow(20_000 * MS, 30_000 * MS)
    (rank,) = read_processes(tables, window)
    assert (rank.role, rank.doing) == ("rank", "train.py:12 Rows.__init__")
    assert read_step_rates(tables, window).shares == {}


def test_a_start_that_computes_is_told_as_such():
    tables = starting(RunTables(), INIT, 0, 30, cpu_share=0.9)
    assert "it has computed for 30 s in Rows.__init__" in diagnose(tables).verdict.sentence


def test_of_ranks_that_start_the_one_is_named_that_the_others_wait_for():
    tables = starting(starting(RunTables(), BARRIER, 0, 40), INIT, 2, 40, rank=1)
    sentence = diagnose(tables).verdict.sentence
    assert sentence.startswith("Rank 1 has begun no step for 38 s")
    tables = starting(starting(RunTables(), BARRIER, 0, 40), BARRIER, 2, 40, rank=1)
    sentence = diagnose(tables).verdict.sentence
    assert sentence.endswith("for 40 s in main at train.py:70, in torch.distributed's barrier.")


def test_the_process_that_was_started_last_is_where_a_script_hangs():
    """A program that starts the ranks waits for them, and may seem to be one."""
    tables = starting(RunTables(), INIT, 5, 40)
    for row in starting(RunTables(), stack(f"{SCRIPT}:90:join"), 0, 40).rows["startup_stacks"]:
        tables.add("startup_stacks", **{**row, "pid": 400})
    assert "Rows.__init__ at train.py:12" in diagnose(tables).verdict.sentence


def test_a_start_that_is_over_is_no_finding():
    for until_s, then in ((8, None), (30, "ends"), (30, "trains")):
        script = Script()
        starting(script.tables, INIT, 0, until_s)
        if then == "ends":
            starting(script.tables, "", 30, 31)
        if then == "trains":
            script.now = 31_000 * MS
            script.iterates().train(30)
        assert "open-wait" not in found(script)[1], then


@pytest.mark.parametrize("seconds", [1, 5, 9])
def test_a_wait_that_may_end_soon_is_no_finding(seconds: int):
    assert "open-wait" not in found(hanging(seconds))[1]


def test_a_wait_no_longer_than_others_before_is_no_finding():
    script = Script().iterates().train(20).train(3, wait_ms=9000).hangs(20)
    assert "open-wait" not in found(script)[1]


def test_a_rank_that_has_ended_waits_for_nothing():
    script = Script().iterates().train(30)
    script.tables.add("events", at_ns=script.now, kind="rank-ended")
    script.tables.add("process_usage", t_ns=script.now + 60_000 * MS, pid=100, threads=1)
    assert account(script).open == ()


SITE = TORCH[:-6]


@pytest.mark.parametrize("user", [LOOP, ""], ids=["a script of three lines", "its command"])
@pytest.mark.parametrize("when", ["between", "other", "open"])
def test_what_a_librarys_trainer_does_is_told_by_the_library(user: str, when: str):
    """The user's only line runs all of it, and so says nothing."""
    engine, called = f"{SITE}/yolish/engine.py", [user] if user else []
    fit = [*called, f"{engine}:30:Engine.fit"]
    writes = f"{TORCH}/serialization.py:9:save"
    save = stack(*called, f"{engine}:40:Engine.fit", f"{engine}:77:Engine.save", writes)
    script = Script()
    script.tables.add("code_folders", rank=0, kind="library", folder=SITE)
    for _ in range(4):
        began = script.now
        script.iterates().train(100, other=40 if when == "other" else 1)
        script.seen(stack(*fit, CALLED), "forward", began)
        if when == "between":
            script.between(4000, save)
        elif when == "other":
            script.seen(save.rpartition("\n")[0], "other", began)
    if when == "open":
        script.hangs(60, save, "other")
    sentence = found(script)[0].verdict.sentence
    assert "in yolish Engine.save at engine.py:77" in sentence, sentence


def ended(script: Script) -> Script:
    """Say that the script has ended without an error, as its launcher does."""
    script.tables.add("events", rank=-1, at_ns=script.now, kind="script-ended")
    return script


def test_a_script_that_has_ended_without_training_hangs_nowhere():
    script = ended(Script())
    starting(script.tables, INIT, 0, 30)
    diagnosis, rules = found(script)
    assert "open-wait" not in rules
    assert diagnosis.verdict.sentence == (
        "No step was recorded; 100% of 30 s passes in Rows.__init__ at train.py:12."
    )


READS = stack(f"{SCRIPT}:50:main", f"{SCRIPT}:14:read")


@pytest.mark.parametrize("is_over", [False, True])
def test_inference_without_a_loader_is_told_its_lines(is_over: bool):
    script = Script()
    for second in range(40):
        line = f"{SCRIPT}:{12 + second % 4}:Net.forward"
        text = stack(f"{SCRIPT}:51:main", CALLED, line) if second % 3 == 0 else READS
        starting(script.tables, text, second, second + 1)
    diagnosis, rules = found(ended(script) if is_over else script)
    assert list(rules) == ["time-outside-model"]
    assert diagnosis.verdict.sentence == (
        "No step was recorded; 65% of 40 s passes in read at train.py:14."
    )


def test_a_start_that_stays_at_one_place_of_a_model_hangs():
    text = stack(f"{SCRIPT}:51:main", CALLED)
    assert "open-wait" in found_in(starting(RunTables(), text, 0, 40))


def test_a_script_without_steps_whose_model_takes_the_time_is_left_alone():
    tables = RunTables()
    for second in range(40):
        starting(tables, stack(LOOP, f"{SCRIPT}:{second}:x", CALLED), second, second + 1)
    assert found_in(tables) == {}


@pytest.mark.parametrize("phase", ["other", "forward"])
def test_what_a_script_does_before_it_ends_has_ended(phase: str):
    """By `os._exit`, so that the rank itself has written no row of it."""
    script = Script().iterates().train(100)
    script.hangs(20, SAVE, phase)
    assert "open-wait" in found(script)[1]
    diagnosis, rules = found(ended(script))
    assert list(rules) == ["between-epochs"]
    assert "20 of 24 s, passes after the last step, most of it in save" in (
        diagnosis.verdict.sentence
    )
    assert account(script).open == ()


def test_a_wait_for_a_batch_is_ended_by_a_signal_even_if_the_script_then_ends_well():
    assert "open-wait" in found(ended(hanging()))[1]


def test_each_part_of_the_time_is_counted_once():
    script = Script().iterates().passes_over(30, 10).train(20).evaluate().between(500).hangs(3)
    wall = account(script)
    whole = (script.now + 3000 * MS) / 1e9
    assert wall.start_seconds + wall.run_seconds == pytest.approx(whole)
    assert sum(wall.shares.values()) == pytest.approx(1.0)
    assert wall.seconds("passed_over") == pytest.approx(30 * 10.05e-3)
    assert wall.start_seconds == pytest.approx(0.05)


def test_the_phases_and_the_headline_tell_the_same_gradient_sync():
    """DDP times one step of so many; in the others its sync is part of backward."""
    script = Script().iterates()
    other = Script(rank=1, tables=script.tables).iterates()
    for each in (script, other):
        each.train(200)
    for number, row in enumerate(script.tables.rows["steps"]):
        if number % 20 == 0:
            row.update(sync_measured=1, sync_ns=10 * MS, backward_ns=13 * MS)
    diagnosis, rules = found(script)
    assert diagnosis.verdict.phase_shares["sync"] == pytest.approx(0.25)
    assert diagnosis.verdict.phase_shares["backward"] == pytest.approx(0.325)
    assert rules["sync-bound"].evidence["sync_share"] == pytest.approx(0.25)
    assert "gradient sync takes 25% of step time" in rules["sync-bound"].title
    steps = gather_evidence(script.tables).steps
    assert sum(steps.shares.values()) == pytest.approx(1.0)


MOVES = stack(LOOP, f"{TORCH[:-6]}/lightning/fabric/apply_func.py:104:batch_to")
IN_CLOSURE = stack(
    LOOP,
    f"{TORCH}/optim/optimizer.py:520:wrapper",
    f"{TORCH}/optim/sgd.py:120:SGD.step",
    f"{TORCH[:-6]}/lightning/loops/automatic.py:319:_closure",
    f"{TORCH}/nn/modules/module.py:1778:Module._call_impl",
)
IN_HOOK = stack(LOOP, f"{TORCH}/optim/optimizer.py:530:wrapper", f"{SCRIPT}:12:on_step")


@pytest.mark.parametrize(
    ("text", "outside"), [(IN_CLOSURE, False), (IN_HOOK, False), (MOVES, True)]
)
def test_a_few_samples_before_a_closure_do_not_stand_for_the_model_in_it(text: str, outside: bool):
    script = Script().iterates().train(100)  # 15 ms of 40 are forward: 1.5 s
    script.seen(text, "forward" if text == MOVES else "optimizer", 50 * MS, 1400 * MS)
    script.seen(MOVES, "forward", 1400 * MS, 1500 * MS)
    _, rules = found(script)
    assert ("time-outside-model" in rules) == outside
    samples = gather_evidence(script.tables).rank_samples
    assert {each.phase for each in samples if "closure" in each.frames[-2].function} <= {"forward"}
    hooks = [each.phase for each in samples if each.frames[-1].function == "on_step"]
    assert hooks == ["optimizer"] * (text == IN_HOOK)


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_batches_that_a_library_fetches_ahead_are_not_passed_over(ahead: int):
    """As Accelerate's loaders and Trainer do, timm's, and Lightning's of unknown length."""
    script = Script()
    for _ in range(3):
        script.iterates()
        waits = [script.fetch(3000 if number == 0 else 1) for number in range(ahead + 1)]
        for table in ("fetches", "batches"):
            begin = script.now
            for row, waited in zip(script.tables.rows[table][-ahead - 1 :], waits, strict=True):
                row["start_ns"], begin = begin, begin + waited
        script.row("train", batches=ahead + 1, data_wait=sum(waits) / MS, forward=39)
        script.train(50)
    _, rules = found(script)
    assert "passed-over-batches" not in rules
    assert account(script).seconds("passed_over") == 0
