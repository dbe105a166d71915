from __future__ import annotations

import pytest

from headrace.observe.doctor.diagnose import diagnose
from headrace.observe.doctor.evidence import gather
from headrace.observe.doctor.model import Finding
from headrace.observe.doctor.rules import RULES
from run_tables import MS, SCRIPT, Run, RunTables, play, stack

LOOP = f"{SCRIPT}:50:<module>"


def found(tables: RunTables, rule: str) -> Finding | None:
    return RULES[rule](gather(tables))


def healthy(**changes) -> Run:
    return Run(**{"workers": 4, "service_ms": 8, "busy_cores": 3, **changes})


def test_no_rule_but_compute_bound_fires_on_a_healthy_run():
    evidence = gather(play(healthy(ranks=2, cores=16)))
    fired = {name for name, check in RULES.items() if check(evidence) is not None}
    assert fired == {"compute-bound"}


def test_no_rule_fires_without_records():
    evidence = gather(RunTables())
    assert [name for name, check in RULES.items() if check(evidence) is not None] == []


def test_batches_that_are_ready_and_still_take_long_to_have():
    transfer = found(play(healthy(ready_ms=3.0)), "slow-transfer")
    assert transfer is not None
    assert transfer.evidence["wait_for_ready_batch_ms"] == pytest.approx(3.0)
    assert transfer.severity == "critical"


def test_batches_that_take_long_to_send():
    slow = Run(workers=2, service_ms=10, send_ms=45, busy_cores=2)
    assert diagnose(play(slow)).findings[0].rule == "slow-transfer"


def test_copies_that_hold_the_script_up():
    run = healthy(rank_stacks=[(stack(LOOP, f"{SCRIPT}:52:step"), "copy", 0.2, 1.0)])
    run.phases_ms["copy"] = 3.0
    worst = diagnose(play(run)).findings[0]
    assert worst.rule == "blocking-copy"
    assert worst.cause is not None
    assert worst.cause.line == 52
    assert "pin_memory=True" in worst.remedies[0].how


@pytest.mark.parametrize(
    ("pageable", "blocking", "says", "says_not"),
    [(2, 0, "pin_memory=True", "non_blocking"), (0, 2, "non_blocking=True", "pin_memory")],
)
def test_copies_are_told_what_they_lack(pageable: int, blocking: int, says: str, says_not: str):
    run = healthy()
    run.phases_ms["copy"] = 3.0
    tables = play(run)
    for row in tables.rows["steps"]:
        row |= {"copies": 2, "pageable_copies": pageable, "blocking_copies": blocking}
    copies = found(tables, "blocking-copy")
    assert copies is not None
    assert says in copies.remedies[0].how
    assert says_not not in copies.remedies[0].how


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


def test_ranks_that_take_different_numbers_of_steps():
    tables = play(healthy(ranks=2, cores=16))
    steps = tables.rows["steps"]
    tables.rows["steps"] = [row for row in steps if row["rank"] == 0 or row["step"] < 90]
    unequal = found(tables, "unequal-steps")
    assert unequal is not None
    assert unequal.evidence["fewest_steps"] == 88


def test_a_first_batch_that_takes_long():
    tables = play(healthy())
    tables.rows["fetches"][0]["wait_ns"] = 30_000 * MS
    slow = found(tables, "slow-start")
    assert slow is not None
    assert slow.title == "30 s pass until the first batch is there"


@pytest.mark.parametrize(("utilisation", "fires"), [(30.0, True), (95.0, False)])
def test_batches_too_small_for_the_gpu(utilisation: float, fires: bool):
    tables = play(healthy())
    ticks = len(tables.system["t_ns"])
    tables.system["gpu_0_utilisation_percent"] = [utilisation] * ticks
    assert (found(tables, "small-batch") is not None) == fires


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


def test_ranks_that_starve_the_cores_together():
    run = Run(workers=2, ranks=4, service_ms=40, worker_cpu=0.5, cores=4, busy_cores=4)
    starved = found(play(run), "cpu-starved-by-ranks")
    assert starved is not None
    assert starved.title == "4 ranks starve on 4 cores, where one alone would be fed"
