"""Ranks of one host meet in a store that only this host reaches, empty at each start."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousParameters,
    rendezvous_handler_registry,
)

import headrace.jobs.torchrun  # noqa: F401 - it makes the rendezvous known to torch
from headrace.core.errors import LaunchError
from headrace.jobs.torchrun_args import is_loopback, parse_torchrun_flags, use_local_rendezvous

TWO = ["--nproc-per-node", "2"]


def _arguments(tmp_path: Path, *flags: str):
    script = tmp_path / "train.py"
    script.touch()
    args = parse_torchrun_flags([*flags, str(script)]).args
    use_local_rendezvous(args)
    return args


@pytest.mark.parametrize(
    ("flags", "port"),
    [
        (TWO, 0),
        (["--standalone", *TWO], 0),
        (["--nnodes=1", *TWO], 0),
        (["--nnodes=1:1", *TWO, "--max-restarts=3"], 0),
        ([*TWO, "--master-port=29577"], 29577),
        ([*TWO, "--master_addr=localhost", "--master_port=29577"], 29577),
        ([*TWO, "--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1"], 0),
        ([*TWO, "--rdzv-endpoint=localhost:29577"], 29577),
        ([*TWO, "--rdzv-backend=c10d"], 0),
        ([*TWO, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"], 0),
        ([*TWO, "--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:29577", "--rdzv_id=7"], 0),
        ([*TWO, "--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:29577"], 0),
    ],
)
def test_jobs_of_one_host_meet_on_loopback(tmp_path: Path, flags: list[str], port: int):
    args = _arguments(tmp_path, *flags)
    assert (args.rdzv_backend, args.rdzv_endpoint) == ("headrace-local", f"127.0.0.1:{port}")
    assert args.rdzv_id not in ("", "none")
    assert args.rdzv_id == "7" or "--rdzv_id=7" not in flags


@pytest.mark.parametrize(
    "flags",
    [
        ["--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "--master-port=29577"],
        ["--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29577"],
        ["--master-addr=10.0.0.1"],
        ["--local-addr=10.0.0.1"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=node-1:29577"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29577", "--rdzv-conf=is_host=1"],
        ["--rdzv-backend=etcd-v2", "--rdzv-endpoint=localhost:2379"],
        ["--rdzv-endpoint=localhost:port"],  # torchrun refuses it
    ],
)
def test_what_names_a_network_or_a_backend_stays(tmp_path: Path, flags: list[str]):
    (tmp_path / "train.py").touch()
    typed = parse_torchrun_flags([*TWO, *flags, str(tmp_path / "train.py")]).args
    assert vars(_arguments(tmp_path, *TWO, *flags)) == vars(typed)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_addresses(host: str):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "localhost.example.com", "10.0.0.1", "::", "x"])
def test_addresses_of_a_network(host: str):
    assert not is_loopback(host)


def _listening() -> set[tuple[str, int]]:
    sockets = psutil.Process(os.getpid()).net_connections("inet")
    return {tuple(each.laddr) for each in sockets if each.status == psutil.CONN_LISTEN}


def _rendezvous(port: int) -> RendezvousHandler:
    return rendezvous_handler_registry.create_handler(
        RendezvousParameters("headrace-local", f"127.0.0.1:{port}", "job", 1, 1)
    )


@pytest.mark.parametrize("has_port", [False, True])
def test_each_start_finds_an_empty_store_on_loopback(has_port: bool):
    port = _free_port() if has_port else 0
    before = _listening()
    rendezvous = _rendezvous(port)
    try:
        for _ in range(2):
            info = rendezvous.next_rendezvous()
            at = info.bootstrap_store_info
            assert at is not None
            assert at.master_port == port or not has_port
            assert _listening() - before == {("127.0.0.1", at.master_port)}
            assert (info.rank, info.world_size, rendezvous.use_agent_store) == (0, 1, True)
            rank = TCPStore(at.master_addr, at.master_port, is_master=False)
            assert not rank.check(["of an earlier rank"])
            rank.set("of an earlier rank", "its address")
            assert not info.store.check(["torchrun's"])
            info.store.set("torchrun's", "own")
            del rank
    finally:
        assert rendezvous.shutdown()
    assert _listening() == before


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"Port {port} of 127\.0\.0\.1 is taken .*--master-"):
            _rendezvous(port).next_rendezvous()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
