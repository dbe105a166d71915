"""Rules of the doctor on runs that do not fit the table of cases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.evidence import gather_evidence
from headrace.observe.doctor.findings import Finding
from headrace.observe.doctor.rules import RULES
from headrace.records.schema import RANK_ENDED
from run_tables import MS, SCRIPT, Run, RunTables, play, stack

LOOP = f"{SCRIPT}:50:<module>"
DATA = {"data-wait", "slow-transfer", "too-few-workers", "cpu-bound-worker", "shallow-prefetch"}


def found(tables: RunTables, rule: str) -> Finding | None:
    return RULES[rule](gather_evidence(tables))


def healthy(**changes) -> Run:
    return Run(**{"workers": 4, "service_ms": 8, "busy_cores": 3, **changes})


def test_no_rule_but_compute_bound_fires_on_a_healthy_run():
    evidence = gather_evidence(play(healthy(ranks=2, cores=16)))
    fired = {name for name, check in RULES.items() if check(evidence) is not None}
    assert fired == {"compute-bound"}


def test_no_rule_fires_without_records():
    evidence = gather_evidence(RunTables())
    assert [name for name, check in RULES.items() if check(evidence) is not None] == []


def test_batches_that_are_ready_and_still_take_long_to_have():
    transfer = found(play(healthy(ready_ms=3.0)), "slow-transfer")
    assert transfer is not None
    assert transfer.evidence["wait_for_ready_batch_ms"] == pytest.approx(3.0)
    assert transfer.severity == "critical"


def test_copies_that_hold_the_script_up():
    run = healthy(rank_stacks=[(stack(LOOP, f"{SCRIPT}:52:step"), "copy", 0.2, 1.0)])
    run.phases_ms["copy"] = 3.0
    worst = diagnose(play(run)).findings[0]
    assert worst.rule == "blocking-copy"
    assert worst.cause is not None
    assert worst.cause.line == 52
    assert "pin_memory=True" in worst.remedies[0].how


@pytest.mark.parametrize(
    ("pageable", "blocking", "advice", "other_advice"),
    [(2, 0, "pin_memory=True", "non_blocking"), (0, 2, "non_blocking=True", "pin_memory")],
)
def test_copies_are_reported_with_what_they_lack(
    pageable: int, blocking: int, advice: str, other_advice: str
):
    run = healthy()
    run.phases_ms["copy"] = 3.0
    tables = play(run)
    for row in tables.rows["steps"]:
        row |= {"copies": 2, "pageable_copies": pageable, "blocking_copies": blocking}
    copies = found(tables, "blocking-copy")
    assert copies is not None
    assert advice in copies.remedies[0].how
    assert other_advice not in copies.remedies[0].how


@pytest.mark.parametrize(("by_line", "named"), [(True, 52), (False, 57)])
def test_the_copy_is_named_that_takes_the_device_and_not_the_one_that_waits_for_it(
    by_line: bool, named: int
):
    images, labels = (stack(f"{SCRIPT}:{line}:<module>") for line in (52, 57))
    run = healthy(rank_stacks=[(images, "copy", 0.1, 0.9), (labels, "copy", 0.4, 0.1)])
    run.phases_ms |= {"copy": 12.0}  # most of it waiting for the device, in the copy of the labels
    tables = play(run)
    for row in tables.rows["steps"]:
        device = {"copy": 4 * MS, "forward": row["wall_ns"] - 4 * MS}
        spent = {f"device_{phase}_ns": ns for phase, ns in device.items()}
        tables.add("device_steps", step=row["step"], kind="train",
                   device_wall_ns=row["wall_ns"], **spent)  # fmt: skip
    for line, ms in ((52, 400), (57, 1)) if by_line else ():
        tables.add("device_copies", file=SCRIPT, line=line, copies=120, device_ns=ms * MS)
    copies = found(tables, "blocking-copy")
    assert copies is not None
    assert copies.cause is not None
    assert copies.cause.line == named


def test_pinned_asynchronous_copies_are_not_what_the_script_waits_for():
    run = healthy()
    run.phases_ms["copy"] = 3.0
    tables = play(run)
    for row in tables.rows["steps"]:
        row |= {"copies": 2, "pageable_copies": 0, "blocking_copies": 0}
    assert found(tables, "blocking-copy") is None


@pytest.mark.parametrize(("mb_a_second", "fires"), [(0, False), (5, False), (500, True)])
def test_memory_that_grows_all_the_time(mb_a_second: int, fires: bool):
    tables = play(healthy(batches=400))
    pid = tables.rows["processes"][0]["pid"]
    tables.rows["process_usage"] = []
    for t_ns in tables.system["t_ns"]:
        held = int(8e9 + 1e6 * mb_a_second * t_ns / 1e9)
        tables.add("process_usage", t_ns=t_ns, pid=pid, resident_bytes=held)
    # What others on the host take is not the run's.
    tables.system["memory_used_bytes"] = [10 * t_ns for t_ns in tables.system["t_ns"]]
    finding = found(tables, "memory-growth")
    assert (finding is not None) == fires
    assert finding is None or "memory of rank 0 grows by" in finding.title
    assert finding is None or finding.evidence["line_at_fault"] == "not found"
    assert finding is None or "tracemalloc" in finding.remedies[0].how


@pytest.mark.parametrize(
    ("seconds", "held_mb", "grown_mb", "severity"),
    [
        (12, 400, 160, "info"),  # 80 MiB in the half that is looked at: caches may do that
        (12, 200, 400, "serious"),
        (12, 8000, 1200, "serious"),
        (80, 400, 160, "serious"),
    ],
)
def test_growth_that_may_settle_yet_is_information(
    seconds: int, held_mb: int, grown_mb: int, severity: str
):
    tables = play(healthy(batches=90 * seconds))
    pid = tables.rows["processes"][0]["pid"]
    tables.rows["process_usage"] = []
    end_ns = max(tables.system["t_ns"])
    for t_ns in tables.system["t_ns"]:
        held = int(2**20 * (held_mb + grown_mb * t_ns / end_ns))
        tables.add("process_usage", t_ns=t_ns, pid=pid, resident_bytes=held)
    finding = found(tables, "memory-growth")
    assert finding is not None
    assert finding.severity == severity
    assert ("grew by" in finding.title) == (severity == "info")


LEAKING = """
import torch


def train(loader, model, optimizer):
    losses = []
    for x, y in loader:
        loss = step(model, x, y, optimizer)
        losses.append(loss)


def step(model, x, y, optimizer):
    loss = model(x, y)
    loss.backward()
    parts = []
    for part in x:
        parts.append(part)
    return loss


train(*prepared())
"""


def leaking(script: Path) -> RunTables:
    """Play a script that keeps its losses, and write it."""
    script.write_text(LEAKING)
    outer = (f"{script}:20:<module>", f"{script}:7:train")
    seen = [
        (stack(outer[0], f"{script}:6:train"), "data_wait", 0.2, 0.0),
        (stack(*outer, f"{script}:12:step"), "forward", 0.5, 1.0),
        (stack(*outer, f"{script}:13:step"), "backward", 0.25, 1.0),
    ]
    tables = play(healthy(batches=400, rank_stacks=seen))
    for t_ns in tables.system["t_ns"]:
        held = int(8e9 + 500e6 * t_ns / 1e9)
        tables.add("process_usage", t_ns=t_ns, pid=100, resident_bytes=held)
    return tables


def test_the_line_that_keeps_what_grows_is_named_as_likely(tmp_path: Path):
    finding = found(leaking(tmp_path / "train.py"), "memory-growth")
    assert finding is not None
    assert finding.cause is not None
    assert LEAKING.splitlines()[finding.cause.line - 1].strip() == "losses.append(loss)"
    assert finding.title.endswith("likely kept in losses at train.py:9")
    assert finding.evidence["line_at_fault"] == "likely, told by the source"
    assert "loss.item()" in finding.remedies[0].how


def test_a_source_that_was_written_after_the_run_began_names_no_line(tmp_path: Path):
    script = tmp_path / "train.py"
    tables = leaking(script)
    written_ns = script.stat().st_mtime_ns
    tables.rows["hosts"][0]["unix_offset_ns"] = written_ns + 10**9
    as_run = found(tables, "memory-growth")
    assert as_run is not None
    assert as_run.cause is not None
    tables.rows["hosts"][0]["unix_offset_ns"] = written_ns - 10**9
    since = found(tables, "memory-growth")
    assert since is not None
    assert since.cause is None
    assert since.title == as_run.title.split(", likely")[0]
    assert since.evidence["line_at_fault"] == "not looked for: train.py changed since"
    assert since.remedies[0].how.startswith("What ran of train.py is not known")


def test_a_source_is_read_anew_for_each_diagnosis(tmp_path: Path):
    script = tmp_path / "train.py"
    tables = leaking(script)
    tables.rows["hosts"][0]["unix_offset_ns"] = script.stat().st_mtime_ns + 10**9
    for lines, place in (("", 9), ("\n", 10)):
        script.write_text(lines + LEAKING)
        os.utime(script, (0, 0))  # as a tool does that brings files back as they were
        finding = found(tables, "memory-growth")
        assert finding is not None
        assert finding.cause is not None
        assert finding.cause.line == place


def short_steps(ms: float, **changes) -> RunTables:
    """Play steps of so many milliseconds, fed by workers that have nothing left to do."""
    run = healthy(batches=400, service_ms=0.3, **changes)
    run.phases_ms |= dict.fromkeys(run.phases_ms, 0.0) | {"forward": ms / 2, "backward": ms / 2}
    return play(run)


@pytest.mark.parametrize(
    ("step_ms", "ready_ms", "severities"),
    [
        (60, 1.6, {}),
        (20, 1.6, {"data-wait": "info"}),
        (5, 1.6, {"slow-transfer": "warning"}),
        (40, 3.0, {"slow-transfer": "warning"}),  # more than handing over needs
        (5, 3.0, {"slow-transfer": "critical"}),
    ],
)
def test_taking_ready_batches_over_is_no_starvation(
    step_ms: float, ready_ms: float, severities: dict[str, str]
):
    findings = diagnose(short_steps(step_ms, ready_ms=ready_ms)).findings
    assert {each.rule: each.severity for each in findings if each.rule in DATA} == severities
    # Without a look at what lies ready, as with Headrace's own loader, no more is said.
    tables = short_steps(step_ms, ready_ms=ready_ms)
    for row in tables.rows["fetches"]:
        row["ready"] = -1
    wait = found(tables, "data-wait")
    if ready_ms < 2:
        worst = "warning" if "slow-transfer" in severities else severities.get("data-wait")
        assert (wait.severity if wait else None) == worst
    assert wait is None or "taking them over" in wait.title or ready_ms > 2


def crowded(tables: RunTables, cores_of_ours: float) -> RunTables:
    """Add looks at the processes of a rank and its workers, which use so many cores together."""
    pids = [row["pid"] for row in tables.rows["processes"]]
    for t_ns in tables.system["t_ns"]:
        for pid in pids:
            percent = 100 * cores_of_ours / len(pids)
            tables.add("process_usage", t_ns=t_ns, pid=pid, cpu_percent=percent)
    return tables


def test_waits_for_a_core_in_taking_ready_batches_over_are_no_starvation():
    # As recorded of a healthy script whose host others used 0.7 of 2 cores of.
    held = {"workers": 1, "ready_ms": 0.3, "held_every": 5, "held_ms": 6.0, "cores": 2}
    tables = crowded(short_steps(3, **held, busy_cores=1.75), 1.04)
    diagnosis = diagnose(tables)
    (data,) = [each for each in diagnosis.findings if each.rule in DATA]
    assert (data.rule, data.severity) == ("data-wait", "warning")
    assert data.title.startswith("batches are ready; taking them over needs 1.5")
    assert data.title.endswith("ms, while other processes use 0.7 of the host's 2 cores")
    assert diagnosis.verdict.sentence.count("other processes") == 1
    # The same waits on cores that nobody else wants are the loader's.
    quiet_host = found(crowded(short_steps(3, **held, busy_cores=1.04), 1.04), "data-wait")
    assert quiet_host is not None
    assert quiet_host.severity == "critical"


def test_what_the_system_itself_takes_of_full_cores_is_not_spoken_of():
    tables = crowded(short_steps(3, workers=1, ready_ms=4.0, cores=2, busy_cores=2.0), 1.95)
    diagnosis = diagnose(tables)
    assert not gather_evidence(tables).others_crowd
    assert "other processes" not in diagnosis.verdict.sentence


def test_sending_small_batches_takes_as_long_as_making_them_and_holds_up_nobody():
    # As recorded of a healthy script on cores that others filled: 0.7 ms to make, 0.8 to send.
    held = {"workers": 2, "ready_ms": 1.0, "held_every": 5, "held_ms": 6.0, "cores": 2}
    diagnosis = diagnose(crowded(short_steps(3, **held, send_ms=0.5, busy_cores=2.0), 0.7))
    (data,) = [each for each in diagnosis.findings if each.rule in DATA]
    assert (data.rule, data.severity) == ("data-wait", "warning")
    # Where making and sending keep the workers busy, it is what holds the rank up.
    sending = {"workers": 1, "ready_ms": 0.0, "send_ms": 0.8, "collate_ms": 0.0}
    busy = diagnose(short_steps(0.2, **sending)).findings[0]
    assert (busy.rule, busy.severity) == ("slow-transfer", "critical")


@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_that_are_late_are_starvation_also_where_others_crowd_the_cores(ranks: int):
    late = {"workers": 2, "ready_ms": 0.3, "long_every": 16, "long_ms": 60.0}
    tables = short_steps(3, **late, ranks=ranks, cores=2, busy_cores=1.75)
    evidence = gather_evidence(crowded(tables, 1.04))
    assert evidence.others_crowd
    assert not evidence.workers_busy
    finding = RULES["data-wait"](evidence)
    assert finding is not None
    assert finding.severity == "critical"
    assert "workers are idle" in finding.title


def test_batches_that_take_long_to_take_over_do_so_also_where_others_crowd_the_cores():
    tables = short_steps(3, workers=1, ready_ms=4.0, cores=2, busy_cores=1.75)
    worst = diagnose(crowded(tables, 1.04)).findings[0]
    assert (worst.rule, worst.severity) == ("slow-transfer", "critical")


def test_busy_workers_that_are_late_by_little_are_too_few_all_the_same():
    run = healthy(workers=1, batches=400, service_ms=6.5, ready_ms=0.1, busy_cores=2)
    run.phases_ms |= dict.fromkeys(run.phases_ms, 0.0) | {"forward": 5.0}
    findings = diagnose(play(run)).findings
    assert findings[0].rule == "too-few-workers"
    assert findings[0].severity in {"serious", "critical"}


def test_short_steps_have_nothing_to_fix_or_want_larger_batches():
    little = diagnose(short_steps(20, ready_ms=1.6)).verdict
    assert little.sentence.startswith("Nothing to fix: 7")
    assert "taking them over needs 1.60 ms each" in little.sentence
    tables = short_steps(5, ready_ms=1.6)
    for row in tables.rows["fetches"]:
        row["ready"] = -1
    worst = diagnose(tables).findings[0]
    (remedy,) = worst.remedies
    assert (worst.rule, remedy.name) == ("data-wait", "bigger-batch")
    # At best all of 1.6 ms in 6.6 ms goes for every second batch.
    assert remedy.low is not None
    assert remedy.high is not None
    assert 1.0 < remedy.low < remedy.high < 1.25


@pytest.mark.parametrize("seconds", [3, 60])
def test_workers_that_idle_while_the_first_step_compiles_are_too_few_all_the_same(seconds: int):
    tables = play(healthy(workers=1, service_ms=40.0))
    later_ns = seconds * 1000 * MS
    first = tables.rows["steps"][0]
    first["wall_ns"] += later_ns
    first["forward_ns"] += later_ns
    tables.rows["batches"][3]["idle_ns"] += later_ns  # three were made in advance
    for name, number in (("steps", 1), ("fetches", 1), ("batches", 3)):
        for row in tables.rows[name][number:]:
            row["start_ns"] += later_ns
    assert "too-few-workers" in {each.rule for each in diagnose(tables).findings}


def test_ranks_that_take_different_numbers_of_steps():
    tables = play(healthy(ranks=2, cores=16))
    steps = tables.rows["steps"]
    tables.rows["steps"] = [row for row in steps if row["rank"] == 0 or row["step"] < 90]
    # As of a run that goes on, the other rank's records may only be late.
    assert found(tables, "unequal-steps") is None
    for rank in (0, 1):
        tables.add("events", rank=rank, kind=RANK_ENDED)
    unequal = found(tables, "unequal-steps")
    assert unequal is not None
    assert unequal.evidence["fewest_steps"] == 88


def test_a_rank_that_lags_behind_takes_fewer_steps_also_while_the_run_goes_on():
    tables = play(healthy(ranks=2, cores=16))
    steps = tables.rows["steps"]
    tables.rows["steps"] = [row for row in steps if row["rank"] == 0 or row["step"] % 2]
    assert found(tables, "unequal-steps") is not None


def test_a_first_batch_that_takes_long():
    tables = play(healthy())
    tables.rows["fetches"][0]["wait_ns"] = 30_000 * MS
    slow = found(tables, "slow-start")
    assert slow is not None
    assert slow.title.endswith("pass until the first batch is there")


@pytest.mark.parametrize(("utilisation", "fires"), [(30.0, True), (95.0, False)])
def test_batches_too_small_for_the_gpu(utilisation: float, fires: bool):
    tables = play(healthy())
    ticks = len(tables.system["t_ns"])
    tables.system["gpu_0_utilisation_percent"] = [utilisation] * ticks
    assert (found(tables, "small-batch") is not None) == fires


IN_MODEL = stack(
    f"{SCRIPT}:50:<module>", "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:9:f"
)
MAKING = stack(f"{SCRIPT}:50:<module>", f"{SCRIPT}:21:CartPole.integrate")


@pytest.mark.parametrize("utilisation", [0.0, 5.0])
def test_a_script_that_makes_its_data_itself_is_not_told_of_small_batches_first(utilisation: float):
    seen = [(MAKING, "forward", 0.6, 1.0), (IN_MODEL, "forward", 0.4, 1.0)]
    tables = play(Run(loader=False, rank_stacks=seen, busy_cores=1))
    tables.system["gpu_0_utilisation_percent"] = [utilisation] * len(tables.system["t_ns"])
    assert diagnose(tables).findings[0].rule == "data-wait"
    small = found(tables, "small-batch")
    assert (small is not None) == (utilisation > 0)
    if small is not None:  # gaps between kernels are in the model's time alone
        whole = sum(row["wall_ns"] for row in tables.rows["steps"]) / 1e9
        assert small.seconds_lost == pytest.approx(0.35 * whole, rel=0.1)


def test_gpus_that_did_nothing_are_not_those_of_a_script_on_the_cores():
    tables = play(healthy(rank_stacks=[(IN_MODEL, "forward", 1.0, 0.9)]))
    alone = diagnose(tables)
    tables.system["gpu_0_utilisation_percent"] = [0.0] * len(tables.system["t_ns"])
    assert diagnose(tables).verdict == alone.verdict
    assert diagnose(tables).findings == alone.findings


def test_a_script_on_the_cores_computes_where_it_reads_a_value_whatever_gpus_are_there():
    reads = stack(
        f"{SCRIPT}:50:<module>",
        f"{SCRIPT}:57:log",
        "/venv/lib/python3.11/site-packages/torch/_tensor.py:1100:Tensor.__format__",
    )
    run = healthy(rank_stacks=[(reads, "other", 0.3, 0.9), (IN_MODEL, "forward", 0.7, 1.0)])
    run.phases_ms |= {"copy": 0.0}
    tables = play(run)
    tables.system["gpu_0_utilisation_percent"] = [0.0] * len(tables.system["t_ns"])
    assert found(tables, "device-sync") is None
    tables.system["gpu_0_utilisation_percent"] = [30.0] * len(tables.system["t_ns"])
    assert found(tables, "device-sync") is not None


def test_short_steps_that_take_ready_batches_over_are_too_small_for_the_gpu_all_the_same():
    tables = short_steps(4.0, ready_ms=0.7)
    tables.system["gpu_0_utilisation_percent"] = [30.0] * len(tables.system["t_ns"])
    worst = diagnose(tables).findings[0]
    assert worst.rule == "small-batch"
    assert [each.name for each in worst.remedies] == ["bigger-batch"]


@pytest.mark.parametrize(("utilisation", "fires"), [(None, True), (40.0, True), (97.0, False)])
def test_waiting_for_the_device_counts_only_where_it_is_not_busy(
    utilisation: float | None, fires: bool
):
    printed = stack(
        LOOP,
        f"{SCRIPT}:57:log",
        "/venv/lib/python3.11/site-packages/torch/_tensor.py:1100:Tensor.__format__",
    )
    tables = play(healthy(rank_stacks=[(printed, "other", 0.3, 0.1), (LOOP, "forward", 0.7, 1.0)]))
    if utilisation is not None:
        ticks = len(tables.system["t_ns"])
        tables.system["gpu_0_utilisation_percent"] = [utilisation] * ticks
    sync = found(tables, "device-sync")
    assert (sync is not None) == fires
    if sync is not None:
        assert sync.cause is not None
        assert sync.cause.line == 57
        (remedy,) = sync.remedies
        assert remedy.predicted_speedup is not None
        assert (remedy.low == pytest.approx(1.0, abs=0.1)) == (utilisation is None)


def test_an_evaluation_may_wait_for_the_device_where_it_likes():
    read = stack(
        LOOP,
        f"{SCRIPT}:80:evaluate",
        "/venv/lib/python3.11/site-packages/torch/_tensor.py:1100:Tensor.__format__",
    )
    tables = play(healthy(rank_stacks=[(LOOP, "forward", 1.0, 1.0)]))
    steps = tables.rows["steps"]
    middle = len(steps) // 2
    for row in steps[middle:]:
        row["start_ns"] += 60 * 10**9  # an evaluation comes between
    began_ns = steps[middle - 1]["start_ns"] + steps[middle - 1]["wall_ns"] + 2 * 10**9
    for second in range(50):
        tables.add(
            "stacks", rank=0, loader=-1, worker=-1, phase="other", stack=read, samples=50,
            start_ns=began_ns + second * 10**9, end_ns=began_ns + (second + 1) * 10**9,
            wall_ns=10**9, cpu_ns=0,
        )  # fmt: skip
    assert found(tables, "device-sync") is None
    for row in tables.rows["stacks"]:
        if row["stack"] == read:  # in the steps after it
            row["start_ns"] = steps[middle]["start_ns"]
            row["end_ns"] = steps[-1]["start_ns"]
    assert found(tables, "device-sync") is not None


def test_ranks_that_starve_the_cores_together():
    run = Run(workers=2, ranks=4, service_ms=40, worker_cpu=0.5, cores=4, busy_cores=4)
    starved = found(play(run), "cpu-starved-by-ranks")
    assert starved is not None
    assert starved.title == "4 ranks starve on 4 cores, where one alone would be fed"
