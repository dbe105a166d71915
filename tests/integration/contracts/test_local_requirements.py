"""The requirements.txt of a job's code, installed on this host: real pip, an environment apart."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from jobs import clean_environment
from pip_environments import make_environment, make_wheel, packages_of

IMPORTS = "import os, tinyhr; print('ran with', tinyhr.VERSION, flush=True)\n"
SAGEMAKER = ("--profile", "off", "--run-dir", "r", "--contract", "sagemaker", "--source-dir", "src")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    make_environment(tmp_path / "environment")
    make_wheel(tmp_path / "src" / "wheels", "tinyhr", "1.0")
    (tmp_path / "src" / "requirements.txt").write_text("./wheels/tinyhr-1.0-py3-none-any.whl\n")
    (tmp_path / "src" / "train.py").write_text(IMPORTS)
    return tmp_path


def run_there(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a job by the environment's own Python."""
    python = folder / "environment" / "bin" / "python"
    return subprocess.run(
        [python, "-m", "headrace.cli.main", "run", *flags],
        cwd=folder, env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", "")),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "times"), [([], 1), (["--nproc-per-node=1"], 1), (["--group=gpu=2"], 2)]
)
def test_what_the_code_needs_is_installed_before_it_starts(
    job: Path, flags: list[str], times: int
) -> None:
    ended = run_there(job, *SAGEMAKER, *flags, "train.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("ran with 1.0\n") == times
    assert ended.stderr.count("headrace: this host has installed tinyhr==1.0\n") == 1
    attempt = json.loads((job / "r" / "run.json").read_text())["attempts"][0]
    assert attempt["installed"] == {"this host": ["tinyhr==1.0"]}


def test_what_cannot_be_installed_is_told_and_nothing_starts(job: Path) -> None:
    (job / "src" / "requirements.txt").write_text("./wheels/none-1.0-py3-none-any.whl\n")
    ended = run_there(job, *SAGEMAKER, "train.py")
    assert ended.returncode != 0
    assert "requirements.txt could not be installed, and the script was not" in ended.stderr
    assert "ran" not in ended.stdout
    assert (job / "r" / "logs" / "attempt-1" / "requirements-host.log").exists()


@pytest.mark.parametrize(
    "flags", [[*SAGEMAKER, "--requirements=none", "train.py"], ["--profile=off", "src/train.py"]]
)
def test_nothing_is_installed_unasked(job: Path, flags: list[str]) -> None:
    ended = run_there(job, *flags)
    assert "No module named 'tinyhr'" in ended.stderr
    assert packages_of(job / "environment" / "bin" / "python") == set()
