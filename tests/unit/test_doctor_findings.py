"""Findings, their severity, and what their remedies are predicted to give."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.evidence import gather_evidence
from headrace.observe.doctor.findings import Cause, Diagnosis
from headrace.observe.doctor.remedies import predict_without
from headrace.observe.doctor.rules import batch_making
from headrace.observe.whatif.measured_pipeline import BatchWork
from run_tables import AUGMENT, MS, PIL, SCRIPT, WORKER_LOOP, Run, RunTables, play, stack

LOOP = f"{SCRIPT}:50:<module>"


GETITEM = f"{AUGMENT}:9:Faces.__getitem__"


BLUR = stack(WORKER_LOOP, GETITEM, f"{AUGMENT}:31:RandomBlur.__call__", f"{PIL}:160:filter")


DECODE = stack(WORKER_LOOP, GETITEM, f"{AUGMENT}:12:decode")


READ = stack(WORKER_LOOP, f"{AUGMENT}:14:read_sample")


def rules(diagnosis: Diagnosis) -> list[str]:
    return [finding.rule for finding in diagnosis.findings]


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


def test_a_run_that_took_no_step_is_reported():
    diagnosis = diagnose(RunTables())
    assert diagnosis.findings == ()
    assert diagnosis.verdict.sentence.startswith("No training step was recorded")


def test_the_share_of_timed_reads_leaves_out_batches_without():
    rows = {"read_ns": np.array([-1, 50, -1]), "wall_ns": np.array([100, 100, 300])}
    assert (
        batch_making._column_share(BatchWork(rows=rows, cpu_measured=True), "read_ns", "wall_ns")
        == 0.5
    )
    none = {"read_ns": np.array([-1, -1]), "wall_ns": np.array([100, 100])}
    assert (
        batch_making._column_share(BatchWork(rows=none, cpu_measured=True), "read_ns", "wall_ns")
        is None
    )


LINES = [
    (stack(WORKER_LOOP, f"{AUGMENT}:{line}:part_{line}"), share, 1.0)
    for line, share in ((31, 0.3), (32, 0.25), (33, 0.25), (34, 0.2))
]


def starved(service_ms: float, **changes) -> Run:
    """Return a run of two workers on two full cores whose work is spread over lines."""
    given = {"cores": 2, "busy_cores": 1.95, "worker_stacks": LINES, "batches": 200}
    return Run(**{"workers": 2, "service_ms": service_ms, **given, **changes})


@pytest.mark.parametrize("service_ms", [60, 200, 400, 2000])
def test_however_long_batches_take_the_wait_for_them_is_critical(service_ms: float):
    diagnosis = diagnose(play(starved(service_ms)))
    worst = diagnosis.findings[0]
    assert (worst.rule, worst.severity) == ("cpu-bound-worker", "critical")
    assert worst.cause is not None
    assert worst.cause.line == 31
    # Without the line, a batch takes 0.7 of its time.
    share = gather_evidence(play(starved(service_ms))).steps.data_wait_share
    total = gather_evidence(play(starved(service_ms))).steady_steps.total_seconds
    assert worst.seconds_lost == pytest.approx(0.3 / max(share, 0.3) * share * total, rel=0.25)
    assert diagnosis.verdict.bound == "data"
    assert "Nothing to fix" not in diagnosis.verdict.sentence


def test_more_workers_for_a_loader_that_starves_are_worth_all_of_what_they_give():
    run = Run(workers=1, service_ms=400, cores=8, busy_cores=1, worker_stacks=LINES)
    few = next(each for each in diagnose(play(run)).findings if each.rule == "too-few-workers")
    assert few.severity == "critical"


def test_a_stream_that_is_to_have_more_workers_is_to_be_shared_out():
    tables = play(Run(workers=1, service_ms=100, cores=8, busy_cores=1, worker_stacks=LINES))
    (remedy,) = remedies(tables, "workers")
    assert "get_worker_info" not in remedy.how
    tables.rows["loaders"][0]["style"] = "iterable"
    (remedy,) = remedies(tables, "workers")
    assert "every sample comes" in remedy.how
    assert "get_worker_info" in remedy.how
    assert remedy.overrides == ()


def remedies(tables: RunTables, name: str) -> list:
    worst = next(
        each for each in diagnose(tables).findings if any(r.name == name for r in each.remedies)
    )
    return [remedy for remedy in worst.remedies if remedy.name == name]


@pytest.mark.parametrize("steps", [200, pytest.param(25_000, marks=pytest.mark.long)])
def test_what_goes_at_least_and_at_most_is_the_same_share_in_long_runs(steps: int):
    evidence = gather_evidence(play(Run(workers=4, service_ms=1, batches=steps, busy_cores=3)))
    wall = evidence.steps.wall_ns
    found = predict_without(evidence, wall * 0.1, wall * 0.5)
    assert found.low == pytest.approx(1 / 0.9, rel=0.1)  # and a tenth of the gain of either
    assert found.high == pytest.approx(1 / 0.5, rel=0.1)


def test_no_interval_is_narrower_than_two_runs_of_one_script():
    evidence = gather_evidence(play(Run(workers=4, service_ms=8, busy_cores=3)))
    found = predict_without(evidence, evidence.steps.wall_ns * 0.2)
    assert found.low <= found.speedup * 0.985
    assert found.high >= found.speedup * 1.015


def saving_on_rank_0(ranks: int) -> RunTables:
    """Return a run whose first rank saves every 20 steps, for which the others wait in backward."""
    run = Run(workers=4, service_ms=8, busy_cores=3, batches=400, ranks=ranks, cores=16)
    run.rank_stacks = [
        (stack(LOOP, f"{SCRIPT}:70:save"), "other", 0.2, 1.0),
        (stack(LOOP, f"{SCRIPT}:60:step"), "backward", 0.6, 1.0),
        (LOOP, "forward", 0.2, 1.0),
    ]
    tables = play(run)
    for row in tables.rows["steps"]:
        late = row["step"] % 20 == (0 if row["rank"] else 19)
        if late:
            row["backward_ns" if row["rank"] else "other_ns"] += 80 * MS
            row["wall_ns"] += 80 * MS
    return tables


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_one_rank_saves_is_not_blamed_on_the_backward_of_those_that_wait(ranks: int):
    found = [
        each for each in diagnose(saving_on_rank_0(ranks)).findings if each.rule == "step-outliers"
    ]
    (outliers,) = found
    assert (outliers.evidence["phase"], outliers.evidence["every_steps"]) == ("other", 20)


def test_a_start_that_is_slow_leaves_the_rest_healthy():
    tables = play(Run(workers=4, service_ms=8, busy_cores=3))
    tables.rows["fetches"][0]["wait_ns"] = 30_000 * MS
    assert {each.rule for each in diagnose(tables).findings} == {"slow-start", "compute-bound"}
    other = dict(tables.rows["fetches"][0], loader=1)
    tables.rows["fetches"][0]["wait_ns"] = 0
    tables.rows["fetches"].append(other)  # a validation loader's, in the middle of the run
    assert "slow-start" not in {each.rule for each in diagnose(tables).findings}


@pytest.mark.parametrize(
    ("on_cpu", "copy_ms", "busy_cores", "fires"),
    [(1.0, 0.0, 3, False), (0.3, 0.0, 3, True), (0.3, 0.0, 8, False), (1.0, 0.2, 3, True)],
)
def test_reading_a_value_that_the_cpu_computes_there_waits_for_no_device(
    on_cpu: float, copy_ms: float, busy_cores: float, fires: bool
):
    frames = stack(
        LOOP,
        f"{SCRIPT}:57:log",
        "/venv/lib/python3.11/site-packages/torch/_tensor.py:1100:Tensor.__format__",
    )
    run = Run(workers=4, service_ms=8, busy_cores=busy_cores)
    run.phases_ms |= {"copy": copy_ms, "other": 3.0}
    run.rank_stacks = [(frames, "other", 0.3, on_cpu), (LOOP, "forward", 0.7, 1.0)]
    assert ("device-sync" in {each.rule for each in diagnose(play(run)).findings}) == fires


def test_what_is_predicted_is_marked_as_such():
    diagnosis = diagnose(play(starved(200)))
    findings = diagnosis.to_json()["findings"]
    assert {finding["foretold"] for finding in findings} == {False}
    assert np.isfinite(findings[0]["seconds_lost"])


def test_sync_that_was_measured_on_one_rank_alone_compares_no_ranks():
    tables = play(Run(ranks=2, workers=4, service_ms=8, cores=32, busy_cores=4))
    for row in tables.rows["steps"]:  # as in a short span of a run that measures it now and then
        row["sync_measured"] = int(row["rank"] == 0)
    assert "slow-rank" not in rules(diagnose(tables))
    for row in tables.rows["steps"]:
        row["sync_measured"] = int(row["rank"] == 0)
        if row["rank"] == 1:
            row["forward_ns"] += 5 * MS
            row["wall_ns"] += 5 * MS
    slow = next(each for each in diagnose(tables).findings if each.rule == "slow-rank")
    assert "rank 1 needs 1.9 times as long" in slow.title


def test_what_is_read_for_a_sample_is_unknown_where_samples_are():
    run = Run(workers=2, service_ms=60, worker_cpu=0.02, read_bytes=1_000_000, busy_cores=0.5)
    run.worker_stacks = [(READ, 0.9, 0.02), (DECODE, 0.1, 0.9)]
    tables = play(run)
    known = diagnose(tables).findings[0]
    assert (known.rule, known.evidence["read_kb_per_sample"]) == ("slow-storage", 1000 / 32)
    for row in (*tables.rows["batches"], *tables.rows["steps"]):
        row["samples"] = -1
    unknown = diagnose(tables).findings[0]
    assert (unknown.rule, unknown.evidence["read_kb_per_sample"]) == ("slow-storage", None)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("encode.<locals>.<listcomp>.<genexpr>", "encode"),
        ("Writer.add.<locals>.<genexpr>", "Writer.add"),
        ("main.<locals>.<lambda> > itertools.py:chain", "main"),
        ("outer.<locals>.inner.<locals>.<dictcomp>", "inner"),
        ("<module>.<genexpr>", ""),
    ],
)
def test_scopes_without_a_name_count_to_the_function_around_them(function: str, name: str):
    assert Cause(file=SCRIPT, line=4, function=function).name == name
