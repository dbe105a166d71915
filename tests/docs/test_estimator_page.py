"""What docs/estimator.md says can be typed, does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from headrace.cli.main import build_app
from headrace.jobs.job_request import argument_names
from headrace.jobs.spec import job_options
from jobs import run_here

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "estimator.md").read_text()
OPTIONS = (DOCS / "options.md").read_text()
TRAIN = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--epochs", type=int)
args = parser.parse_args()
print("read", os.listdir(os.environ["SM_CHANNEL_TRAIN"]), args.batch_size, flush=True)
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
    output = capsys.readouterr().out
    assert "read ['a.txt'] 256\n" in output
    assert "Completed" in output


def test_a_launch_script_for_sagemaker_prints_what_it_would_start(
    job: Path, capsys: pytest.CaptureFixture[str]
):
    exec(snippets("python")[1], {})  # noqa: S102 - the page's own words
    assert "ranks         2: 1 on each of the 2 hosts of gpu" in capsys.readouterr().out


def test_the_job_file_prints_what_it_would_start(job: Path):
    (job / "job.toml").write_text(snippets("toml")[0])
    ended = run_here(job, "run", "--dry-run", "job.toml")
    assert ended.returncode == 0, ended.stderr
    lines = [line.strip() for line in ended.stdout.splitlines()]
    assert "arguments     --batch-size 256" in lines
    assert "gpu: 2 x ml.g5.xlarge, 4 cores, 1 devices each" in lines
    assert "ranks         2: 1 on each of the 2 hosts of gpu" in lines
    assert "max run       7200s" in lines
    assert "train       images" in lines


def test_the_job_file_runs_on_this_host(job: Path):
    lines = snippets("toml")[0].splitlines()
    hosts = [line for line in lines if line.startswith(("instance_groups", "distribution"))]
    assert len(hosts) == 2
    (job / "job.toml").write_text("\n".join(line for line in lines if line not in hosts))
    ended = run_here(job, "run", "job.toml")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("read ['a.txt'] 256\n") == 1


def test_every_argument_that_means_something_and_every_flag_is_documented():
    documented = set(re.findall(r"`([a-z_0-9]+)`", PAGE + OPTIONS))
    names = argument_names()
    assert set(names[: names.index("py_version") + 1]) <= documented
    assert {each.argument for each in job_options().values()} - {None} <= documented
    verb = typer.main.get_command(build_app()).commands["run"]
    flags = {flag for each in verb.params for flag in each.opts}
    # torchrun's own, and those that come with the channels and uploads.
    torchruns = {"--max-restarts", "--shutdown-timeout", "--module", "--no-python"}
    assert set(re.findall(r"(--[a-z][a-z-]+)", PAGE)) - torchruns - {"--epochs"} <= flags
