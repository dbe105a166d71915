"""What docs/estimator.md says can be typed, does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from headrace.cli.main import build_app
from headrace.jobs.job_arguments import ARGUMENTS
from jobs import run

PAGE = (Path(__file__).parents[2] / "docs/estimator.md").read_text()
TRAIN = """
import argparse, os
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(args.epochs):
    model(torch.ones(args.batch_size, 1)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("read", os.listdir(os.environ["SM_CHANNEL_TRAIN"]), flush=True)
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.txt").write_text("a picture")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_first_example_trains(job: Path, capsys: pytest.CaptureFixture[str]):
    exec(snippets("python")[0], {})  # noqa: S102 - the page's own words
    said = capsys.readouterr().out
    assert "read ['a.txt']\n" in said
    assert "Completed" in said


def test_a_launch_script_for_sagemaker_is_told_what_it_would_start(
    job: Path, capsys: pytest.CaptureFixture[str]
):
    exec(snippets("python")[1], {})  # noqa: S102 - the page's own words
    assert "ranks         2: 1 on each of the 2 hosts of gpu" in capsys.readouterr().out


def test_the_job_file_runs(job: Path):
    (job / "job.toml").write_text(snippets("toml")[0])
    ended = run(job, "job.toml")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("read ['a.txt']\n") == 2


def test_every_argument_that_means_something_and_every_flag_is_told():
    told = set(re.findall(r"`([a-z_0-9]+)`", PAGE))
    start = ARGUMENTS.index("py_version")
    assert set(ARGUMENTS[: start + 1]) <= told
    verb = typer.main.get_command(build_app()).commands["run"]
    flags = {flag for each in verb.params for flag in each.opts}
    # torchrun's own, and those that come with the channels and uploads.
    torchruns = {"--max-restarts", "--shutdown-timeout"}
    assert set(re.findall(r"(--[a-z][a-z-]+)", PAGE)) - torchruns <= flags
