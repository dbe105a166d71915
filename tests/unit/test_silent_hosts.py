"""How long the proxy waits for a silent host, by what would have to be gone through again."""

from __future__ import annotations

import multiprocessing
import socket
import time
from pathlib import Path

import pytest

from headrace.offload.connection import (
    AuxiliaryHost,
    HostsFile,
    OpenConnection,
    ServerConnection,
)
from headrace.offload.proxy import OffloadProxy
from headrace.offload.scheduler import PartitionScheduler
from headrace.offload.worker_records import OffloadRecorder
from offload_frames import KEYS


def scheduler_after(*making_s: float) -> PartitionScheduler:
    """Return a scheduler of two partitions whose batches took their host so long, in turn."""
    scheduler = PartitionScheduler()
    scheduler.begin([2, 3])
    scheduler.set_task_limit("one", 2)
    scheduler.assign_all()
    for task, took_s in enumerate(making_s):
        scheduler.add(task, 2 + task % 2)
        (assignment,) = scheduler.assign(0.0)
        scheduler.took(assignment.number, "one", took_s)
        scheduler.arrived(assignment.number, "one", 0.0)
    return scheduler


@pytest.mark.parametrize(
    ("making_s", "silent_s", "message"),
    [
        ((0.1, 0.1), 4, "silent for 3 s; others make what it had; of an iterable dataset they"),
        ((9.0, 1.0, 9.0), 12, ""),
        ((9.0, 1.0, 9.0), 20, "silent for 18 s; others make what it had; of an iterable dataset "),
        ((90.0, 1.0), 70, "first go through 2 batches again"),
    ],
)
def test_a_silent_host_is_waited_for_as_long_as_its_part_would_take_again(
    making_s, silent_s, message, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    host = AuxiliaryHost(name="one", address="127.0.0.1", port=9)
    file = tmp_path / "hosts.json"
    file.write_bytes(
        HostsFile(key="00", folder=str(tmp_path), cores=1, partitions=2, hosts=(host,)).to_bytes()
    )
    ours, theirs = socket.socketpair()
    answers, _ = socket.socketpair()
    control, _ = multiprocessing.Pipe()
    proxy = OffloadProxy(control, answers, [], file, OffloadRecorder(0), prints=True)
    proxy._scheduler = scheduler_after(*making_s)
    connection = proxy._server_connections["one"] = ServerConnection(host)
    proxy._joined(connection, OpenConnection(ours, KEYS))
    connection.heard_s = time.monotonic() - silent_s
    proxy._update_hosts()
    assert connection.is_open == (not message)
    assert message in capsys.readouterr().err
    theirs.close()


def test_who_begins_a_partition_anew_has_gone_through_it_with_its_first_batch():
    scheduler = scheduler_after(1.0, 1.0, 2.0)
    assert scheduler.again("one") == (3, 3.0)
    scheduler.set_task_limit("two", 2)
    scheduler.lose("one")
    assert (scheduler.again("one"), scheduler.again("two")) == ((0, 0.0), (3, 3.0))
    scheduler.add(3, 2)
    (assignment,) = scheduler.assign(0.0)
    scheduler.took(assignment.number, "two", 4.0)
    assert scheduler.again("two") == (4, 4.0)
