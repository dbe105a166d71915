"""Flags of torchrun and of Headrace on one command line."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from headrace.core.errors import UsageError
from headrace.jobs.environment.script_environment import ScriptEnvironment
from headrace.jobs.torchrun_args import (
    parse_torchrun_flags,
    sync_names,
    threads_per_rank,
    tie_ranks_to_torchrun,
)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.touch()
    return str(path)


def test_every_value_flag_of_torchrun_is_taken_in_every_spelling(script: str):
    values = {int: "3", float: "0.5"}
    for action in get_args_parser()._actions:
        if not action.option_strings or action.nargs == 0 or action.dest == "nnodes":
            continue
        value = next(iter(action.choices)) if action.choices else values.get(action.type, "2")
        for spelling in action.option_strings:
            job = parse_torchrun_flags(["--nnodes=4", spelling, value, script])
            expected = [value] if isinstance(getattr(job.args, action.dest), list) else value
            assert str(getattr(job.args, action.dest)) == str(expected)


def test_our_own_flags_stand_among_torchruns_and_end_at_the_script(script: str):
    job = parse_torchrun_flags(
        ["--nproc-per-node=2", "--name", "a", "--standalone", script, "--name", "b"]
    )
    assert job.spec.run.name == "a"
    assert job.spec.script.arguments == ("--name", "b")
    assert job.spec.torchrun_flags == ("--nproc-per-node=2", "--standalone")
    assert job.ranks_here == job.world_size == 2


def test_torchruns_flags_may_be_shortened_as_its_parser_has_it(script: str):
    job = parse_torchrun_flags(["--stand", "--nnode", "1:3", "-mt3", "a.train", "--nnode", "2"])
    assert (job.args.nnodes, job.args.standalone, job.args.module, job.args.tee) == (
        "1:3", True, True, "3",
    )  # fmt: skip
    assert job.spec.script.arguments == ("--nnode", "2")


def test_the_world_counts_all_hosts(script: str):
    job = parse_torchrun_flags(["--nnodes", "1:3", "--nproc-per-node", "4", script])
    assert (job.ranks_here, job.world_size) == (4, 12)


def test_auto_means_devices_or_one(script: str):
    import torch

    job = parse_torchrun_flags(["--nproc_per_node", "auto", script])
    assert job.ranks_here == (torch.accelerator.device_count() or 1)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nprocs", "2", "SCRIPT"], r"no flag --nprocs\. Did you mean --nproc"),
        (["--max-restart-count", "2", "SCRIPT"], r"Did you mean --max-restarts\?"),
        (["--nproc-per-node", "many", "SCRIPT"], "--nproc-per-node many: Unsupported"),
        (["--nproc-per-node", "gpus", "SCRIPT"], "--nproc-per-node gpus"),
        (["--nproc-per-node", "0", "SCRIPT"], "one rank or more"),
        (["--nnodes", "a:b", "SCRIPT"], "MIN:MAX"),
        (["--nnodes", "3:2", "SCRIPT"], "MIN no more than MAX"),
        (["--node-rank", "1", "SCRIPT"], "--node-rank 1: with --nnodes 1:1 hosts are numbered"),
        (["--nnodes=2", "--node-rank=2", "SCRIPT"], "--node-rank 2: with --nnodes 2 .* 0 to 1"),
        (["--nnodes", "2", "--node-rank", "-1", "SCRIPT"], "--node-rank -1: "),
        (["--monitor-interval", "0", "SCRIPT"], "--monitor-interval 0: give seconds, more than 0"),
        (["--monitor-interval", "nan", "SCRIPT"], "--monitor-interval nan: give seconds"),
        (["--max-run", "99999999999999", "SCRIPT"], "it is no time"),
        (["--max-restarts", "x", "SCRIPT"], "invalid int value: 'x'"),
        (["--output", "x", "SCRIPT"], r"no flag --output\. Did you mean --output-path\?"),
        (["--standalone", "--run-d=x", "SCRIPT"], r"no flag --run-d\. Did you mean --run-dir\?"),
        (["--standalone", "--dry-run=x", "SCRIPT"], "--dry-run takes no value"),
        (["--standalone", "--name"], "--name needs a value"),
        (["--nproc-per-node", "--", "SCRIPT"], "expected one argument"),
        (["--standalone"], "No script is named"),
        (["--standalone", "absent.py"], "no script absent.py"),
    ],
)
def test_wrong_use_is_one_sentence_with_the_remedy(argv, message, script: str):
    with pytest.raises(UsageError, match=message):
        parse_torchrun_flags([script if word == "SCRIPT" else word for word in argv])


def test_ranks_are_started_through_the_wrapper(script: str):
    args = parse_torchrun_flags(["--nproc-per-node", "2", script, "-x"]).args
    tie_ranks_to_torchrun(args, ScriptEnvironment())
    assert args.no_python
    assert args.training_script == sys.executable
    assert args.training_script_args[-4:] == [sys.executable, "-u", script, "-x"]


def test_a_module_stays_one(script: str):
    args = parse_torchrun_flags(["--nproc-per-node", "2", "-m", "pkg.train"]).args
    tie_ranks_to_torchrun(args, ScriptEnvironment())
    assert not args.module
    assert args.training_script_args[-4:] == [sys.executable, "-u", "-m", "pkg.train"]


def test_output_that_the_user_directs_is_left_to_torchrun(script: str):
    assert parse_torchrun_flags(["--tee", "3", script]).keeps_own_logs
    assert not parse_torchrun_flags(["--log-dir", "x", script]).keeps_own_logs


C10D = ["--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:29400"]


@pytest.mark.parametrize(
    ("flags", "own", "hosts"),
    [
        ([], "host", ()),
        (["--nproc-per-node=2"], "host", ()),
        (C10D, "host", ()),
        (["--nnodes=2", "--master-addr=10.0.0.1"], "node-0", ("node-0", "node-1")),
        (["--nnodes=2:2", "--node_rank", "1"], "node-1", ("node-0", "node-1")),
        (["--nnodes=3", "--node-rank=2"], "node-2", ("node-0", "node-1", "node-2")),
        (["--nnodes=2", "--node-rank=1", *C10D], socket.gethostname(), None),
        (["--nnodes=1:2", *C10D], socket.gethostname(), None),
    ],
)
def test_hosts_sync_by_their_numbers_where_torchrun_has_some(
    flags: list[str], own: str, hosts: tuple[str, ...] | None, script: str
):
    """So that one of them knows which files are of hosts that are in the job no more."""
    names = sync_names(parse_torchrun_flags([*flags, script]).args)
    assert (names.own, names.all) == (own, hosts)


def test_ranks_share_the_cores():
    assert threads_per_rank(1) >= threads_per_rank(2) >= threads_per_rank(10**6) == 1


GROUPS = ["--engine", "ray", "--group", "gpu=1", "--group", "cpu=1"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--engine", "slurm"], "--engine slurm: it is one of local, ray"),
        (["--offload", "cpu"], "--offload is about a cluster: add --engine ray"),
        (["--engine", "ray", "--nnodes", "2"], "--nnodes and --engine ray: the cluster decides"),
        (["--engine", "ray", "--group", "gpu"], "how many hosts"),
        (["--engine", "ray", "--max-preemptions", "-2"], "give a whole number, -1 or more"),
        (["--engine", "ray", "--group", "gpu=1", "--offload", "gpu"], "that group trains"),
        (["--engine", "ray", "--group", "gpu=1", "--offload", "cpu"], "none is of that group"),
        (["--driver"], "--driver is about a cluster: add --engine ray"),
        (["--engine", "ray", "--driver", "--nproc-per-node", "2"], "such a script runs once"),
        ([*GROUPS, "--offload", "cpu", "--driver"], "--offload cpu and --driver"),
        (["--engine", "ray", "--group", "gpu=1", "--offload", "auto"], "there are: none"),
        ([*GROUPS, "--group", "b=1", "--offload", "auto"], "there are: cpu, b"),
        ([*GROUPS, "--profile", "off", "--offload", "auto"], "records nothing"),
    ],
)
def test_wrong_flags_of_a_cluster_say_what_is_right(argv: list[str], message: str, script: str):
    with pytest.raises(UsageError, match=message):
        parse_torchrun_flags([*argv, script])


@pytest.mark.parametrize(
    ("flags", "times"),
    [([], -1), (["--max-preemptions", "-1"], -1), (["--max-preemptions", "0"], 0)],
)
def test_how_often_hosts_may_be_lost(flags: list[str], times: int, script: str):
    cluster = parse_torchrun_flags([*GROUPS, *flags, script]).cluster
    assert cluster is not None
    assert cluster.max_preemptions == times
