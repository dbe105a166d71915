"""What processes use: nothing of it is lost as they come and go."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.observe.probe import process_usage
from headrace.observe.probe.process_usage import ProcessUsage, with_children
from jobs import eventually

# Works for 0.3 s of CPU time, twice, prints what it has used, and waits for a word after each.
CHILD = """
import sys, time
for part in (0.3, 0.6):
    while time.process_time() < part:
        pass
    print(time.process_time(), flush=True)
    sys.stdin.readline()
"""
WORK = "import time\nwhile time.process_time() < 0.3: pass"


def test_usage_covers_processes_that_run_and_leaves_others_out():
    usage = ProcessUsage()
    gone = 2**22 + 1  # above the kernel's largest process id
    assert usage.rows([os.getpid(), gone]) == []
    began_s = os.times().user
    while os.times().user - began_s < 0.2:
        sum(range(1000))
    Path(__file__).read_bytes()
    ((t_ns, pid, percent, resident_bytes, threads, read_bytes),) = usage.rows([os.getpid(), gone])
    assert t_ns > 0
    assert pid == os.getpid()
    assert percent > 0
    memory = psutil.Process().memory_info()
    assert 0 < resident_bytes < memory.rss
    assert resident_bytes > memory.rss - memory.shared - (64 << 20)
    assert threads >= threading.active_count()
    assert read_bytes >= Path(__file__).stat().st_size


def used_s(usage: ProcessUsage, pids: list[int], pid: int, since_ns: int) -> tuple[float, int]:
    """Return the CPU seconds that a process is reported to have used since a time, and when."""
    ((t_ns, _, percent, *_),) = [row for row in usage.rows(pids) if row[1] == pid]
    return percent / 100 * (t_ns - since_ns) / 1e9, t_ns


def cpu_s_of(child: subprocess.Popen[Any]) -> float:
    """Wait for a child; return the CPU seconds that the kernel counts for it, end included."""
    _, status, resources = os.wait4(child.pid, 0)
    assert status == 0
    child.returncode = status
    return resources.ru_utime + resources.ru_stime


def test_a_process_that_comes_and_goes_between_looks_has_all_that_it_used():
    usage, began_ns = ProcessUsage(), time.monotonic_ns()
    assert usage.rows([os.getpid()]) == []
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    pids = [os.getpid(), child.pid]
    reported_s = float(child.stdout.readline())
    first_s, looked_ns = used_s(usage, pids, child.pid, began_ns)
    assert first_s == pytest.approx(reported_s, rel=0.1)
    child.stdin.write("\n")
    child.stdin.flush()
    child.stdout.readline()
    child.stdin.close()
    child.stdout.close()
    worked_s = cpu_s_of(child)
    last_s, _ = used_s(usage, pids, child.pid, looked_ns)
    assert first_s + last_s == pytest.approx(worked_s, rel=0.1)
    assert [row for row in usage.rows(pids) if row[1] == child.pid] == []


def test_a_process_that_is_found_late_has_its_part():
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        usage = ProcessUsage()
        process = psutil.Process(child.pid)
        eventually(lambda: process.cpu_times().user >= 0.2, "some work")
        usage.rows([os.getpid()])
        eventually(lambda: process.cpu_times().user >= 0.4, "more work")
        ((_, _, percent, *_),) = [r for r in usage.rows([child.pid]) if r[1] == child.pid]
        assert 0 < percent <= 110
    finally:
        child.kill()
        child.wait()


def test_a_process_that_nobody_saw_has_what_it_used_once_it_is_heard_of(
    monkeypatch: pytest.MonkeyPatch,
):
    # On a full host seconds may pass until it is heard of.
    monkeypatch.setattr(process_usage, "_LONGEST_WAIT_NS", 10**12)
    usage = ProcessUsage()
    before = os.times()
    usage.rows([os.getpid()])
    child = subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: 0"]
    )
    assert cpu_s_of(child) >= 0.3
    after = os.times()  # children of earlier tests may end meanwhile
    worked_s = sum(after[2:4]) - sum(before[2:4])
    since_ns = [time.monotonic_ns()]
    assert {row[1] for row in usage.rows([os.getpid()])} == {os.getpid()}
    since_ns.append(time.monotonic_ns())  # the look was between the two
    ((t_ns, _, percent, *_),) = [
        row for row in usage.rows([os.getpid(), child.pid]) if row[1] == child.pid
    ]
    most_s, least_s = (percent / 100 * (t_ns - begin_ns) / 1e9 for begin_ns in since_ns)
    assert least_s - 0.05 <= worked_s <= most_s + 0.05  # clock ticks, twice
    assert {row[1] for row in usage.rows([os.getpid(), child.pid])} == {os.getpid()}


def test_what_processes_start_is_theirs():
    start = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {}], stdin=0)"
    script = "import os; print(os.getpid(), flush=True); input()"
    inner = f"{start.format(repr(script))}; child.wait()"
    child = subprocess.Popen(
        [sys.executable, "-c", inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    gone = 2**22 + 1
    assert {gone, os.getpid(), child.pid, grandchild} <= with_children([os.getpid(), gone])
    assert with_children([grandchild]) == {grandchild}
    child.communicate("\n")
    assert not {child.pid, grandchild} & with_children([os.getpid()])


WORKS_AND_WAITS = """
import os, time
while time.process_time() < 0.4:
    pass
print(os.getpid(), flush=True)
input()
while time.process_time() < 0.7:
    pass
"""
BETWEEN = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]])"


def started_between(then: str) -> tuple[subprocess.Popen[str], int]:
    """Start a process that starts one that works; return it, and the number of that one."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"{BETWEEN}; {then}", WORKS_AND_WAITS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    return child, int(child.stdout.readline())


def test_what_a_childs_child_used_is_reported_once():
    usage = ProcessUsage()
    usage.rows([os.getpid()])
    child, grandchild = started_between("child.wait()")
    seen = usage.rows(with_children([os.getpid()]))
    assert {child.pid, grandchild} <= {row[1] for row in seen}
    seen_ns = seen[0][0]
    child.communicate("\n")
    ended = [row for row in usage.rows([os.getpid()]) if row[1] != os.getpid()]
    reported_s = sum(row[2] / 100 * (row[0] - seen_ns) / 1e9 for row in ended)
    assert reported_s == pytest.approx(0.3, rel=0.4)


def test_a_process_whose_parent_has_ended_is_reported_on():
    usage = ProcessUsage()
    usage.rows([os.getpid()])
    child, grandchild = started_between("pass")
    usage.rows([os.getpid(), child.pid, grandchild])
    child.wait()
    (row,) = [row for row in usage.rows([os.getpid()]) if row[1] == grandchild]
    assert row[4] > 0  # it has threads: it lives
    child.communicate("\n")


def test_a_file_that_is_mapped_and_read_through_is_no_memory_that_is_held(tmp_path: Path):
    size = 192 << 20
    (tmp_path / "data.bin").write_bytes(bytes(size))
    usage = ProcessUsage()
    usage.rows([os.getpid()])
    with (tmp_path / "data.bin").open("rb") as file:
        before = held_bytes(usage)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert sum(mapped[:: mmap.PAGESIZE]) == 0
            assert psutil.Process().memory_info().rss > size
            assert abs(held_bytes(usage) - before) < 64 << 20
    with mmap.mmap(-1, size) as shared:  # as tensors in shared memory are
        for place in range(0, size, mmap.PAGESIZE):
            shared[place] = 1
        assert held_bytes(usage) - before > size - (64 << 20)


def held_bytes(usage: ProcessUsage) -> int:
    ((_, _, _, resident_bytes, *_),) = usage.rows([os.getpid()])
    return resident_bytes


def test_what_a_script_calls_is_no_workers():
    usage = ProcessUsage()
    usage.rows([os.getpid()])
    subprocess.run([sys.executable, "-c", WORK], check=True)
    began_ns = time.monotonic_ns()
    while time.monotonic_ns() - began_ns < 3.1e9:
        assert {row[1] for row in usage.rows([os.getpid()])} == {os.getpid()}
        time.sleep(0.02)
    gone = 2**22 + 1
    assert {row[1] for row in usage.rows([os.getpid(), gone])} == {os.getpid()}


def test_who_takes_over_does_not_report_again_what_another_reported():
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    reported_s = float(child.stdout.readline())
    usage, began_ns = ProcessUsage(), time.monotonic_ns()
    assert usage.rows([os.getpid(), child.pid]) == []
    assert child.stdin is not None
    child.stdin.write("\n\n")
    child.stdin.close()
    worked_s = cpu_s_of(child) - reported_s
    last_s, _ = used_s(usage, [os.getpid(), child.pid], child.pid, began_ns)
    assert last_s == pytest.approx(worked_s, abs=0.05)
    child.stdout.close()
