"""Which cores ranks and workers may use: as they are recorded, and what the doctor makes of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.probe.process_cores import ProcessCores, numbers_text
from headrace.observe.whatif.allowed_cores import parse_numbers
from headrace.observe.whatif.measured_pipeline import HostUsage, measure, read_host_usage
from run_tables import MS, Run, RunTables, play, worker_pid

RANK = 100  # its pid


@given(st.sets(st.integers(0, 300)))
def test_numbers_are_written_as_ranges_and_read_back(numbers: set[int]):
    text = numbers_text(numbers)
    assert parse_numbers(text) == numbers
    assert text.count(",") < max(len(numbers), 1)


def test_ranges_are_as_the_kernel_writes_them():
    assert numbers_text({8, 0, 1, 3, 2}) == "0-3,8"
    assert numbers_text({5}) == "5"
    assert numbers_text(set()) == ""


def test_a_process_is_recorded_once_and_again_when_its_affinity_changes():
    mine = os.sched_getaffinity(0)
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        cores = ProcessCores()
        ((_, pid, count, numbers),) = cores.rows([process.pid])
        assert (pid, numbers) == (process.pid, numbers_text(mine))
        assert 0 < count <= len(mine)
        assert cores.rows([process.pid]) == []
        os.sched_setaffinity(process.pid, {min(mine)})
        changed = [row[1:] for row in cores.rows([process.pid])]
        expected = [(process.pid, min(count, 1.0), str(min(mine)))] if len(mine) > 1 else []
        assert changed == expected
        process.communicate(b"\n")
    assert ProcessCores().rows([process.pid]) == []


def bound(run: Run, rank: str = "", workers: tuple[str, ...] = (), quota: float = 0.0) -> RunTables:
    """Return a run's tables whose rank, and each of whose workers, is bound to cores."""
    tables = play(run)
    pids = [RANK, *(worker_pid(0, number) for number in range(len(workers)))]
    for pid, numbers in zip(pids, (rank, *workers), strict=True):
        if numbers:
            count = float(len(parse_numbers(numbers)))
            cores = min(count, quota) if quota else count
            tables.add("process_cores", t_ns=MS, pid=pid, cores=cores, numbers=numbers)
    return tables


STARVED = Run(workers=2, service_ms=40, cores=8, busy_cores=2)


@pytest.mark.parametrize(
    ("tables", "cores", "worker_cores"),
    [
        (play(STARVED), 8.0, float("inf")),  # of an older version
        (bound(STARVED, "0-7", ("0-7", "0-7")), 8.0, float("inf")),
        (bound(STARVED, "3", ("3", "3")), 1.0, float("inf")),  # taskset -c 3
        (bound(STARVED, "0-3", ("0-3", "0-3")), 4.0, float("inf")),  # numactl
        (bound(STARVED, "0-7", ("0", "0")), 8.0, 1.0),  # worker_init_fn
        (bound(STARVED, "0-7", ("0", "1")), 8.0, float("inf")),  # each worker to a core of its own
        (bound(STARVED, "0", ("1-7", "1-7")), 8.0, 7.0),
        (bound(STARVED, "0-15", ("0-15", "0-15")), 16.0, float("inf")),  # free of the launcher's
        (bound(STARVED, "0-7", ("0-7", "0-7"), quota=2.5), 2.5, float("inf")),
        (bound(STARVED, "0-7"), 8.0, float("inf")),
    ],
)
def test_cores_are_those_of_the_ranks_and_their_workers(
    tables: RunTables, cores: float, worker_cores: float
):
    host: HostUsage = read_host_usage(tables)
    assert (host.cores, host.worker_cores, host.launched_cores) == (cores, worker_cores, 8.0)


def test_the_last_look_at_a_process_counts():
    tables = bound(STARVED, "0-7", ("0-7", "0-7"))
    for pid in (RANK, worker_pid(0, 0), worker_pid(0, 1)):
        tables.add("process_cores", t_ns=2 * MS, pid=pid, cores=2.0, numbers="4-5")
    assert read_host_usage(tables).cores == 2.0


def test_only_the_load_of_cores_that_the_run_may_use_counts():
    tables = bound(STARVED, "0-1", ("0-1", "0-1"))
    ticks = len(tables.system["t_ns"])
    for core in range(8):
        tables.system[f"core_{core}_percent"] = [20.0 if core < 2 else 100.0] * ticks
    host = read_host_usage(tables)
    assert host.busy_cores == pytest.approx(0.4)
    assert not host.is_full


def test_workers_that_are_bound_to_a_full_core_gain_nothing_by_more_of_them():
    full = Run(workers=2, service_ms=40, cores=8, busy_cores=1.1)
    free, tied = play(full), bound(full, "0-7", ("0", "0"))
    few = {each.rule for each in diagnose(free).findings}
    assert "too-few-workers" in few
    measured = measure(tied)
    assert measured is not None
    assert measured.pipeline.worker_cores == 1.0
    diagnosis = diagnose(tied)
    finding = diagnosis.findings[0]
    assert finding.rule == "bound-cores"
    assert finding.title == "all workers are bound to 1 of the 8 cores that the job may use"
    assert "too-few-workers" not in {each.rule for each in diagnosis.findings}
    assert "with all 8 cores" in diagnosis.verdict.sentence


def test_a_rank_that_is_bound_to_full_cores_is_told_of_the_others():
    tables = bound(Run(workers=2, service_ms=40, cores=8, busy_cores=8), "0", ("0", "0"))
    finding = diagnose(tables).findings[0]
    assert finding.rule == "bound-cores"
    assert finding.title.startswith("the ranks and their workers are bound to 1 of the 8 cores")
    assert "bound-cores" not in {each.rule for each in diagnose(play(STARVED)).findings}
