"""The requirements.txt of a job's code, installed on this host: real pip, an environment apart."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from jobs import DEADLINE_S, clean_environment
from pip_environments import make_environment, make_wheel, packages_of

IMPORTS = "import os, tinyhr; print('ran with', tinyhr.VERSION, flush=True)\n"
SAGEMAKER = ("--profile", "off", "--run-dir", "r", "--contract", "sagemaker", "--source-dir", "src")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment's Python, in which each of these tests installs what it needs anew."""
    return make_environment(tmp_path_factory.mktemp("environment"))


def run_there(
    python: Path, folder: Path, needs: str, *flags: str
) -> subprocess.CompletedProcess[str]:
    """Run a job by the environment's own Python; its code needs a version, "" for no wheel."""
    make_wheel(folder / "src" / "wheels", "tinyhr", needs or "0")
    wheel = f"./wheels/tinyhr-{needs or 'none'}-py3-none-any.whl\n"
    (folder / "src" / "requirements.txt").write_text(wheel)
    (folder / "src" / "train.py").write_text(IMPORTS)
    return subprocess.run(
        [python, "-m", "headrace.cli.main", "run", *flags],
        cwd=folder,
        env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", "")),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_nothing_is_installed_unless_a_job_s_code_asks_for_it(python: Path, tmp_path: Path) -> None:
    for flags in (
        [*SAGEMAKER, "--requirements=none", "train.py"],
        ["--profile=off", "src/train.py"],
    ):
        ended = run_there(python, tmp_path, "1.0", *flags)
        assert "No module named 'tinyhr'" in ended.stderr
        assert packages_of(python) == set()


@pytest.mark.parametrize(
    ("flags", "times", "version"),
    [([], 1, "1.0"), (["--nproc-per-node=1"], 1, "1.1"), (["--group=gpu=2"], 2, "1.2")],
)
def test_what_the_code_needs_is_installed_before_it_starts(
    python: Path, tmp_path: Path, flags: list[str], times: int, version: str
) -> None:
    ended = run_there(python, tmp_path, version, *SAGEMAKER, *flags, "train.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(f"ran with {version}\n") == times
    assert ended.stderr.count(f"headrace: this host has installed tinyhr=={version}\n") == 1
    attempt = json.loads((tmp_path / "r" / "run.json").read_text())["attempts"][0]
    assert attempt["installed"] == {"this host": [f"tinyhr=={version}"]}


def test_what_cannot_be_installed_is_reported_and_nothing_starts(
    python: Path, tmp_path: Path
) -> None:
    ended = run_there(python, tmp_path, "", *SAGEMAKER, "train.py")
    assert ended.returncode != 0
    assert "requirements.txt could not be installed, and the script was not" in ended.stderr
    assert "ran" not in ended.stdout
    assert (tmp_path / "r" / "logs" / "attempt-1" / "requirements-host.log").exists()
