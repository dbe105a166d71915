"""Scripts that are programs: what runs a file by its name, its first line and its permissions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import UsageError
from headrace.jobs.cli_args import check_script
from headrace.jobs.environment.script_command import (
    check_program,
    default_code_folder,
    find_program,
    program_command,
    script_command,
)
from headrace.jobs.environment.script_environment import ScriptEnvironment
from headrace.jobs.torchrun_args import parse_torchrun_flags, tie_ranks_to_torchrun

BY_PYTHON = [
    ("train.py", "import torch", 0o644),
    ("train.py", "#!/bin/sh\necho", 0o755),
    ("train", "import torch\n", 0o644),
    ("train", "import torch\n", 0o755),
    ("train", "#!/usr/bin/env python3\nimport torch", 0o755),
    ("train.sh", "#!/opt/conda/bin/python3.11 -u\nimport torch", 0o755),
    ("train", "#!/usr/bin/env -S A=b python -u\r\nimport torch", 0o644),
    ("train.zip", "PK\x03\x04\0", 0o644),
    ("train", "PK\x03\x04\0", 0o755),
    ("empty", "", 0o755),
]
BY_ANOTHER = [
    ("train.sh", "#!/bin/sh\necho", 0o755, ["./train.sh"]),
    ("train.sh", "#!/bin/sh\necho", 0o644, ["/bin/sh", "./train.sh"]),
    ("train.sh", "#!/bin/sh -e -u\necho", 0o444, ["/bin/sh", "-e -u", "./train.sh"]),
    ("train.sh", "echo hi there", 0o755, ["/bin/sh", "./train.sh"]),
    ("train.sh", "echo", 0o644, ["/bin/sh", "./train.sh"]),
    ("train.bash", "echo", 0o644, ["bash", "./train.bash"]),
    ("launch", "#!/usr/bin/env bash\necho", 0o644, ["/usr/bin/env", "bash", "./launch"]),
    ("launch.rb", "#!/usr/bin/env ruby\nputs", 0o755, ["./launch.rb"]),
    ("launch", "#!/usr/bin/env -S uv run\n", 0o755, ["./launch"]),
    ("launch", "python train.py --lr 1\n", 0o755, ["/bin/sh", "./launch"]),
    ("launch", "\x7fELF\0", 0o755, ["./launch"]),
]
REFUSED = [
    ("launch", "python train.py\n", 0o644, r"is not Python \(line 1: .*#!/bin/sh"),
    ("launch", "\x7fELF\0", 0o644, r"chmod \+x launch"),
    ("train.sh", "#!/opt/none/zsh\n", 0o755, "run by /opt/none/zsh.*not on this host"),
    ("train.sh", "#!/bin/bash\r\necho\r\n", 0o755, r"Windows.*sed -i"),
    ("train.ipynb", '{"cells": [], "nbformat": 4}', 0o644, "a notebook.*nbconvert --to script"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHON_EXEC", raising=False)
    return tmp_path


def made(name: str, text: str, mode: int) -> str:
    path = Path(name)
    path.unlink(missing_ok=True)
    path.write_bytes(text.encode())
    path.chmod(mode)
    return name


def command(script: str, script_env: ScriptEnvironment = ScriptEnvironment()) -> list[str]:  # noqa: B008
    return script_command(script, ["-x", "a b"], script_env, is_module=False)


def test_what_is_python_is_run_by_ours():
    for each in BY_PYTHON:
        name = made(*each)
        check_script(name)
        assert command(name) == [sys.executable, "-u", name, "-x", "a b"], each


def test_a_script_that_begins_like_an_option_is_none():
    for name, text in (("-x.py", "import torch"), ("-x.sh", "echo")):
        assert command(made(name, text, 0o644))[-3:] == [f"./{name}", "-x", "a b"]
    assert direct_or_torchrun(["--", "-x.py", "-y"]) == ("-x.py", ("-y",))


def direct_or_torchrun(words: list[str]) -> tuple[str, tuple[str, ...]]:
    script = parse_torchrun_flags(words).spec.script
    return script.path, script.arguments


def test_what_is_not_python_is_run_by_what_it_names_whether_it_may_be_executed_or_not():
    for *each, expected in BY_ANOTHER:
        name = made(*each)
        check_script(name)
        assert command(name) == [*expected, "-x", "a b"], each


def test_what_cannot_be_run_is_refused_with_what_to_do():
    for *each, message in REFUSED:
        with pytest.raises(UsageError, match=message):
            check_script(made(*each))


def test_a_pipe_is_not_read_before_python_does():
    os.mkfifo("pipe")
    assert command("pipe")[0] == sys.executable


def test_a_contract_s_arguments_come_first_and_its_folder_makes_paths_absolute(folder: Path):
    script_env = ScriptEnvironment(arguments=("--lr", "1"), folder=str(folder))
    path = str(folder / made("train.sh", "#!/bin/sh\n", 0o644))
    assert command("train.sh", script_env) == ["/bin/sh", path, "--lr", "1", "-x", "a b"]
    named = program_command("./train.sh", ["-x"], script_env)
    assert named == ["/bin/sh", path, "-x", "--lr", "1"]
    assert program_command("bash", ["train.sh"], script_env) == ["bash", "train.sh", "--lr", "1"]


def test_a_program_is_looked_for_in_the_code_folder_then_where_it_is_typed_then_on_path():
    Path("code").mkdir()
    made("code/train.sh", "#!/bin/sh\n", 0o644)
    made("bash", "", 0o755)
    made("only-here", "", 0o755)
    for program, source_dir, expected in (
        ("train.sh", "code", "code/train.sh"),
        ("./train.sh", "code", "code/train.sh"),
        ("bash", "code", "bash"),
        ("bash", None, "bash"),
        ("only-here", None, "./only-here"),
        ("code/train.sh", None, "code/train.sh"),
    ):
        assert find_program(program, source_dir) == expected
        check_program(expected, None)
    for program, path in (("none", None), ("./none", None), ("bash", "/none")):
        with pytest.raises(UsageError, match=f"no program {program}"):
            check_program(program, path)
    with pytest.raises(UsageError, match=r"chmod \+x"):
        check_program("./" + made("train.py", "import torch", 0o644), None)


def test_the_code_of_a_program_of_this_host_is_in_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{folder}/tools::/usr/bin:/bin")
    here = Path.cwd()
    for name in ("tools", "code"):
        Path(name).mkdir()
        made(f"{name}/launch", "#!/bin/sh\n", 0o755)
        made(f"{name}/train.py", "import torch", 0o644)
    for script, is_named, expected in (
        ("/bin/sh", True, here),
        ("/bin/sh", False, here),
        (sys.executable, True, here),  # of an environment that need not be on PATH
        ("tools/launch", True, here),
        ("tools/launch", False, here),
        ("bash", True, here),
        ("code/launch", True, here / "code"),
        ("code/launch", False, here / "code"),
        ("code/train.py", False, here / "code"),
        ("tools/train.py", False, here / "tools"),  # Python's, which is no program
    ):
        found = default_code_folder(script, is_module=False, never_python=is_named)
        assert found == expected, script
    assert default_code_folder("a.b", is_module=True, never_python=False) == here


def test_a_program_s_path_may_hold_an_equals_sign(folder: Path):
    Path("lr=0.1").mkdir()
    made("lr=0.1/train.sh", '#!/bin/sh\necho "$PWD $1"', 0o755)
    for flags in (["--nproc-per-node=2"], ["--nproc-per-node=2", "--no-python"]):
        args = parse_torchrun_flags([*flags, "lr=0.1/train.sh", "a=b c"]).args
        tie_ranks_to_torchrun(args, ScriptEnvironment(folder="/"), restarts=1)
        words = args.training_script_args
        ended = subprocess.run(
            words[words.index("--") + 1 :], capture_output=True, text=True, check=True
        )
        assert ended.stdout == "/ a=b c\n"


def test_ranks_are_started_likewise_in_every_way():
    made("train.sh", "#!/bin/sh\n", 0o644)
    for flags, expected in (
        (["--nproc-per-node=2"], ["/bin/sh", "./train.sh", "-x"]),
        (["--nproc-per-node=2", "--no-python"], ["/bin/sh", "./train.sh", "-x"]),
        (["--engine=ray", "--group=gpu=2"], ["/bin/sh", "./train.sh", "-x"]),
        (["--contract=sagemaker", "--distribution=mpi"], ["/bin/sh", "./train.sh", "-x"]),
    ):
        args = parse_torchrun_flags([*flags, "train.sh", "-x"]).args
        tie_ranks_to_torchrun(args, ScriptEnvironment())
        assert args.training_script_args[-3:] == expected
    with pytest.raises(UsageError, match=r"train\.sh is a program.*Leave the distribution out"):
        parse_torchrun_flags(
            ["--contract=sagemaker", "--distribution=torch_distributed", "train.sh"]
        )
