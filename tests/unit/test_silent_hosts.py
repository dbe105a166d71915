"""How long a receiver bears the silence of a host, by what would have to be gone through again."""

from __future__ import annotations

import multiprocessing
import socket
import time
from pathlib import Path

import pytest

from headrace.offload.connection import AuxiliaryHost, HostsFile, ServerConnection
from headrace.offload.proxy import OffloadProxy
from headrace.offload.scheduler import PartitionScheduler
from headrace.offload.worker_records import OffloadRecorder


def dealt(*making_s: float) -> PartitionScheduler:
    """Return a dealer of two strands whose batches took their host so long, in turn."""
    dealer = PartitionScheduler()
    dealer.begin([2, 3])
    dealer.set_task_limit("one", 2)
    dealer.assign_all()
    for ticket, took_s in enumerate(making_s):
        dealer.add(ticket, 2 + ticket % 2)
        (ask,) = dealer.assign(0.0)
        dealer.took(ask.number, "one", took_s)
        dealer.arrived(ask.number, "one", 0.0)
    return dealer


@pytest.mark.parametrize(
    ("making_s", "silent_s", "told"),
    [
        ((0.1, 0.1), 4, "silent for 3 s; others make what it had; of an iterable dataset they"),
        ((9.0, 1.0, 9.0), 12, ""),
        ((9.0, 1.0, 9.0), 20, "silent for 18 s; others make what it had; of an iterable dataset "),
        ((90.0, 1.0), 70, "first go through 2 batches again"),
    ],
)
def test_a_silent_host_is_waited_for_as_long_as_its_part_would_take_again(
    making_s, silent_s, told, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    host = AuxiliaryHost(name="one", address="127.0.0.1", port=9)
    file = tmp_path / "hosts.json"
    file.write_bytes(
        HostsFile(key="00", folder=str(tmp_path), cores=1, strands=2, hosts=(host,)).to_bytes()
    )
    here, there = socket.socketpair()
    answers, _ = socket.socketpair()
    control, _ = multiprocessing.Pipe()
    receiver = OffloadProxy(control, answers, [], file, OffloadRecorder(0), prints=True)
    receiver._scheduler = dealt(*making_s)
    peer = receiver._server_connections["one"] = ServerConnection(host)
    receiver._joined(peer, here)
    peer.heard_s = time.monotonic() - silent_s
    receiver._update_hosts()
    assert peer.is_open == (not told)
    assert told in capsys.readouterr().err
    there.close()


def test_who_begins_a_strand_anew_has_gone_through_it_with_its_first_batch():
    dealer = dealt(1.0, 1.0, 2.0)
    assert dealer.again("one") == (3, 3.0)
    dealer.set_task_limit("two", 2)
    dealer.lose("one")
    assert (dealer.again("one"), dealer.again("two")) == ((0, 0.0), (3, 3.0))
    dealer.add(3, 2)
    (ask,) = dealer.assign(0.0)
    dealer.took(ask.number, "two", 4.0)
    assert dealer.again("two") == (4, 4.0)
