"""The command line of `headrace cluster join`: which flags are its own, which are the run's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cluster.ray_node import configured_token, write_token_file
from headrace.core import env
from headrace.core.errors import UsageError
from headrace.jobs.cli_args import TORCHRUN_FLAGS
from headrace.jobs.hosts.cluster_join import parse_join_flags
from headrace.jobs.torchrun_args import torchrun_flags
from headrace.platforms.cluster_hosts import ClusterHostFlags
from headrace.platforms.instance_groups import GroupSpec


def test_flags_of_both_kinds_in_any_order():
    options = parse_join_flags(
        [
            "--head", "a", "--nproc-per-node", "2", "-t3", "--group=gpu", "--hosts", "a, b",
            "--group", "gpu=2", "--hosts_timeout", "2m", "--standalone", "--port", "7000",
            "--offload", "cpu", "-m", "package.train", "--head", "of the script", "--group",
        ]
    )  # fmt: skip
    assert options.host_flags == ClusterHostFlags(
        head="a", group="gpu", hosts=("a", "b"), training="gpu", offload="cpu"
    )
    assert options.groups == (GroupSpec(name="gpu", hosts=2),)
    assert not options.driver
    assert (options.port, options.hosts_s, options.token_file) == (7000, 120.0, None)
    assert options.run == (
        "--hosts-timeout=2m", "--nproc-per-node", "2", "-t3", "--standalone", "--offload", "cpu",
        "-m", "package.train", "--head", "of the script", "--group",
    )  # fmt: skip
    assert parse_join_flags(["--offload=auto", "train.py"]).host_flags.offload is None
    drives = parse_join_flags(["--driver", "train.py", "--offload", "x"])
    assert (drives.driver, drives.host_flags.offload, drives.run[0]) == (True, None, "--driver")
    assert parse_join_flags(["--", "train.py", "--port", "x"]).run == ("train.py", "--port", "x")
    assert parse_join_flags(["--", "-x.py", "-v"]).run == ("--", "-x.py", "-v")


def test_the_torchrun_flags_that_are_written_down_are_those_of_its_parser():
    assert torchrun_flags() == TORCHRUN_FLAGS


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "No script is named"),
        (["--head", "a"], "No script is named"),
        (["--head"], "--head needs a value"),
        (["--nproc-per-node", "2", "--"], "No script is named"),
        (["--engine", "ray", "train.py"], "--engine: the cluster is the one that the hosts make"),
        (["--address=auto", "train.py"], "--address: the cluster is the one"),
        (["--group", "a", "--group", "b", "train.py"], "this host is in one group"),
        (["--group", "a=0", "train.py"], "0 is no whole number above 0"),
        (["--port", "65535", "train.py"], "--port 65535: a port of the head from 1 to 65534"),
        (["--hosts-timeout", "ten", "train.py"], "'ten' is not a duration"),
    ],
)
def test_wrong_flags_are_reported(argv: list[str], message: str):
    with pytest.raises(UsageError) as raised:
        parse_join_flags(argv)
    assert message in str(raised.value)


def test_sagemaker_s_file_is_found_below_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for variable in env.HOST_LIST_VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    options = parse_join_flags(["train.py"])
    with pytest.raises(UsageError, match="Neither SageMaker"):
        options.cluster_hosts()
    file = tmp_path / "input" / "config" / "resourceconfig.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"current_host": "algo-1", "hosts": ["algo-1"]}))
    assert options.cluster_hosts().is_head


def test_a_token_that_was_given_comes_from_the_flag_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    assert configured_token(None) is None
    flags, variables = tmp_path / "flags", tmp_path / "variables"
    flags.write_text("by the flag\n")
    variables.write_text("by the variable\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(variables))
    assert configured_token(None) == "by the variable"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "itself")
    assert configured_token(None) == "itself"
    assert configured_token(str(flags)) == "by the flag"
    written = tmp_path / "written"
    variables_set = write_token_file(written, "by the flag")
    assert variables_set["RAY_AUTH_TOKEN_PATH"] == str(written)
    assert written.stat().st_mode & 0o777 == 0o600


def test_a_token_file_that_is_none_is_reported_with_how_to_make_one(tmp_path: Path):
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe")
    for path, message in (
        (empty, "the file is empty"),
        (binary, "it is not plain text"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(UsageError, match=message) as raised:
            configured_token(str(path))
        assert f"--token-file {path}" in str(raised.value)
        assert "openssl rand -hex 32" in str(raised.value)
