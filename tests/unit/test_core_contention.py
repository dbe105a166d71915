"""Workers that wait for a core are told apart from those that wait for storage."""

from __future__ import annotations

import pytest

from headrace.observe.doctor.core_contention import core_share, reads_come_from_memory
from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.evidence import gather_evidence
from run_tables import AUGMENT, WORKER_LOOP, Run, RunTables, play, stack

READ = stack(WORKER_LOOP, f"{AUGMENT}:14:read_image")
BLUR = stack(WORKER_LOOP, f"{AUGMENT}:31:RandomBlur.__call__")
BYTES = 2_000_000  # a batch


def crowded(
    read_share: float,
    read_cpu: float,
    other_cpu: float,
    *,
    also: tuple[tuple[str, float, float], ...] = (),
    **rates: float,
) -> RunTables:
    """A run whose workers read and compute, on two cores that other programs fill.

    `also` are further stacks with their share of the time and of a core.
    """
    left = 1 - read_share - sum(share for _, share, _ in also)
    stacks = [(READ, read_share, read_cpu), (BLUR, left, other_cpu), *also]
    run = Run(
        workers=2, service_ms=60, worker_cpu=sum(share * cpu for _, share, cpu in stacks), cores=2,
        busy_cores=2, read_bytes=BYTES, worker_stacks=stacks,
    )  # fmt: skip
    tables = play(run)
    ticks = tables.system["t_ns"]
    for name, rate in rates.items():
        tables.system[name] = [rate] * len(ticks)
    for tick in ticks:
        for pid, percent in ((100, 10.0), (1000, 20.0), (1001, 20.0)):
            tables.add("process_usage", t_ns=tick, pid=pid, cpu_percent=percent, threads=2)
    return tables


DISK = {"disk_read_bytes_per_s": 0.0, "net_received_bytes_per_s": 0.0}
READING = {"disk_read_bytes_per_s": 60e6, "net_received_bytes_per_s": 0.0}


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_reads_from_memory_on_cores_of_others_are_no_slow_storage(share: float):
    tables = crowded(share, 0.3, 0.3, **DISK)
    evidence = gather_evidence(tables)
    assert reads_come_from_memory(evidence)
    assert core_share(evidence) == pytest.approx(0.3, abs=0.02)
    diagnosis = diagnose(tables)
    assert not {"slow-storage", "small-files"} & {each.rule for each in diagnosis.findings}
    sentence = diagnosis.verdict.sentence
    assert "other processes use 1.5 of the host's 2 cores" in sentence
    assert "read_image at augment.py:14" in sentence or share < 0.9


def test_code_that_computes_shows_what_a_core_costs_even_if_disks_work_for_others():
    tables = crowded(0.6, 0.3, 0.3, **READING)
    assert "slow-storage" not in {each.rule for each in diagnose(tables).findings}


def test_slow_storage_is_still_seen_on_cores_that_others_fill():
    tables = crowded(0.85, 0.02, 0.8, **READING)
    assert "slow-storage" in {each.rule for each in diagnose(tables).findings}


def test_a_server_that_answers_late_is_slow_storage_however_little_it_delivers():
    tables = crowded(1.0, 0.03, 1.0, **DISK)
    assert not reads_come_from_memory(gather_evidence(tables))
    assert {"slow-storage", "small-files"} & {each.rule for each in diagnose(tables).findings}


@pytest.mark.parametrize(
    "waits",
    [
        ("threading.py:969:Thread.start", "threading.py:327:Condition.wait"),
        ("concurrent/futures/_base.py:451:Future.result", "threading.py:327:Condition.wait"),
        ("queue.py:171:Queue.get", "threading.py:327:Condition.wait"),
        ("asyncio/base_events.py:1987:run_once", "selectors.py:468:EpollSelector.select"),
        ("subprocess.py:1209:Popen.communicate", "subprocess.py:2021:Popen._try_wait"),
    ],
)
def test_a_wait_for_an_own_thread_does_not_show_what_a_core_costs(waits: tuple[str, str]):
    python = "/usr/lib/python3.11"
    wait = stack(WORKER_LOOP, f"{AUGMENT}:12:ask", *(f"{python}/{each}" for each in waits))
    tables = crowded(0.8, 0.04, 0.5, also=((wait, 0.14, 0.001),), **DISK)
    assert core_share(gather_evidence(tables)) == pytest.approx(0.5, abs=0.02)
    diagnosis = diagnose(tables)
    assert "wait for a core" not in diagnosis.verdict.sentence
    assert {"slow-storage", "small-files"} & {each.rule for each in diagnosis.findings}


def test_workers_off_the_cpu_for_others_are_said_to_wait_for_a_core():
    tables = crowded(0.9, 0.2, 0.2, **DISK)
    tables.rows["loaders"][0]["workers"] = 32  # more would be no remedy
    sentence = diagnose(tables).verdict.sentence
    assert "storage" not in sentence
    assert "other processes use" in sentence


@pytest.mark.parametrize(("cpu", "rule"), [(0.31, "data-wait"), (0.5, "cpu-bound-worker")])
def test_code_that_would_be_in_time_on_cores_of_its_own_is_not_at_fault(cpu: float, rule: str):
    """Batches take 60 ms in two workers, steps 10: of CPU time they need 18.6 or 30 ms."""
    tables = crowded(0.1, cpu, cpu, **DISK)
    finding = diagnose(tables).findings[0]
    assert finding.rule == rule
    if rule == "data-wait":
        assert "wait for a core 69% of their time" in finding.title
        assert "other processes use 1.5 of the host's 2 cores" in finding.title
        assert [each.name for each in finding.remedies] == ["own-cores"]


POOL_WAIT = stack(
    WORKER_LOOP,
    f"{AUGMENT}:12:decode_in_pool",
    "/usr/lib/python3.11/threading.py:327:Condition.wait",
)


@pytest.mark.parametrize(
    ("started_percent", "also", "others", "who"),
    [
        (120.0, (), 1.5, "Processes that the script itself starts take the cores"),
        (30.0, (), 1.5, "Other jobs of the host take the cores"),
        (120.0, ((POOL_WAIT, 0.2, 0.01),), 0.3, ""),  # batches wait for them: they are its own work
    ],
)
def test_programs_that_a_script_starts_take_cores_as_others_do_unless_batches_wait_for_them(
    started_percent: float, also: tuple[tuple[str, float, float], ...], others: float, who: str
):
    tables = crowded(0.5, 0.3, 0.3, also=also, **DISK)
    tables.rows["loaders"][0]["workers"] = 32  # more would be no remedy
    for tick in tables.system["t_ns"]:
        tables.add("process_usage", t_ns=tick, pid=5000, cpu_percent=started_percent, threads=1)
    evidence = gather_evidence(tables)
    assert evidence.host.foreign_cores == pytest.approx(others, abs=0.05)
    diagnosis = diagnose(tables)
    if who:
        assert "other processes use 1.5 of the host's 2 cores" in diagnosis.verdict.sentence
        hows = [remedy.how for each in diagnosis.findings for remedy in each.remedies]
        assert any(how.startswith(who) for how in hows)
