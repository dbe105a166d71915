"""What the doctor takes from records of cores, processes and GPUs, and what it leaves open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.observe.doctor.diagnosis import diagnose, rank_findings
from headrace.observe.doctor.evidence import Evidence, gather_evidence
from headrace.observe.doctor.findings import Diagnosis, Finding
from headrace.observe.doctor.gpu_usage import gpu_utilisation
from headrace.observe.whatif.measured_pipeline import measure, read_host_usage
from headrace.observe.whatif.prediction import PipelineChange, Simulator
from run_tables import AUGMENT, MS, WORKER_LOOP, Run, RunTables, play, stack

GETITEM = stack(WORKER_LOOP, f"{AUGMENT}:9:Faces.__getitem__")


def rules(diagnosis: Diagnosis) -> list[str]:
    return [finding.rule for finding in diagnosis.findings]


def with_usage(tables: RunTables, percent_of: dict[int, float], end_ms: int) -> RunTables:
    """Add looks at processes, each at times of its own, as the probe looks."""
    for place, (pid, percent) in enumerate(percent_of.items()):
        for t_ms in range(0, end_ms, 500):
            tables.add("process_usage", t_ns=t_ms * MS + place * 1000, pid=pid, cpu_percent=percent)
    return tables


def test_cores_are_counted_although_each_process_is_looked_at_in_its_own_time():
    tables = play(Run(workers=2, service_ms=50, cores=2, busy_cores=1.9))
    with_usage(tables, {100: 30.0, 1000: 80.0, 1001: 80.0}, 4000)
    host = read_host_usage(tables)
    assert host.rank_cores == pytest.approx(0.3, rel=0.02)
    assert host.foreign_cores == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize("pool", [0, 2])
def test_what_a_rank_has_started_beside_its_workers_is_no_others(pool: int):
    tables = play(Run(workers=2, service_ms=50, cores=8, busy_cores=3.9))
    shares = {100: 30.0, 1000: 80.0, 1001: 80.0} | {5000 + each: 100.0 for each in range(pool)}
    host = read_host_usage(with_usage(tables, shares, 4000))
    assert host.rank_cores == pytest.approx(0.3, rel=0.02)
    assert host.foreign_cores == pytest.approx(2.0 - pool, abs=0.05)


def of_a_quota(machine_busy: float, *, looked: bool = True) -> Evidence:
    """Play a container that may use two of a machine's eight cores; its own processes use 1.5."""
    tables = play(Run(workers=2, service_ms=50, cores=8, busy_cores=machine_busy))
    tables.rows["hosts"][0]["cores"] = 2.0
    if looked:
        with_usage(tables, {100: 30.0, 1000: 60.0, 1001: 60.0}, 4000)
    return gather_evidence(tables)


def test_what_others_use_of_a_machine_is_not_taken_from_a_container_s_share_of_it():
    shared = of_a_quota(7.4)  # 2.1 cores are left to it, more than its share
    assert shared.host.busy_cores == pytest.approx(1.5, rel=0.02)
    assert shared.host.foreign_cores == pytest.approx(0.0, abs=0.05)
    assert not shared.cores_short
    pressed = of_a_quota(8.0)
    assert pressed.host.foreign_cores == pytest.approx(0.5, abs=0.05)
    assert pressed.cores_full
    unknown = of_a_quota(7.4, looked=False)
    assert unknown.host.busy_cores is None
    assert not unknown.cores_short


def waiting_workers(where: str, read_bytes: int) -> Diagnosis:
    run = Run(workers=2, service_ms=60, worker_cpu=0.1, busy_cores=0.5, read_bytes=read_bytes)
    run.worker_stacks = [(where, 0.95, 0.05)]
    return diagnose(play(run))


def test_bytes_show_reads_that_the_source_does_not_show():
    assert "slow-storage" in rules(waiting_workers(GETITEM, read_bytes=1_000_000))


def test_workers_that_share_their_cores_with_others_are_still_bound_by_cpu():
    run = Run(workers=2, service_ms=50, cores=2, busy_cores=2, worker_cpu=0.4)
    run.worker_stacks = [(GETITEM, 1.0, 0.4)]
    tables = with_usage(play(run), {100: 10.0, 1000: 40.0, 1001: 40.0}, 4000)
    diagnosis = diagnose(tables)
    assert diagnosis.findings[0].rule == "cpu-bound-worker"
    assert "other processes use 1.1 of the host's 2 cores" in diagnosis.verdict.sentence


def test_a_prediction_is_never_surer_than_the_model():
    measured = measure(play(Run(workers=1, service_ms=30, service_spread=0.01, batches=300)))
    assert measured is not None
    prediction = Simulator(measured).predict(PipelineChange(workers=2))
    gain = prediction.speedup - 1.0
    assert prediction.high - prediction.speedup >= 0.1 * gain
    assert prediction.speedup - prediction.low >= 0.1 * gain


def test_a_native_lock_is_known_by_its_source_and_asks_for_no_workers(tmp_path):
    script = tmp_path / "cache.py"
    script.write_text("import fcntl\n\nfcntl.flock(file, fcntl.LOCK_EX)\n")
    run = Run(workers=2, service_ms=60, worker_cpu=0.1, busy_cores=0.5, read_bytes=1000)
    run.worker_stacks = [(stack(WORKER_LOOP, f"{script}:3:Cache.__getitem__"), 0.9, 0.02)]
    diagnosis = diagnose(play(run))
    assert rules(diagnosis) == ["lock-contention"]
    assert diagnosis.findings[0].cause is not None
    assert diagnosis.findings[0].cause.line == 3
    tables = play(run)
    tables.rows["hosts"][0]["unix_offset_ns"] = script.stat().st_mtime_ns - 10**9
    assert "lock-contention" not in rules(diagnose(tables))  # the line may be another now


def contended(run: Run) -> RunTables:
    """Play a run on a host whose cores others fill."""
    run.cores, run.busy_cores = 2, 2
    workers = {1000 + worker: 5.0 for worker in range(run.workers)}
    return with_usage(play(run), {100: 20.0, **workers}, 4000)


def test_waits_for_a_core_that_others_hold_are_not_blamed_on_the_transfer():
    diagnosis = diagnose(contended(Run(workers=2, service_ms=3, ready_ms=4.0, worker_cpu=0.8)))
    assert rules(diagnosis) == ["data-wait"]
    assert diagnosis.findings[0].severity == "warning"
    # Once, not again at the end of the sentence.
    assert (
        "workers are idle, but other processes use 1.7 of the host's 2 cores; with cores of its "
        "own the run would be 1.3 times as fast" in diagnosis.verdict.sentence
    )
    assert diagnosis.verdict.sentence.count("other processes") == 1


def test_steps_without_rhythm_have_no_period_of_two():
    run = Run(workers=4, service_ms=8, busy_cores=3, batches=400)
    tables = play(run)
    for step in (20, 22, 25, 60, 61, 64, 200, 203, 205, 300, 302, 307, 340):
        tables.rows["steps"][step]["other_ns"] += 60 * MS
        tables.rows["steps"][step]["wall_ns"] += 60 * MS
    worst = diagnose(tables).findings[0]
    assert worst.rule == "step-outliers"
    assert worst.evidence["every_steps"] is None


def test_a_rank_that_waits_for_its_data_names_the_line_that_makes_them():
    tables = play(Run(workers=1, service_ms=8, ranks=2, cores=8, busy_cores=3))
    for row in tables.rows["steps"]:
        if row["rank"] == 1:
            row["data_wait_ns"] += 20 * MS
            row["wall_ns"] += 20 * MS
    slow = stack(WORKER_LOOP, f"{AUGMENT}:70:long_text")
    for second in range(3):
        tables.add(
            "stacks", rank=1, loader=0, worker=0, phase="work", stack=slow,
            start_ns=second * 10**9, samples=50, wall_ns=10**9, cpu_ns=10**9,
        )  # fmt: skip
    diagnosis = diagnose(tables)
    assert rules(diagnosis)[0] == "slow-rank"
    assert "data-wait" not in rules(diagnosis)
    assert diagnosis.findings[0].cause is not None
    assert diagnosis.findings[0].cause.line == 70


def test_memory_that_grows_comes_before_a_warning_that_costs_seconds():
    run = Run(workers=4, service_ms=8, ready_ms=2.4, batches=600, busy_cores=3)
    run.phases_ms["forward"] += 20.0
    tables = play(run)
    for t_ns in tables.system["t_ns"]:
        held = int(8e9 + 5e8 * t_ns / 1e9)
        tables.add("process_usage", t_ns=t_ns, pid=100, cpu_percent=50.0, resident_bytes=held)
    assert rules(diagnose(tables)) == ["memory-growth", "slow-transfer"]


def ranked(*seconds: tuple[str, float], **run: Any) -> list[str]:
    """Return the order of findings that count so many seconds, in a run."""
    findings = [
        Finding(rule=rule, severity="critical", title="", seconds_lost=lost, evidence={})
        for rule, lost in seconds
    ]
    return [finding.rule for finding in rank_findings(findings, gather_evidence(play(Run(**run))))]


def test_slow_handing_over_explains_late_batches_where_it_is_much_of_the_wait():
    run: dict[str, Any] = {"workers": 2, "service_ms": 30, "busy_cores": 2}
    assert ranked(("too-few-workers", 0.9), ("slow-transfer", 0.8), **run)[0] == "slow-transfer"
    assert ranked(("too-few-workers", 0.9), ("slow-transfer", 0.3), **run)[0] == "too-few-workers"


def test_batches_made_ahead_that_run_out_on_their_way_are_blamed_on_it():
    found = (("shallow-prefetch", 0.9), ("slow-transfer", 0.8))
    slow: dict[str, Any] = {"workers": 2, "service_ms": 10, "send_ms": 45, "busy_cores": 2}
    assert ranked(*found, **slow)[0] == "slow-transfer"
    assert ranked(*found, **{**slow, "send_ms": 2})[0] == "shallow-prefetch"


def test_ranks_that_starve_come_before_the_threads_that_make_them_starve():
    run: dict[str, Any] = {"workers": 2, "service_ms": 60, "ranks": 2, "cores": 2, "busy_cores": 2}
    found = (("oversubscribed-threads", 0.9), ("cpu-starved-by-ranks", 0.5))
    assert ranked(*found, **run)[0] == "cpu-starved-by-ranks"


def on_four_gpus(ranks: int, **columns: list[float]) -> RunTables:
    """Return a healthy run of so many ranks; columns of `system` are repeated to its length."""
    tables = play(Run(workers=4, service_ms=8, busy_cores=3, ranks=ranks, cores=16))
    ticks = len(tables.system["t_ns"])
    for name, values in columns.items():
        tables.system[name] = (values * ticks)[:ticks]
    return tables


def utilisations(*percents: float) -> dict[str, list[float]]:
    return {f"gpu_{gpu}_utilisation_percent": [each] for gpu, each in enumerate(percents)}


@pytest.mark.parametrize(
    ("ranks", "percents", "used"),
    [
        (1, (0.0, 97.0, 0.0, 0.0), 0.97),
        (2, (0.0, 97.0, 0.0, 91.0), 0.94),
        (4, (96.0, 97.0, 0.0, 91.0), 0.71),
        (1, (20.0, 97.0, 0.0, 0.0), None),  # another job's, perhaps
        (1, (0.0, 0.0, 0.0, 0.0), None),  # none is the script's
        (2, (0.2, 0.0, 0.0, 0.0), None),
        (2, (8.0, 0.0, 0.0, 0.0), 0.04),
    ],
)
def test_one_gpu_a_rank_counts(ranks: int, percents: tuple[float, ...], used: float | None):
    evidence = gather_evidence(on_four_gpus(ranks, **utilisations(*percents)))
    assert gpu_utilisation(evidence) == (None if used is None else pytest.approx(used))


def test_a_rank_that_keeps_its_gpu_busy_is_healthy_beside_idle_ones():
    rules = {each.rule for each in diagnose(on_four_gpus(1, **utilisations(97, 0, 0, 0))).findings}
    assert "compute-bound" in rules
    assert "small-batch" not in rules


def test_another_jobs_memory_on_another_gpu_is_not_this_runs():
    tables = on_four_gpus(1, **utilisations(97, 50))
    ticks = len(tables.system["t_ns"])
    tables.system["gpu_0_memory_bytes"] = [2**30] * ticks
    tables.system["gpu_1_memory_bytes"] = [2**30 + 2**26 * tick for tick in range(ticks)]
    assert "memory-growth" not in {each.rule for each in diagnose(tables).findings}


POOL = stack(
    "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py:52:_MapDatasetFetcher.fetch",
    "/home/ann/train.py:11:Frames.__getitems__",
    "/usr/lib/python3.11/multiprocessing/pool.py:367:Pool.map",
    "/usr/lib/python3.11/threading.py:327:Condition.wait",
)
DECODER = stack(
    WORKER_LOOP,
    "/home/ann/train.py:11:Frames.__getitem__",
    "/usr/lib/python3.11/subprocess.py:1209:Popen.communicate",
)


@pytest.mark.parametrize(("workers", "where"), [(0, POOL), (1, POOL), (1, DECODER)])
@pytest.mark.parametrize(("child_percent", "least", "most"), [(100.0, 1.05, 4.5), (1.0, 6.0, 30.0)])
def test_batches_that_processes_of_a_pool_compute_need_cores_of_their_own(
    workers: int, where: str, child_percent: float, least: float, most: float
):
    """More workers than cores help where these processes wait, and not where they compute."""
    run = Run(workers=workers, service_ms=200, worker_cpu=0.01, cores=8, busy_cores=3)
    run.worker_stacks = [(where, 1.0, 0.01)]
    tables = play(run)
    with_usage(tables, {100: 5.0, 5000: child_percent, 5001: child_percent}, 20_000)
    found = [each for finding in diagnose(tables).findings for each in finding.remedies]
    (remedy,) = (each for each in found if each.name == "workers")
    assert remedy.predicted_speedup is not None
    assert least < remedy.predicted_speedup < most
    assert (remedy.overrides[0].value <= 8) == (child_percent == 100.0)


@pytest.mark.parametrize(
    ("line", "changes"),
    [("time.sleep(0.02)", ["batches that are there in time"]), ("total += n", [])],
)
def test_a_rank_that_sleeps_in_its_dataset_gains_nothing_by_cores(
    line: str, changes: list[str], tmp_path: Path
):
    """As where each step makes a loader of its own, of which workers give no first batch sooner."""
    (tmp_path / "train.py").write_text(line)
    getitem = stack(POOL.split("\n")[0], f"{tmp_path}/train.py:1:Rows.__getitem__")
    run = Run(workers=0, epochs=60, batches=1, service_ms=20, worker_cpu=0.02, cores=2)
    run.worker_stacks = [(getitem, 1.0, 0.02)]
    run.busy_cores = 2.0
    tables = with_usage(play(run), {100: 2.0}, 4000)
    finding = next(each for each in diagnose(tables).findings if each.rule == "data-wait")
    assert [each.change for each in finding.remedies] == changes
    assert "the rank waits" in finding.title
