"""The host process and its collector, with real processes that are killed at any time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.core.errors import RecordsError
from headrace.core.process.sidecar import request_line
from headrace.records.collector import Collector
from headrace.records.data_frames import RunFrames
from headrace.records.live_switch import create_live_switch
from headrace.records.reader import open_records
from headrace.records.ring import RingReader, RingWriter
from headrace.records.schema import FETCHES, PHASES, STEPS
from headrace.records.system_table import TABLE_NAMES
from jobs import DEADLINE_S, alive, eventually
from run_tables import row_of

# Writes rows numbered from 0 and says after each how many there are; never ends by itself unless
# given how many to write.
WRITER = """
import os, sys
from pathlib import Path
from headrace.records.ring import RingWriter
from headrace.records.schema import FETCHES, EVENTS
folder, name, most = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
writer = RingWriter(folder / "rings" / f"{name}.ring", int(sys.argv[4]))
number = 0
while number < most:
    if writer.write(EVENTS, 0, number, f"kind {number % 10}", name, 1.5):
        number += 1
        if number % 20 == 0:
            print(number, flush=True)
print(number, flush=True)
if sys.argv[5] == "close":
    writer.close()
else:
    sys.stdin.read()
"""
ENDLESS = 10**9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "records" / "attempt-1"
    (folder / "rings").mkdir(parents=True)
    return folder


@contextmanager
def ended(process: subprocess.Popen) -> Iterator[subprocess.Popen]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def writing(folder: Path, name: str, most: int, *, capacity: int = 1 << 20, end: str = "close"):
    command = [sys.executable, "-c", WRITER, folder, name, most, capacity, end]
    return ended(
        subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    )


def hosting(folder: Path):
    command = [sys.executable, "-P", "-m", "headrace.observe.probe.collector_process"]
    create_live_switch(folder, interval_s=0.1)
    host = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    host.stdin.write(request_line({"folder": str(folder), "place": {"attempt": 1}}).encode())
    host.stdin.flush()
    return ended(host)


def wrote_at_least(writer: subprocess.Popen, count: int) -> int:
    """Wait until a writer has reported that it wrote so many rows; return what it reported."""
    return next(number for line in writer.stdout if (number := int(line)) >= count)


def numbers(run: Path, name: str) -> list[int]:
    table = open_records(run).table("events").to_pylist()
    return [row["at_ns"] for row in table if row["text"] == name]


def finished(host: subprocess.Popen, **last_word: int) -> int:
    if last_word:
        host.stdin.write(json.dumps(last_word).encode() + b"\n")
    host.stdin.close()
    return host.wait(timeout=DEADLINE_S)


def test_a_run_is_read_live_and_closed(folder: Path, tmp_path: Path):
    with hosting(folder) as host, writing(folder, "a", 500, end="stay") as writer:
        wrote_at_least(writer, 500)
        assert numbers(tmp_path, "a") == list(range(500))
        records = open_records(tmp_path)
        eventually(lambda: records.live, "the host's lock")
        eventually(lambda: records.table("process_usage").num_rows > 1, "samples of the writer")
        assert records.table("process_usage").column("pid")[0].as_py() == writer.pid
        assert RingReader(folder / "rings/a.ring", changing=False).pid == writer.pid
        writer.communicate()
        assert finished(host, exit_code=0) == 0
    assert not open_records(tmp_path).live
    assert "script-ended" in open_records(tmp_path).table("events").column("kind").to_pylist()
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["rings", *[f"{name}.parquet" for name in TABLE_NAMES]]
    )
    assert list((folder / "rings").iterdir()) == []
    assert numbers(tmp_path, "a") == list(range(500))
    (host_row,) = open_records(tmp_path).table("hosts").to_pylist()
    assert host_row["cores"] > 0
    assert host_row["attempt"] == 1
    system = open_records(tmp_path).table("system")
    assert system.num_rows > 1
    assert all(len(column.drop_null()) for column in system.columns)


def test_a_killed_writer_loses_nothing_that_it_wrote(folder: Path, tmp_path: Path):
    with hosting(folder) as host, writing(folder, "a", ENDLESS) as writer:
        count = wrote_at_least(writer, 2000)
        writer.kill()
        writer.wait()
        eventually(lambda: not list((folder / "rings").iterdir()), "the dead writer's ring to go")
        kept = numbers(tmp_path, "a")
        assert len(kept) >= count
        assert kept == list(range(len(kept)))
        assert finished(host, exit_code=1) == 0
    assert numbers(tmp_path, "a") == kept
    assert "script-ended" not in open_records(tmp_path).table("events").column("kind").to_pylist()


def test_a_killed_collector_that_is_started_anew_keeps_each_record_once(
    folder: Path, tmp_path: Path
):
    # A small ring fills within an instant: what is overwritten too early would show.
    with writing(folder, "a", 6000, capacity=1 << 15) as a, writing(folder, "b", ENDLESS) as b:
        for count in (500, 1500, 3000):
            with hosting(folder) as host:
                wrote_at_least(a, count)
                wrote_at_least(b, count)
                host.send_signal(signal.SIGKILL)
        with hosting(folder) as host:
            wrote_at_least(a, 6000)
            b.kill()
            assert finished(host) == 0
        table = open_records(tmp_path).table("events").to_pylist()
    ours = [row for row in table if row["text"] == "a"]
    assert [row["at_ns"] for row in ours] == list(range(6000))
    assert all(row["kind"] == f"kind {row['at_ns'] % 10}" for row in ours)
    others = [row["at_ns"] for row in table if row["text"] == "b"]
    assert others == sorted(set(others))
    assert open_records(tmp_path).table("hosts").num_rows == 1


def test_killing_everything_leaves_readable_records(folder: Path, tmp_path: Path):
    with hosting(folder) as host, writing(folder, "a", ENDLESS) as writer:
        wrote_at_least(writer, 3000)
        eventually(lambda: open_records(tmp_path).table("system").num_rows, "a sample")
        host.kill()
        count = wrote_at_least(writer, 3500)
        writer.kill()
        host.wait()
        writer.wait()
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    run = RunFrames(tmp_path)
    assert not run.live
    kept = list(run.events[run.events["text"] == "a"]["at_ns"])
    assert len(kept) >= count
    assert kept == list(range(len(kept)))
    assert len(run.system) >= 1
    changed = [path for path, content in before.items() if path.read_bytes() != content]
    assert [path for path in changed if not path.name.endswith("-shm")] == []


def test_reading_while_it_is_written_sees_every_record_up_to_a_moment(folder: Path, tmp_path: Path):
    with hosting(folder) as host, writing(folder, "a", 20_000, capacity=1 << 17) as writer:
        eventually((folder / "rings/a.ring").exists, "the ring")
        seen = 0
        while writer.poll() is None:
            found = numbers(tmp_path, "a")
            assert found == list(range(len(found)))
            assert len(found) >= seen
            seen = len(found)
        host.stdin.close()
        while host.poll() is None:  # also while the records are being closed
            found = numbers(tmp_path, "a")
            assert found == list(range(len(found)))
        assert host.returncode == 0
    assert numbers(tmp_path, "a") == list(range(20_000))


def test_ctrl_c_leaves_it_alone_and_sigterm_ends_it(folder: Path, tmp_path: Path):
    with hosting(folder) as host, writing(folder, "a", 100) as writer:
        wrote_at_least(writer, 100)
        eventually(lambda: open_records(tmp_path).table("system").num_rows, "a sample")
        host.send_signal(signal.SIGINT)
        count = open_records(tmp_path).table("system").num_rows
        eventually(lambda: open_records(tmp_path).table("system").num_rows > count, "more samples")
        host.send_signal(signal.SIGTERM)
        assert host.wait(timeout=DEADLINE_S) == 0
        assert host.stderr.read() == b""
    assert numbers(tmp_path, "a") == list(range(100))


def test_it_closes_the_records_when_its_parent_is_killed(folder: Path, tmp_path: Path):
    parent = """
import os, subprocess, sys
from headrace.core.process.sidecar import request_line
command = [sys.executable, "-P", "-m", "headrace.observe.probe.collector_process"]
# The pipe's other end is inherited by a process that outlives us: its end shows nothing.
read, write = os.pipe()
os.write(write, request_line({"folder": sys.argv[1], "place": {"attempt": 1}}).encode())
print(subprocess.Popen(command, stdin=read).pid, flush=True)
os.set_inheritable(write, True)
print(subprocess.Popen(["sleep", "1000"], close_fds=False).pid, flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", parent, str(folder)]
    create_live_switch(folder, interval_s=0.1)
    launcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with ended(launcher) as process:
        host, other = int(process.stdout.readline()), int(process.stdout.readline())
        try:
            eventually(lambda: list(folder.glob("*.sqlite")), "the store")
            process.kill()
            eventually(lambda: not alive(host), "the host process's end")
        finally:
            os.kill(other, signal.SIGKILL)
    assert not open_records(tmp_path).live
    assert (folder / "hosts.parquet").exists()


def test_two_do_not_collect_the_same_records(folder: Path):
    with hosting(folder) as host:
        eventually(lambda: list(folder.glob("*.sqlite")), "the store, which is made under the lock")
        with pytest.raises(RecordsError, match="another process collects"):
            Collector(folder, os.uname().nodename)
        assert finished(host) == 0
    with pytest.raises(RecordsError, match="closed"):
        Collector(folder, os.uname().nodename)


def test_dropped_records_are_reported(folder: Path, tmp_path: Path):
    writer = RingWriter(folder / "rings/a.ring", 10 * (8 + FETCHES.frame.size))
    for number in range(15):
        writer.write(FETCHES, *row_of(FETCHES, rank=number))
    before = open_records(tmp_path).table("events").to_pylist()
    assert [(row["kind"], row["value"]) for row in before] == [("dropped-records", 5.0)]
    collector = Collector(folder, "here")
    assert collector.drain() == 10
    writer.write(FETCHES, *row_of(FETCHES, rank=99))
    writer.close()
    collector.close()
    records = open_records(tmp_path)
    assert records.table("fetches").column("rank").to_pylist() == [*range(10), 99]
    events = records.table("events").to_pylist()
    assert [(row["kind"], row["value"]) for row in events] == [("dropped-records", 5.0)]


def test_the_phases_of_a_run_are_those_of_its_steps(folder: Path, tmp_path: Path):
    writer = RingWriter(folder / "rings/a.ring")
    for step in range(3):
        row = dict.fromkeys(STEPS.columns, 0) | {
            "step": step, "kind": "train", "start_ns": step * 100, "wall_ns": 28,
            **{f"{phase}_ns": number for number, phase in enumerate(PHASES, 1)},
        }  # fmt: skip
        writer.write(STEPS, *row.values())
    writer.close()
    run = RunFrames(tmp_path)
    assert list(run.phases.columns) == [
        "rank", "step", "kind", "loader", "start_ns", "phase", "phase_ns", "share"
    ]  # fmt: skip
    assert set(run.phases["phase"]) == set(PHASES)
    assert len(run.phases) == 3 * len(PHASES)
    assert run.phases.groupby("step")["share"].sum().round(6).tolist() == [1, 1, 1]
    assert run.phases.groupby("phase")["phase_ns"].first()["copy"] == 2


def test_processes_that_have_ended_are_reported_once(folder: Path):
    collector = Collector(folder, "here")
    assert collector.take_pids() == set()
    writer = RingWriter(folder / "rings/a.ring")
    writer.write(FETCHES, *row_of(FETCHES))
    collector.drain()
    assert collector.take_pids() == collector.take_pids() == {os.getpid()}
    writer.close()
    collector.drain(last=True)
    assert collector.take_pids() == {os.getpid()}
    assert collector.take_pids() == set()
    collector.close()
