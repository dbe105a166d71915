from __future__ import annotations

import numpy as np
import pytest

from headrace.observe.doctor.diagnose import diagnose
from headrace.observe.doctor.model import Diagnosis
from headrace.observe.doctor.rules import slow_storage
from headrace.observe.whatif.measured import Work
from run_tables import AUGMENT, PIL, SCRIPT, WORKER_LOOP, Run, RunTables, play, stack

LOOP = f"{SCRIPT}:50:<module>"
GETITEM = f"{AUGMENT}:9:Faces.__getitem__"
BLUR = stack(WORKER_LOOP, GETITEM, f"{AUGMENT}:31:RandomBlur.__call__", f"{PIL}:160:filter")
DECODE = stack(WORKER_LOOP, GETITEM, f"{AUGMENT}:12:decode")
READ = stack(WORKER_LOOP, f"{AUGMENT}:14:read_sample")
COLLATE = stack(WORKER_LOOP, f"{AUGMENT}:60:pad_collate")
LOCKED = stack(
    WORKER_LOOP,
    f"{AUGMENT}:20:Faces.__getitem__",
    "/usr/lib/python3.11/multiprocessing/synchronize.py:95:SemLock.__enter__",
)
TRANSFORMS = [
    ("Faces.transform: Compose", AUGMENT, 1, 0.9),
    ("Faces.transform.transforms[0]: RandomBlur", AUGMENT, 28, 0.7),
    ("Faces.transform.transforms[1]: ToTensor", AUGMENT, 44, 0.2),
]


def rules(diagnosis: Diagnosis) -> list[str]:
    return [finding.rule for finding in diagnosis.findings]


def test_a_healthy_run_is_told_so_and_left_alone():
    diagnosis = diagnose(play(Run(workers=4, service_ms=10, busy_cores=3)))
    assert rules(diagnosis) == ["compute-bound"]
    assert diagnosis.verdict.bound == "compute"
    assert diagnosis.verdict.sentence.startswith("The accelerator is the limit:")
    assert diagnosis.verdict.sentence.endswith("nothing to fix.")
    assert not diagnosis.findings[0].remedies


def test_a_worker_bound_by_one_transform_names_its_line():
    diagnosis = diagnose(
        play(
            Run(
                workers=2,
                service_ms=50,
                cores=2,
                busy_cores=1.9,
                worker_stacks=[(BLUR, 0.71, 1.0), (DECODE, 0.29, 1.0)],
                transforms=TRANSFORMS,
            )
        )
    )
    worst = diagnosis.findings[0]
    assert (worst.rule, worst.severity) == ("cpu-bound-worker", "critical")
    assert worst.cause is not None
    assert (worst.cause.file, worst.cause.line) == (AUGMENT, 31)
    assert worst.cause.function == "RandomBlur.__call__ > PIL/ImageFilter.py:filter"
    assert worst.cause.transform == "Faces.transform.transforms[0]: RandomBlur"
    assert worst.cause.share == pytest.approx(0.71, abs=0.01)
    assert "RandomBlur at augment.py:31 takes 71% of the workers' time" in (
        diagnosis.verdict.sentence
    )
    assert diagnosis.verdict.bound == "data"
    without = next(remedy for remedy in worst.remedies if remedy.name == "move-code")
    assert without.predicted_speedup == pytest.approx(25 / 10.6, rel=0.1)
    assert "workers" not in [remedy.name for remedy in worst.remedies]  # no core is idle


def test_one_worker_and_idle_cores_ask_for_workers():
    diagnosis = diagnose(
        play(
            Run(
                workers=1,
                service_ms=30,
                busy_cores=1.5,
                worker_stacks=[(BLUR, 0.3, 1.0), (DECODE, 0.7, 1.0)],
            )
        )
    )
    worst = diagnosis.findings[0]
    assert worst.rule == "too-few-workers"
    assert worst.remedies[0].predicted_speedup == pytest.approx(30 / 10.6, rel=0.1)
    assert worst.remedies[0].change in {"3 workers instead of 1", "4 workers instead of 1"}
    assert " instead of 1 the run would be 2.8 times as fast (" in diagnosis.verdict.sentence


def test_a_loader_without_workers_asks_for_some():
    diagnosis = diagnose(play(Run(workers=0, service_ms=10, busy_cores=1)))
    worst = diagnosis.findings[0]
    assert worst.rule == "too-few-workers"
    assert worst.remedies[0].predicted_speedup == pytest.approx(20.5 / 10.6, rel=0.1)


def test_slow_storage_names_the_line_that_reads():
    diagnosis = diagnose(
        play(
            Run(
                workers=2,
                service_ms=60,
                worker_cpu=0.1,
                read_bytes=1_000_000,
                busy_cores=0.5,
                worker_stacks=[(READ, 0.9, 0.02), (DECODE, 0.1, 0.9)],
            )
        )
    )
    worst = diagnosis.findings[0]
    assert worst.rule == "slow-storage"
    assert worst.cause is not None
    assert worst.cause.line == 14
    assert worst.evidence["bound"] == "latency"
    assert {remedy.name for remedy in worst.remedies} == {"workers", "shards"}
    assert rules(diagnosis).index("too-few-workers") > 0


def test_slow_collate_names_its_line():
    diagnosis = diagnose(
        play(
            Run(
                workers=2,
                service_ms=50,
                collate_ms=30,
                cores=2,
                busy_cores=1.9,
                worker_stacks=[(COLLATE, 0.6, 1.0), (DECODE, 0.4, 1.0)],
            )
        )
    )
    worst = diagnosis.findings[0]
    assert worst.rule == "slow-collate"
    assert worst.cause is not None
    assert (worst.cause.file, worst.cause.line) == (AUGMENT, 60)


def test_slow_collate_finds_the_function_that_the_script_calls_otherwise():
    fetch = "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py"
    distances = stack(WORKER_LOOP, f"{fetch}:55:_MapDatasetFetcher.fetch", f"{SCRIPT}:60:distances")
    item = stack(
        WORKER_LOOP, f"{fetch}:52:_MapDatasetFetcher.fetch", f"{SCRIPT}:70:Data.__getitem__"
    )
    run = Run(workers=2, service_ms=50, collate_ms=49, cores=2, busy_cores=1.9)
    run.worker_stacks = [(distances, 0.99, 1.0), (item, 0.01, 1.0)]
    run.transforms = [("collate_fn", SCRIPT, 55, 0.98)]
    worst = diagnose(play(run)).findings[0]
    assert worst.rule == "slow-collate"
    assert worst.cause is not None
    assert (worst.cause.file, worst.cause.line) == (SCRIPT, 60)
    assert worst.cause.function == "distances"


def test_workers_that_wait_for_a_lock():
    diagnosis = diagnose(
        play(
            Run(
                workers=4,
                service_ms=80,
                worker_cpu=0.3,
                busy_cores=2,
                worker_stacks=[(LOCKED, 0.7, 0.01), (DECODE, 0.3, 1.0)],
            )
        )
    )
    assert diagnosis.findings[0].rule == "lock-contention"
    assert diagnosis.findings[0].cause is not None
    assert diagnosis.findings[0].cause.line == 20


def test_gradient_sync_that_is_not_hidden():
    run = Run(workers=4, service_ms=8, ranks=2, busy_cores=4)
    run.phases_ms["sync"] = 6.0
    diagnosis = diagnose(play(run))
    assert diagnosis.findings[0].rule == "sync-bound"
    assert diagnosis.verdict.bound == "sync"


def test_a_slow_rank_is_named_rather_than_the_sync_of_the_others():
    run = Run(workers=4, service_ms=8, ranks=4, cores=32, busy_cores=8)
    run.slow_rank, run.slow_rank_ms = 2, 5.0
    diagnosis = diagnose(play(run))
    assert rules(diagnosis) == ["slow-rank"]
    assert diagnosis.findings[0].evidence["rank"] == 2
    assert diagnosis.findings[0].evidence["phase"] == "forward"
    assert diagnosis.findings[0].evidence["kind"] == "compute"
    (even,) = diagnosis.findings[0].remedies
    own, others = (diagnosis.findings[0].evidence[name] for name in ("own_ms", "others_ms"))
    assert own - others == pytest.approx(5.0, rel=0.05)
    step_ms = diagnosis.verdict.step_ms
    assert even.predicted_speedup == pytest.approx(step_ms / (step_ms - 5.0), rel=0.03)


def test_a_rank_whose_every_phase_is_slower_has_a_slower_host():
    tables = play(Run(workers=4, service_ms=8, ranks=4, cores=32, busy_cores=8))
    for row in tables.rows["steps"]:
        if row["rank"] == 2:
            for phase in ("forward", "backward", "optimizer", "other"):
                more = row[f"{phase}_ns"] // 2
                row[f"{phase}_ns"] += more
                row["wall_ns"] += more
    slow = diagnose(tables).findings[0]
    assert (slow.rule, slow.evidence["rank"], slow.evidence["kind"]) == ("slow-rank", 2, "host")
    assert slow.cause is None
    assert "its host or its device is slower" in slow.title


def test_steps_that_save_checkpoints_are_periodic_outliers():
    save = stack(LOOP, f"{SCRIPT}:77:save", "/venv/lib/python3.11/site-packages/torch/x.py:5:save")
    run = Run(workers=4, service_ms=8, busy_cores=3, rank_stacks=[(save, "other", 0.2, 0.5)])
    run.outlier_every, run.outlier_ms = 20, 60.0
    diagnosis = diagnose(play(run))
    worst = diagnosis.findings[0]
    assert worst.rule == "step-outliers"
    assert worst.evidence["every_steps"] == 20
    assert worst.cause is not None
    assert worst.cause.line == 77


def test_workers_that_are_started_again_each_epoch():
    diagnosis = diagnose(
        play(Run(workers=2, service_ms=8, batches=20, epochs=6, restart_ms=300, busy_cores=3))
    )
    worst = diagnosis.findings[0]
    assert worst.rule == "workers-restarted"
    assert worst.remedies[0].name == "persistent-workers"
    assert worst.remedies[0].predicted_speedup is not None
    assert worst.remedies[0].predicted_speedup > 1.5


def test_a_loader_that_is_made_anew_each_epoch_is_to_be_made_once():
    tables = play(Run(workers=2, service_ms=8, batches=20, epochs=6, restart_ms=300, busy_cores=3))
    tables.rows["loaders"] *= 6
    worst = diagnose(tables).findings[0]
    assert worst.rule == "workers-restarted"
    assert worst.evidence["constructed"] == 6
    (once,) = worst.remedies
    assert "once, before the epochs begin" in once.how
    assert once.overrides == ()  # persistent workers alone do not help
    # Of two stages with three epochs each, persistent workers save most starts.
    tables.rows["loaders"] = tables.rows["loaders"][:2]
    (persistent,) = diagnose(tables).findings[0].remedies
    assert persistent.how == "Give the DataLoader at train.py:40 persistent_workers=True."
    assert len(persistent.overrides) == 1


def test_batches_that_vary_ask_for_a_deeper_prefetch():
    diagnosis = diagnose(
        play(Run(workers=2, prefetch_factor=1, service_ms=16, service_spread=0.7, batches=400))
    )
    assert diagnosis.findings[0].rule == "shallow-prefetch"


def test_threads_of_workers_on_full_cores():
    diagnosis = diagnose(
        play(Run(workers=4, service_ms=80, cores=4, busy_cores=4, threads=3, worker_cpu=0.5))
    )
    assert diagnosis.findings[0].rule == "oversubscribed-threads"


def test_a_script_without_a_loader_names_its_own_line():
    load = stack(LOOP, f"{SCRIPT}:21:make_batch")
    model = stack(LOOP, "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:9:_call")
    run = Run(loader=False, rank_stacks=[(load, "forward", 0.6, 1.0), (model, "forward", 0.4, 1.0)])
    diagnosis = diagnose(play(run))
    worst = diagnosis.findings[0]
    assert worst.rule == "data-wait"
    assert worst.cause is not None
    assert worst.cause.line == 21
    assert diagnosis.verdict.sentence.startswith("The script makes its data itself: make_batch")


@pytest.mark.parametrize("batches", [1, 3, 11])
def test_too_few_steps_say_nothing(batches: int):
    diagnosis = diagnose(play(Run(batches=batches)))
    assert diagnosis.findings == ()
    assert diagnosis.verdict.sentence.startswith(f"Too few steps were recorded ({batches}) to tell")


def test_a_run_that_took_no_step_is_told_so():
    diagnosis = diagnose(RunTables())
    assert diagnosis.findings == ()
    assert diagnosis.verdict.sentence.startswith("No training step was recorded")


def test_the_share_of_timed_reads_leaves_out_batches_without():
    rows = {"read_ns": np.array([-1, 50, -1]), "wall_ns": np.array([100, 100, 300])}
    assert slow_storage._share(Work(rows=rows, cpu_measured=True), "read_ns", "wall_ns") == 0.5
    none = {"read_ns": np.array([-1, -1]), "wall_ns": np.array([100, 100])}
    assert slow_storage._share(Work(rows=none, cpu_measured=True), "read_ns", "wall_ns") is None
