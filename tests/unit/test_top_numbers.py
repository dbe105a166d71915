"""The numbers of `headrace top`, from tables."""

from __future__ import annotations

import pytest

from headrace.records.host_place import job_pid
from headrace.report.top.run_watcher import RecentTables, closed_reader
from headrace.report.top.state import (
    TimeWindow,
    merge_workers,
    read_host_metrics,
    read_processes,
    read_step_rates,
)
from run_tables import AUGMENT, MS, PIL, WORKER_LOOP, Run, RunTables, play, stack

S = 1000 * MS
BLUR = stack(WORKER_LOOP, f"{AUGMENT}:31:RandomBlur.__call__", f"{PIL}:9:filter")
LOOP = stack("/home/ann/train.py:12:main", "/venv/lib/python3.11/site-packages/torch/x.py:1:wait")


def add_step(tables: RunTables, start_ns: int, wall_ns: int, **values: int | str) -> None:
    wait, forward = wall_ns // 4, wall_ns - wall_ns // 4
    known = {"kind": "train", "batches": 1, "samples": 32, "data_wait_ns": wait}
    tables.add(
        "steps", start_ns=start_ns, wall_ns=wall_ns, **(known | {"forward_ns": forward} | values)
    )


def steady(wall_ns: int, until_ns: int, **values: int | str) -> RunTables:
    tables = RunTables()
    for start_ns in range(0, until_ns - wall_ns + 1, wall_ns):
        add_step(tables, start_ns, wall_ns, **values)
    return tables


@pytest.mark.parametrize(
    ("wall_ns", "until_ns"),
    [
        (100 * MS, 60 * S),
        (100 * MS, 2 * S),  # it has just begun
        (3 * S, 60 * S),
        (30 * S, 89 * S),  # longer than the window, and one is under way
    ],
)
def test_rates_are_those_of_the_steps_whatever_the_window(wall_ns: int, until_ns: int):
    steps = read_step_rates(steady(wall_ns, until_ns), TimeWindow(until_ns - 10 * S, until_ns))
    assert steps.steps_per_s == pytest.approx(S / wall_ns)
    assert steps.samples_per_s == pytest.approx(32 * S / wall_ns)
    assert steps.quiet_s == 0
    assert steps.times is not None
    assert steps.times.median_ns == steps.times.longest_ns == wall_ns
    assert steps.shares["data_wait"] == pytest.approx(0.25)
    assert sum(steps.shares.values()) == pytest.approx(1)


def test_a_job_that_stands_still_slows_down_and_is_reported():
    tables = steady(100 * MS, 20 * S)
    steps = read_step_rates(tables, TimeWindow(15 * S, 25 * S))
    assert steps.steps_per_s == pytest.approx(5.0)  # 50 steps in these 10 s
    assert steps.quiet_s == pytest.approx(5.0)
    steps = read_step_rates(tables, TimeWindow(50 * S, 60 * S))
    assert steps.steps_per_s == 0
    assert steps.quiet_s == pytest.approx(40.0)


def test_ranks_are_distinguished_and_unknown_samples_are_not_guessed():
    tables = steady(100 * MS, 20 * S)
    for start_ns in range(0, 20 * S, 200 * MS):
        add_step(tables, start_ns, 200 * MS, rank=1, samples=-1)
    steps = read_step_rates(tables, TimeWindow(10 * S, 20 * S))
    assert [(each.rank, round(each.steps_per_s, 6)) for each in steps.ranks] == [(0, 10), (1, 5)]
    assert steps.steps_per_s == pytest.approx(7.5)
    assert steps.samples_per_s is None


def test_evaluation_is_distinguished_from_training():
    tables = steady(100 * MS, 20 * S)
    for start_ns in range(20 * S, 40 * S, 50 * MS):
        add_step(tables, start_ns, 50 * MS, kind="eval")
    steps = read_step_rates(tables, TimeWindow(15 * S, 25 * S))
    assert steps.evaluated_per_s == pytest.approx(20)
    assert not steps.evaluates
    assert steps.times is not None
    assert steps.times.count == 50
    alone = RunTables()
    alone.rows["steps"] = [row for row in tables.rows["steps"] if row["kind"] == "eval"]
    steps = read_step_rates(alone, TimeWindow(30 * S, 40 * S))
    assert steps.evaluates
    assert steps.ranks == ()
    assert steps.shares["forward"] == pytest.approx(0.75)


def test_what_came_after_the_window_does_not_count():
    steps = read_step_rates(steady(100 * MS, 60 * S), TimeWindow(10 * S, 20 * S))
    assert steps.times is not None
    assert steps.times.count == 100
    assert steps.steps_per_s == pytest.approx(10)


def with_usage(tables: RunTables, percent: dict[int, float], until_ns: int) -> RunTables:
    for t_ns in range(0, until_ns + 1, 500 * MS):
        for pid, cpu_percent in percent.items():
            tables.add("process_usage", t_ns=t_ns, pid=pid, cpu_percent=cpu_percent, threads=1)
    return tables


def test_ranks_and_workers_are_reported_with_the_line_they_are_at():
    run = Run(workers=2, service_ms=40, batches=600, ranks=2)
    run.worker_stacks = [(BLUR, 0.7, 0.9), (f"{AUGMENT}:40:read", 0.2, 0.1)]
    run.rank_stacks = [(LOOP, "data_wait", 0.6, 0.0), (LOOP, "forward", 0.1, 0.9)]
    tables = play(run)
    until_ns = max(row["start_ns"] + row["wall_ns"] for row in tables.rows["steps"])
    for row in list(tables.rows["stacks"]):
        if row["worker"] >= 0 and "RandomBlur" in row["stack"]:
            tables.rows["stacks"].append(row | {"phase": "idle", "wall_ns": S // 10})
    pids = [100, 101, 1000, 1001, 11_000, 11_001]
    with_usage(tables, dict(zip(pids, (50, 60, 97, 98, 99, 100), strict=True)), until_ns)
    found = read_processes(tables, TimeWindow(until_ns - 10 * S, until_ns))
    assert [(each.role, each.rank, each.loader, each.worker) for each in found] == [
        ("rank", 0, None, None), ("worker", 0, 0, 0), ("worker", 0, 0, 1),
        ("rank", 1, None, None), ("worker", 1, 0, 0), ("worker", 1, 0, 1),
    ]  # fmt: skip
    rank, worker = found[0], found[1]
    # Two workers that take 40 ms each feed a rank that takes 10: it waits for half of its time.
    assert rank.batches_per_s == pytest.approx(50, rel=0.05)
    assert rank.busy == pytest.approx(0.53, abs=0.05)
    assert (rank.cpu, worker.cpu) == (pytest.approx(0.5), pytest.approx(0.97))
    assert (rank.doing, rank.doing_share) == ("train.py:12 main", pytest.approx(1.0))
    assert worker.batches_per_s == pytest.approx(25, rel=0.05)
    assert worker.busy == pytest.approx(0.9)
    assert worker.doing == "augment.py:31 RandomBlur"
    assert worker.doing_share == pytest.approx(0.7)


def test_a_process_that_has_ended_is_not_reported_and_a_new_one_is():
    tables = steady(100 * MS, 30 * S)
    tables.add("processes", pid=100, role="rank", loader=-1, worker=-1)
    for pid, worker, started_ns in ((7, 0, S), (8, 0, 20 * S), (9, 1, 29_900 * MS)):
        tables.add(
            "processes", pid=pid, role="worker", loader=0, worker=worker, started_ns=started_ns
        )
    with_usage(tables, {7: 50.0}, 19 * S)
    with_usage(tables, {100: 10.0, 8: 90.0}, 30 * S)
    found = read_processes(tables, TimeWindow(20 * S, 30 * S))
    assert [(each.role, each.worker, each.cpu) for each in found] == [
        ("rank", None, pytest.approx(0.1)),
        ("worker", 0, pytest.approx(0.9)),
        ("worker", 1, None),
    ]


@pytest.mark.parametrize(
    "behind_ms", [(0, 0), (0, 250), (250, 0), (0, 499), (0, 700, 1900), (1200, 300, 0)]
)
def test_what_runs_on_all_hosts_is_reported(behind_ms: tuple[int, ...]):
    """Hosts are sampled at other moments, and the rows of some arrive later than those of others.

    Each has a rank with a worker that goes on, one that has ended, and one that has just begun.
    """
    tables = RunTables()
    for host, behind in enumerate(behind_ms):
        until_ns = 30 * S - behind * MS
        pids = [job_pid(pid, host) for pid in (100, 101, 102, 103)]
        for worker, pid in enumerate(pids, -1):
            started_ns = until_ns - 100 * MS if worker == 2 else S
            role, loader = ("worker", 0) if worker >= 0 else ("rank", -1)
            tables.add("processes", pid=pid, role=role, rank=host, loader=loader, worker=worker,
                       started_ns=started_ns, host=host)  # fmt: skip
        for t_ns in range(until_ns, 20 * S, -500 * MS):
            lives = [0, 1, 2] if t_ns < until_ns - 2 * S else [0, 1]
            for place in lives:
                tables.add("process_usage", t_ns=t_ns, pid=pids[place], cpu_percent=50.0, threads=1)
    found = read_processes(tables, TimeWindow(20 * S, 30 * S))
    assert [(each.rank, each.worker) for each in found] == [
        (host, worker) for host in range(len(behind_ms)) for worker in (None, 0, 2)
    ]


def test_a_wait_that_hangs_is_seen_however_many_workers_began_since():
    tables = steady(100 * MS, 20 * S)
    tables.add("processes", pid=100, role="rank", loader=-1, worker=-1)
    for number in range(3000):  # eight, which each epoch starts anew
        tables.add("processes", pid=1000 + number, role="worker", worker=number % 8,
                   started_ns=number * 6 * MS)  # fmt: skip
    for second in range(20, 30):
        tables.add("stacks", pid=100, loader=-1, worker=-1, phase="data_wait", stack=LOOP,
                   start_ns=second * S, samples=50, wall_ns=S, end_ns=(second + 1) * S)  # fmt: skip
    window = TimeWindow(20 * S, 30 * S)
    steps = read_step_rates(RecentTables(closed_reader(tables), window.since_ns), window)
    assert steps.shares["data_wait"] > 0.95


def test_before_processes_are_looked_at_the_ranks_are_known_by_their_steps():
    (found,) = read_processes(steady(100 * MS, 3 * S, rank=3), TimeWindow(0, 3 * S))
    assert (found.role, found.rank, found.doing) == ("rank", 3, "")
    assert found.busy == pytest.approx(0.75)
    assert read_processes(RunTables(), TimeWindow(0, S)) == ()


def test_workers_of_a_loader_are_reported_as_one():
    run = Run(workers=3, service_ms=40, batches=600, ranks=2, worker_stacks=[(BLUR, 1.0, 1.0)])
    tables = play(run)
    until_ns = max(row["start_ns"] + row["wall_ns"] for row in tables.rows["steps"])
    window = TimeWindow(until_ns - 10 * S, until_ns)
    each = read_processes(tables, window)
    assert len(each) == 6 + 2
    one = merge_workers(each)
    assert [(it.role, it.rank, it.count) for it in one] == [
        ("rank", 0, 1), ("workers", 0, 3), ("rank", 1, 1), ("workers", 1, 3),
    ]  # fmt: skip
    assert one[1].batches_per_s == pytest.approx(sum(it.batches_per_s for it in each[1:4]))
    assert one[1].busy == pytest.approx(1.0)
    assert one[1].doing == "augment.py:31 RandomBlur"


def test_the_host_is_reported_as_it_was_just_now():
    tables = RunTables()
    tables.add("hosts", memory_bytes=2**34)
    ticks = [number * S // 2 for number in range(21)]
    early = [10.0] * 17
    tables.system = {
        "t_ns": ticks,
        "core_0_percent": [*early, 50.0, 60.0, 70.0, 80.0],
        "core_10_percent": [100.5] * 21,
        "core_2_percent": [float("nan")] * 21,
        "io_wait_percent": [*early, 5.0, 5.0, 5.0, 5.0],
        "memory_used_bytes": [2**33] * 21,
        "disk_read_bytes_per_s": [*early, 0.0, 0.0, 0.0, 4e6],
        "net_received_bytes_per_s": [1e6] * 21,
        "net_sent_bytes_per_s": [2e6] * 21,
        "gpu_1_utilisation_percent": [40.0] * 21,
        "gpu_1_memory_bytes": [None] * 20 + [2**30],
        "gpu_0_utilisation_percent": [20.0] * 21,
    }
    machine = read_host_metrics(tables, TimeWindow(0, 10 * S))
    assert machine.cores == ((0, pytest.approx(0.65)), (2, None), (10, 1.0))
    assert machine.io_wait == pytest.approx(0.05)
    assert machine.throttled is None
    assert (machine.memory_used_bytes, machine.memory_bytes) == (2**33, 2**34)
    assert machine.disk_read_bytes_per_s == pytest.approx(1e6)
    assert (machine.received_bytes_per_s, machine.sent_bytes_per_s) == (1e6, 2e6)
    assert [
        (each.number, each.utilisation, each.memory_bytes, each.power_w) for each in machine.gpus
    ] == [
        (0, 0.2, None, None),
        (1, 0.4, 2**30, None),
    ]
    assert read_host_metrics(tables, TimeWindow(0, 4 * S)).cores[0] == (0, pytest.approx(0.1))
    assert read_host_metrics(RunTables(), TimeWindow(0, S)).cores == ()
