"""`headrace run job.toml` and `--dry-run`: a job described in a file, started or only described."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

import pytest

from headrace.data.storage import open_store
from headrace.decide.experiments.spool import read_spool
from jobs import attempts_of
from jobs_here import run_job

TRAIN = """
import os, sys
import beside
print(sys.argv[1:], os.environ["LEVEL"], os.environ["SM_CURRENT_INSTANCE_TYPE"], flush=True)
"""
TOML = """
entry_point = "train.py"
source_dir = "code"
dependencies = ["lib/beside.py"]
environment = {LEVEL = "3"}
instance_groups = [{name = "gpu", type = "ml.g5.xlarge", count = 1}]
distribution = {torch_distributed = {enabled = true}}
profiler_config = {system_monitor_interval_millis = 250}
max_restarts = 1
job_name = "typed"

[hyperparameters]
batch-size = 16
name = "12"

[inputs]
train = "images"
"""
YAML = """
entry_point: train.py
source_dir: code
dependencies: [lib/beside.py]
environment: {LEVEL: "3"}
inputs:
  train: {s3_data: images}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with a script's folder, a dependency and a channel's data."""
    for folder in ("code", "lib", "images"):
        (tmp_path / folder).mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    (tmp_path / "lib" / "beside.py").write_text("")
    (tmp_path / "images" / "a.txt").write_text("a picture")
    (tmp_path / "job.toml").write_text(TOML)
    (tmp_path / "job.yaml").write_text(YAML)
    return tmp_path


def test_a_job_of_a_toml_file(job: Path) -> None:
    ended = run_job(job, "job.toml", "--lr", "2")
    assert ended.returncode == 0, ended.stderr
    arguments = ["--batch-size", "16", "--name", "12", "--lr", "2"]
    assert f"{arguments} 3 ml.g5.xlarge\n" in ended.stdout
    (attempt,) = attempts_of(job / "runs" / "typed")
    assert attempt["asked"]["hyperparameters"] == {"batch-size": 16, "name": "12"}
    assert attempt["asked"]["inputs"] == {"train": "images"}


def test_a_job_of_a_yaml_file_and_flags_before_it(job: Path) -> None:
    ended = run_job(job, "--name", "mine", "--hyperparameter", "epochs=2", "job.yaml")
    assert ended.returncode == 0, ended.stderr
    assert "['--epochs', '2'] 3 local" in ended.stdout
    assert (job / "runs" / "mine" / "run.json").exists()


def test_one_key_of_a_job_file_puts_its_channels_into_a_cache(job: Path, s3_url: str) -> None:
    open_store(s3_url).put("train/a.bin", b"a picture")
    (job / "lists.py").write_text(
        "import os; print(os.listdir(os.environ['SM_CHANNEL_TRAIN']), flush=True)\n"
    )
    (job / "cached.yaml").write_text(
        f"entry_point: lists.py\ninputs: {{train: {s3_url}/train}}\ninput_mode: Cache\n"
        "cache_dir: fsx\ncache_limit: 1GB\n"
    )
    ended = run_job(job, "cached.yaml")
    assert ended.returncode == 0, ended.stderr
    assert "['a.bin']\n" in ended.stdout
    assert any(file.read_bytes() == b"a picture" for file in (job / "fsx").rglob("*")
               if file.is_file())  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "entry_pont = 'train.py'", "there is no argument entry_pont. Did you mean e"),
        ("a.toml", "instance_count = 2", "entry_point is missing"),
        (
            "a.toml",
            "entry_point = 'train.py'\ninstance_count = '2'",
            "instance_count: '2' is not a whole number",
        ),
        ("a.toml", "entry_point = ", " is no TOML: Invalid value (at end of document)"),
        ("a.toml", "", " holds no keys"),
        ("a.yaml", "- train.py", " holds no keys"),
        ("a.yaml", "entry_point: [", " is no YAML: while parsing"),
        (
            "a.yml",
            "entry_point: train.py\nenvironment: {LEVEL: 3}",
            "environment: {'LEVEL': 3} is not texts by names (numbers in quotes)",
        ),
        (
            "a.yml",
            "entry_point: train.py\ninputs: {train: {s3_data: b, mod: File}}",
            "inputs: train: there is no mod.",
        ),
        (
            "a.yml",
            "entry_point: train.py\ninputs: s3://b/t\ninput_mode: Cache",
            "inputs: training: in mode Cache it lies in a folder of your choice. Name one: cache_d",
        ),
        (
            "a.yml",
            "entry_point: train.py\nprofiler_config: {interval: 5}",
            "profiler_config: interval: it is one of",
        ),
    ],
)
def test_wrong_keys_and_values_are_refused_with_the_file(
    job: Path, name: str, text: str, message: str
) -> None:
    (job / name).write_text(text)
    ended = run_job(job, name)
    assert ended.returncode == 2
    assert f"headrace: {name}" in ended.stderr
    assert message in ended.stderr
    assert not (job / "runs").exists()


def test_a_job_file_that_is_not_there_or_stands_behind_flags_of_torchruns(job: Path) -> None:
    ended = run_job(job, "jobs.toml")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "There is no job file jobs.toml in" in ended.stderr
    ended = run_job(job, "--nproc-per-node", "2", "job.toml")
    assert ended.returncode == 2
    assert "job.toml is a job file, and flags of torchrun's stand before it" in ended.stderr


def test_behind_a_job_file_a_dry_run_is_ours_and_what_could_be_anybodys_is_refused(
    job: Path,
) -> None:
    ended = run_job(job, "job.yaml", "--lr", "2", "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert "--lr 2\n" in ended.stdout
    assert f"  SM_DLC_TORCH_VERSION={metadata.version('torch')}\n" in ended.stdout
    assert not (job / "runs").exists()
    ended = run_job(job, "job.yaml", "--name=mine")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "headrace run --name ... job.yaml" in ended.stderr
    assert "headrace run job.yaml -- --name ..." in ended.stderr
    ended = run_job(job, "job.yaml", "--lr", "2", "--", "--name", "mine", "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert "['--lr', '2', '--name', 'mine', '--dry-run'] 3 local" in ended.stdout


def test_a_dry_run_of_each_way_to_start(job: Path) -> None:
    two, script = ["--group", "a=2"], "code/train.py"
    eight = ["--group", "a=2xg2-standard-96", "--contract", "vertex", "--distribution", "mpi"]
    for argv, ranks in [
        (["job.yaml"], "none: the script runs once on the host"),
        (["job.toml"], "1: 1 on the host of gpu"),
        (["--nproc-per-node", "2", script], "2: 2 on the host of homogeneousCluster"),
        ([*two, "--nproc-per-node=3", script], "6: 3 on each of the 2 hosts of a"),
        ([*eight, script], "16: 8 on each of the 2 hosts of a"),
        (
            ["--engine", "ray", "--address", "head:1", *two, script],
            "2: 1 on each of the 2 hosts of a",
        ),
    ]:
        ended = run_job(job, "--dry-run", *argv)
        assert ended.returncode == 0, ended.stderr
        assert f"ranks         {ranks}\n" in ended.stdout
        assert max(map(len, ended.stdout.splitlines())) <= 80
    assert not (job / "runs").exists()


def test_a_dry_run_counts_what_is_to_move(job: Path, s3_url: str) -> None:
    store = open_store(s3_url)
    for number in range(3):
        store.put(f"train/{number}.bin", bytes(1000))
    channel = f'x={{"uri": "{s3_url}/train", "groups": ["a"]}}'
    ended = run_job(
        job, "--dry-run", "--group", "a=2", "--group", "b=1", "--contract", "sagemaker",
        "--channel", f"train={s3_url}/train", "--channel", f"one={s3_url}/train/0.bin",
        "--channel", channel, "code/train.py",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "3 objects, 2.93 KiB; File: 2.93 KiB to move to each of 3 hosts" in ended.stdout
    assert "1 object, 1000 B; File: 1000 B to move to each of 3 hosts" in ended.stdout
    assert "2.93 KiB to move to each of 2 hosts" in ended.stdout
    ended = run_job(
        job, "--dry-run", "--contract", "sagemaker", "--channel", f"t={s3_url}/trian",
        "code/train.py",
    )  # fmt: skip
    assert ended.returncode == 2
    assert "there is nothing" in ended.stderr


def test_metrics_that_no_rank_prints_are_reported(job: Path) -> None:
    (job / "prints.py").write_text("print('loss=none')\n")
    ended = run_job(
        job, "--metric", "loss=loss=(\\w+)", "--metric", "lr=lr=([0-9.]+)", "--name", "a",
        "prints.py",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "--metric loss: 1 values are no numbers, and left out\n" in ended.stderr
    assert "--metric lr: no rank printed what 'lr=([0-9.]+)' finds\n" in ended.stderr


def test_without_ranks_the_first_host_s_metrics_have_no_other_name(
    job: Path, new_database: Path
) -> None:
    (job / "runs").mkdir()
    shutil.copy(new_database, job / "runs")
    (job / "prints.py").write_text(
        "import os\nprint('loss=' + os.environ['SM_CURRENT_HOST'][-1])\n"
    )
    ended = run_job(
        job, "--contract", "sagemaker", "--group", "gpu=2", "--metric", "loss=loss=([0-9]+)",
        "--profile", "off", "--name", "a", "prints.py", HEADRACE_TRACKING_URI="",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    entries = [each for found, _ in read_spool(job / "runs/a/experiment", {}) for each in found]
    values = {name: value for each in entries for name, value in each.get("values", {}).items()}
    assert {name: value for name, value in values.items() if name.startswith("loss")} == {
        "loss": 1.0, "loss/gpu-1": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-run", "soon"], "--max-run soon: it is no time"),
        (["--max-run", "0"], "--max-run 0: it is no time"),
        (["--metric", "loss"], "write it as --metric NAME=REGEX"),
        (["--metric", "loss=("], "is no regular expression"),
        (["--environment", "1A=2"], "a variable's name has letters"),
        (["--environment", "NOT_SET_ANYWHERE"], "it is not set here"),
        (["--environment", "A=1", "--environment", "A=2"], "is given twice"),
        (["--dependency", "nowhere"], "there is no such file or folder"),
    ],
)
def test_flags_that_cannot_be_are_refused_in_both_ways_to_start(
    job: Path, flags: list[str], message: str
) -> None:
    for more in ([], ["--nproc-per-node=1", "--dry-run"]):
        ended = run_job(job, *flags, *more, "code/train.py")
        assert ended.returncode == 2
        assert message in ended.stderr
    assert not (job / "runs").exists()


def test_a_variable_set_here_reaches_ranks_on_every_host_and_no_record(job: Path) -> None:
    (job / "prints.py").write_text("import os\nprint('got', os.environ['MY_KEY'], flush=True)\n")
    ended = run_job(
        job, "--environment", "MY_KEY", "--environment", "API_TOKEN=hush", "--group", "a=2",
        "--contract", "sagemaker", "--name", "a", "prints.py", MY_KEY="there",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("got there\n") == 2
    assert "hush" not in (job / "runs" / "a" / "run.json").read_text()
