"""What follows the script is the script's: no parser of ours or of torchrun's looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.jobs.cli_args import (
    TORCHRUN_FLAGS,
    asks_for_help,
    direct_job,
    options_by_flag,
    split_headrace_flags,
)
from headrace.jobs.hosts.cluster_join import parse_join_flags
from headrace.jobs.spec import JobSpec
from headrace.jobs.torchrun_args import parse_torchrun_flags, torchrun_job
from jobs_here import run_job

JOIN_FLAGS = ("--head", "--hosts", "--port", "--token-file")
BEFORE = (
    ["--nproc-per-node", "2"],
    ["--nproc_per_node=1", "--standalone"],
    ["--engine", "ray", "--group", "gpu=1", "--group", "cpu=1"],
    ["--contract", "sagemaker,vertex", "--distribution", "torch_distributed"],
    ["--name", "a", "-t3", "--max-restarts", "1"],
    ["--standalone", "--no-python"],
    ["--nnodes", "1:2", "--"],
)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "module"):
        Path(name).touch(mode=0o755)
    return "train.py"


def prefixes() -> Iterator[str]:
    """Yield every beginning of every flag, ours and torchrun's, and each with a value."""
    flags = {*options_by_flag(), *TORCHRUN_FLAGS, *JOIN_FLAGS}
    for each in sorted({flag[:end] for flag in flags for end in range(1, len(flag) + 1)}):
        yield from (each, f"{each}=x")


def arguments() -> list[str]:
    words = [*prefixes(), "--", "-1", "", "a b", "-x y", "@file", "--=", "=", "-"]
    return [*words, "x", *reversed(words)]  # a flag first and last, with a value and without


def test_each_beginning_of_a_flag_alone_reaches_the_script(script: str):
    for word in prefixes():
        for given in ([word], [word, "x"]):
            job = direct_job([script, *given])
            assert job is not None
            assert job.script.arguments == tuple(given)
            assert split_headrace_flags([script, *given])[1] == [script, *given]
            assert not asks_for_help(["--standalone", script, *given])
            assert parse_join_flags(["--head", "a", script, *given]).run == (script, *given)


def test_torchruns_own_parser_sees_none_of_them(script: str):
    for word in ("--output", "--out", "--input", "--cache", "--source", "--dry", "--check", "--n"):
        job = parse_torchrun_flags(["--nproc-per-node=1", script, word, "x"])
        assert job.args.training_script_args == [word, "x"]


@pytest.mark.parametrize("before", BEFORE, ids=" ".join)
def test_all_of_them_at_once_in_every_way_to_start_ranks(before: list[str], script: str):
    given = arguments()
    for named in ([script], ["-m", "module"]):
        if named[0] == "-m" and before[-1] == "--":
            continue
        job = parse_torchrun_flags([*before, *named, *given])
        is_program = "--no-python" in before
        assert job.args.training_script == (f"./{named[-1]}" if is_program else named[-1])
        assert job.args.training_script_args == given
        assert job.spec.script.arguments == tuple(given)
        # On a host of a cluster, which gets the job as JSON:
        again = torchrun_job(JobSpec.from_json(job.spec.to_json()))
        assert again.args.training_script_args == given
        assert again.spec.torchrun_flags == job.spec.torchrun_flags


def test_all_of_them_at_once_where_the_script_runs_directly(script: str):
    given = arguments()
    for named in ([script], ["-m", "module"], ["--name", "a", "--", script]):
        job = direct_job([*named, *given])
        assert job is not None
        assert job.script.arguments == tuple(given)


def test_all_of_them_at_once_on_a_host_that_joins_others():
    given = arguments()
    for before in (["--nproc-per-node", "2"], ["--driver"], ["--no_python"], ["-m"], ["-mt", "3"]):
        options = parse_join_flags(["--head", "a", *before, "--port=7", "train", *given])
        assert options.run == (*before, "train", *given)
        assert (options.port, options.host_flags.head) == (7, "a")


def test_hyperparameters_are_any_bytes(script: str, tmp_path: Path):
    job = run_job(
        tmp_path, "--profile=off", "--contract=sagemaker,vertex", "--hyperparameter=a=\udcff\n",
        script,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        (["--help"], True),
        (["--nproc-per-node", "2", "--help"], True),
        (["--standalone", "-h", "train.py"], True),
        (["train.py", "--help"], False),
        (["-m", "pkg", "--help"], False),
        (["--nproc-per-node", "2", "train.py", "--help"], False),
        (["--flag-of-a-newer-torch", "train.py", "--help"], False),
        (["--", "--help"], False),
    ],
)
def test_help_is_asked_for_before_the_script_alone(words: list[str], asks: bool):
    assert asks_for_help(words) is asks
