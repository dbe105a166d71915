"""What MLflow has of jobs of `headrace run`, of unmodified scripts and of those that log."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

from headrace import open_run
from headrace.decide.experiments.run_target import database_uri
from headrace.records.run_folder import RunFolder
from jobs import clean_environment, eventually, headrace, run, run_here
from services.mlflow_server import history
from services.mlflow_server import run_of as run_in

SCRIPT = Path(__file__).parents[1] / "scripts" / "tracked.py"


@pytest.fixture
def folder(tmp_path: Path, new_database: Path) -> Path:
    """A folder with a database for its runs."""
    (tmp_path / "runs").mkdir()
    shutil.copy(new_database, tmp_path / "runs")
    shutil.copy(SCRIPT, tmp_path / "tracked.py")
    return tmp_path


def run_of(folder: Path, name: str, experiment: str = "tracked") -> tuple[MlflowClient, Run]:
    return run_in(folder / "runs", name, experiment)


def artifacts(client: MlflowClient, run: Run, folder: str | None = None) -> set[str]:
    return {each.path for each in client.list_artifacts(run.info.run_id, folder)}


def job(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(folder, *words, HEADRACE_TRACKING_URI="")


def test_a_job_of_two_ranks_is_one_run_with_what_they_print_log_and_take(folder: Path):
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"]
    subprocess.run(["git", "add", "tracked.py"], cwd=folder, check=True)
    subprocess.run(commit, cwd=folder, check=True)
    flags = ["--nproc-per-node", "2", "--name", "base", "--metric", "loss=loss=([0-9]+)"]
    ended = job(folder, *flags, "tracked.py", "--lr", "1e-3", "--tags=a", "--mlflow")
    assert ended.returncode == 0, ended.stderr
    client, tracked = run_of(folder, "base")
    assert tracked.info.status == "FINISHED"
    params = tracked.data.params
    assert params.items() >= {
        "job.script": "tracked.py", "job.world_size": "2", "argument.lr": "1e-3",
        "argument.tags": "a", "argument.mlflow": "true", "optimizer": "sgd", "lr": "0.001",
    }.items()  # fmt: skip
    tags = tracked.data.tags
    assert len(tags["mlflow.source.git.commit"]) == 40
    assert tags["headrace.git_dirty"] == "true"  # runs and database are beside the script
    assert tags["headrace.version.torch"]
    assert tags["headrace.script_run_name"] == "mine"
    assert tags["headrace.verdict"] in " ".join(ended.stderr.split())
    for rank in range(2):
        seen = history(client, tracked, f"seen.rank{rank}")
        assert seen == [(step, step) for step in range(40)]
    losses = [(number, 10.0 * number) for number in range(4)]
    assert history(client, tracked, "loss") == history(client, tracked, "loss/rank-1") == losses
    # Each rank's first run of MLflow's is the job's; the second is one of its own.
    assert history(client, tracked, "accuracy")[0] == (3, 0.75)
    other = client.get_experiment_by_name("another")
    assert other is not None
    names = [each.info.run_name for each in client.search_runs([other.experiment_id])]
    assert names == ["second", "second"]
    metrics = tracked.data.metrics
    diagnosis = json.loads((folder / "runs" / "base" / "diagnosis.json").read_text())
    assert metrics["job.step_ms"] == pytest.approx(diagnosis["verdict"]["step_ms"], abs=1e-4)
    assert metrics["job.exit_code"] == 0
    assert artifacts(client, tracked) == {"headrace"}
    assert artifacts(client, tracked, "headrace") == {
        "headrace/diagnosis.json", "headrace/report.html",
    }  # fmt: skip
    steps = open_run(folder / "runs" / "base").steps
    assert (steps["kind"] == "train").sum() == 80


LOGS_OUR_NAMES = """
from pathlib import Path

import mlflow
import torch
from headrace import experiments
from torch.utils.data import DataLoader, TensorDataset

net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (batch,) in DataLoader(TensorDataset(torch.randn(320, 4)), batch_size=8):
    net(batch).square().mean().backward()
    optimizer.step()
experiments.log_metrics({"steps": 1000, "step_ms": -1.5, "exit_code": 5, "mine": 2})
for step in range(3):
    mlflow.log_metric("samples_per_s", -1 - step, step=step)
for name in ("report.html", "diagnosis.json"):
    Path(name).write_text(f"the script's {name}")
experiments.log_artifact("report.html")
mlflow.log_artifact("diagnosis.json")
"""


def test_what_a_script_logs_by_our_names_is_its_own_and_ours_stays_what_was_measured(folder: Path):
    (folder / "own.py").write_text(LOGS_OUR_NAMES)
    ended = job(folder, "--name", "base", "own.py")
    assert ended.returncode == 0, ended.stderr
    client, tracked = run_of(folder, "base", "own")
    for name in ("report.html", "diagnosis.json"):
        scripts = client.download_artifacts(tracked.info.run_id, name, str(folder))
        assert Path(scripts).read_text() == f"the script's {name}"
        ours = client.download_artifacts(tracked.info.run_id, f"headrace/{name}", str(folder))
        assert Path(ours).read_bytes() == (folder / "runs" / "base" / name).read_bytes()
    assert tracked.data.metrics.items() >= {"steps": 1000, "samples_per_s": -3, "mine": 2}.items()
    shown = headrace("runs", "show", "base", "--json")
    found = json.loads(subprocess.run(shown, cwd=folder, stdout=subprocess.PIPE, check=True).stdout)
    metrics = found["metrics"]
    own = {"script.steps": 1000, "script.step_ms": -1.5, "script.exit_code": 5, "mine": 2}
    assert metrics.items() >= own.items()
    assert metrics["exit_code"] == 0
    assert min(metrics["step_ms"], metrics["samples_per_s"], metrics["steps"]) > 0
    assert found["time_series"]["samples_per_s"] == -3
    shown = EventAccumulator(str(folder / "runs" / "base" / "tensorboard"))
    shown.Reload()
    points = [(each.step, each.value) for each in shown.Scalars("samples_per_s")]
    assert points == [(0, -1), (1, -2), (2, -3)]
    assert [each.value for each in shown.Scalars("step_ms")] == [-1.5]
    assert shown.Scalars("job.step_ms")[0].value > 0


def test_a_restart_goes_on_with_the_run_of_the_attempt_before_unless_it_was_deleted(folder: Path):
    number = MlflowClient(database_uri(folder / "runs")).create_experiment("mine")
    words = ["--name", "base", "--profile", "off", "tracked.py"]
    own = {"HEADRACE_TRACKING_URI": "", "MLFLOW_EXPERIMENT_ID": number}  # the user's experiment
    failed = run(folder, *words, "--mlflow", "--lr", "0.1", "--fail", **own)
    assert failed.returncode == 3
    _, before = run_of(folder, "base", "mine")
    assert (before.info.status, before.data.metrics["job.exit_code"]) == ("FAILED", 3)
    changed = run(folder, *words, "--mlflow", "--lr", "0.2", **own)
    assert changed.returncode == 0, changed.stderr
    assert "param lr stays as an attempt before has logged it, not 0.2" in changed.stderr
    client, after = run_of(folder, "base", "mine")
    assert after.info.run_id == before.info.run_id
    assert (after.info.status, after.data.metrics["job.exit_code"]) == ("FINISHED", 0)
    assert after.data.tags["headrace.attempt"] == "2"
    assert after.data.params["lr"] == "0.1"
    assert history(client, after, "seen.rank0") == [
        (step, step) for step in range(40) for _ in range(2)
    ]
    client.delete_run(after.info.run_id)
    again = run(folder, *words, "--lr", "0.3", **own)
    assert again.returncode == 0, again.stderr
    _, anew = run_of(folder, "base", "mine")
    assert anew.info.run_id != before.info.run_id
    assert anew.info.status == "FINISHED"
    assert anew.data.params["argument.lr"] == "0.1"  # of the first attempt, as all was sent again


def test_a_job_in_a_copy_of_a_runs_folder_is_another_run(folder: Path):
    words = ["--profile", "off", "tracked.py"]
    ended = job(folder, "--name", "base", "--experiment", "first", *words, "--lr", "0.1")
    assert ended.returncode == 0, ended.stderr
    client, original = run_of(folder, "base", "first")
    shutil.copytree(folder / "runs" / "base", folder / "runs" / "branch")
    of_copy = ["--name", "branch", "--experiment", "second", *words]
    failed = job(folder, *of_copy, "--lr", "0.01", "--fail")
    assert failed.returncode == 3, failed.stderr
    kept = client.get_run(original.info.run_id)
    assert kept.to_dictionary() == original.to_dictionary()
    _, first = run_of(folder, "branch", "second")
    assert first.data.params["argument.lr"] == "0.01"
    assert (first.info.status, first.data.tags["headrace.attempt"]) == ("FAILED", "2")
    assert history(client, first, "seen.rank0") == [(step, step) for step in range(40)]
    assert job(folder, *of_copy).returncode == 0  # goes on with the run of the copy
    _, second = run_of(folder, "branch", "second")
    assert second.info.run_id == first.info.run_id
    assert second.info.status == "FINISHED"


OWN_PLACE = """
import os

print(os.environ.get("MLFLOW_TRACKING_URI"), os.environ.get("MLFLOW_EXPERIMENT_NAME"))
"""


def test_variables_given_to_a_script_say_where_its_own_calls_of_mlflow_go(folder: Path):
    (folder / "own.py").write_text(OWN_PLACE)
    words = ["--profile", "off", "--environment", "MLFLOW_EXPERIMENT_NAME=mine"]
    named = job(folder, "--name", "named", *words, "own.py")
    assert named.stdout == f"{database_uri(folder / 'runs')} mine\n", named.stderr
    _, tracked = run_of(folder, "named", "mine")
    assert tracked.info.status == "FINISHED"
    elsewhere = ["--environment", "MLFLOW_TRACKING_URI=http://none:5000"]
    sent = job(folder, "--name", "sent", *words, *elsewhere, "own.py")
    assert sent.stdout == "http://none:5000 mine\n", sent.stderr
    _, tracked = run_of(folder, "sent", "own")  # the job's run stays where Headrace was asked to
    assert tracked.info.status == "FINISHED"


UNTRACKED = """
from headrace import experiments

experiments.autolog()
with experiments.start_run("mine"):
    experiments.log_params({"lr": 0.1})
"""


@pytest.mark.parametrize("flags", [[], ["--nproc-per-node", "2"]])
def test_a_job_whose_target_is_damaged_says_so_and_runs_untracked(folder: Path, flags: list[str]):
    (folder / "plain.py").write_text(UNTRACKED)
    words = ["--name", "base", "--profile", "off", *flags]
    assert job(folder, *words, "--tracking-uri", "off", "plain.py").returncode == 0
    file = folder / "runs" / "base" / "experiment" / "target.json"
    file.parent.mkdir()
    for number, text in enumerate(("", '{"key": "k", "of_a_newer_version": 1}'), 1):
        file.write_text(text)
        ended = job(folder, *words, "plain.py")
        assert ended.returncode == 0, ended.stderr
        said = " ".join(ended.stderr.split())
        assert said.count(f"the run is not tracked: {file}") == 1
        assert "what the script logs is dropped" in said
        assert "Traceback" not in said
        assert RunFolder(file.parents[1]).attempts()[number].exit_code == 0


@pytest.mark.parametrize(("signum", "status"), [
    (signal.SIGTERM, "KILLED"), (signal.SIGKILL, "KILLED"),
])  # fmt: skip
def test_a_stopped_or_killed_job_is_a_killed_run_with_all_that_was_logged(
    folder: Path, signum: signal.Signals, status: str
):
    process = subprocess.Popen(
        headrace("run", "--name", "base", "--profile", "off", "tracked.py", "--wait"),
        cwd=folder, env=clean_environment(HEADRACE_TRACKING_URI=""),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    eventually((folder / "trained").exists, "the script has trained")
    spool = folder / "runs" / "base" / "experiment"
    logged = lambda: any('"step": 39}' in file.read_text() for file in spool.glob("*.jsonl"))  # noqa: E731
    eventually(logged, "what the script logged is on disk")
    os.kill(process.pid, signum)
    process.wait()

    def ended() -> bool:
        found = MlflowClient(database_uri(folder / "runs")).get_experiment_by_name("tracked")
        return found is not None and run_of(folder, "base")[1].info.status != "RUNNING"

    eventually(ended, "MLflow knows of the end")
    client, tracked = run_of(folder, "base")
    assert tracked.info.status == status
    assert len(history(client, tracked, "seen.rank0")) == 40


def test_a_job_whose_server_is_down_runs_and_says_where_its_run_waits(tmp_path: Path):
    shutil.copy(SCRIPT, tmp_path / "tracked.py")
    uri = "http://127.0.0.1:9"
    ended = job(tmp_path, "--name", "base", "--profile", "off", "--tracking-uri", uri, "tracked.py")
    assert ended.returncode == 0
    said = " ".join(ended.stderr.split())
    assert said.count("not tracked now, but kept until it can be") == 1
    assert "`headrace runs sync` sends" in said
    assert any((tmp_path / "runs" / "base" / "experiment").glob("*.jsonl"))


def test_a_job_that_is_not_tracked_leaves_no_trace_of_it(tmp_path: Path):
    shutil.copy(SCRIPT, tmp_path / "tracked.py")
    words = ["--name", "base", "--profile", "off", "--tracking-uri", "off", "tracked.py"]
    ended = job(tmp_path, *words)
    assert ended.returncode == 0
    assert ended.stderr.count("what the script logs is dropped") == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["base"]
    assert not (tmp_path / "runs" / "base" / "experiment").exists()


def test_what_a_script_writes_for_tensorboard_is_in_mlflow_and_in_the_runs_event_file(folder: Path):
    shutil.copy(SCRIPT.with_name("tensorboard_writer.py"), folder / "tracked.py")
    assert job(folder, "--name", "base", "tracked.py", "--lr", "0.1").returncode == 0
    assert job(folder, "--name", "base", "tracked.py", "--again").returncode == 0
    client, tracked = run_of(folder, "base")
    assert history(client, tracked, "loss") == [(step, step / 2) for step in range(40)]
    assert history(client, tracked, "val/loss") == [(step, step) for step in (0, 10, 20, 30)]
    assert history(client, tracked, "accuracy")[0][1] == 0.75
    assert tracked.data.params.items() >= {
        "momentum": "0.5", "amp": "1", "model": "linear", "argument.lr": "0.1",
    }.items()  # fmt: skip

    shown = EventAccumulator(str(folder / "runs" / "base" / "tensorboard"))
    shown.Reload()
    scalars = shown.Tags()["scalars"]
    assert {"loss", "val/loss", "phase_ms/backward"} <= set(scalars)
    assert {"job.step_ms", "job.data_wait_share"} <= set(scalars)
    losses = [(each.step, each.value) for each in shown.Scalars("loss")]
    assert losses == [(step, step / 2) for step in range(40)]
    phases = [name for name in scalars if name.startswith("phase_ms/") and name != "phase_ms/all"]
    for whole in shown.Scalars("phase_ms/all"):
        parts = [p.value for name in phases for p in shown.Scalars(name) if p.step == whole.step]
        assert sum(parts) >= whole.value * 0.999
    steps = [each.step for each in shown.Scalars("phase_ms/all")]
    assert len(set(steps)) == len(steps)  # the second attempt goes on after the first
    session = session_of(shown)
    assert session.hparams["argument.lr"].number_value == pytest.approx(0.1)
    assert session.hparams["model"].string_value == "linear"
    assert session.group_name == "base"


def session_of(shown: EventAccumulator) -> SessionStartInfo:
    """What TensorBoard's table of hyperparameters has of a run."""
    content = shown.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    return HParamsPluginData.FromString(content).session_start_info


def test_tensorboard_shows_params_that_are_logged_late_and_no_point_twice(folder: Path):
    (folder / "tracked.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "import mlflow\n"
        "from headrace import experiments\n"
        "def is_shown(text):\n"
        "    try:\n"
        "        files = Path('runs/base/tensorboard').glob('*.headrace')\n"
        "        return any(text in file.read_bytes() for file in files)\n"
        "    except FileNotFoundError:  # replaced by another one meanwhile\n"
        "        return False\n"
        "def wait_for(text):\n"
        "    while not is_shown(text):\n"
        "        time.sleep(0.01)\n"
        "experiments.log_time_series_metrics({'seen': 1.0}, step=1)\n"
        "wait_for(b'argument.lr')\n"
        "experiments.log_params({'momentum': 0.9})\n"
        "wait_for(b'momentum')\n"
        "experiments.log_time_series_metrics({'seen': 2.0}, step=2)\n"
        "experiments.log_params({'depth': 18})\n"
        "with mlflow.start_run():\n"
        "    mlflow.log_param('optimizer', 'sgd')\n"
        "    mlflow.log_metric('accuracy', 0.75, step=3)\n"
    )
    assert job(folder, "--name", "base", "tracked.py", "--lr", "0.1").returncode == 0
    shown = EventAccumulator(str(folder / "runs" / "base" / "tensorboard"))
    shown.Reload()
    found = session_of(shown).hparams
    numbers = {"argument.lr": 0.1, "momentum": 0.9, "depth": 18}
    assert {name: found[name].number_value for name in numbers} == pytest.approx(numbers)
    assert found["optimizer"].string_value == "sgd"
    assert [(each.step, each.value) for each in shown.Scalars("seen")] == [(1, 1.0), (2, 2.0)]
    assert [(each.step, each.value) for each in shown.Scalars("accuracy")] == [(3, 0.75)]


def test_runs_of_several_names_that_a_job_starts_are_its_own_and_that_is_said(folder: Path):
    (folder / "tracked.py").write_text(
        "from headrace import experiments\n"
        "for lr in (0.1, 0.01, 0.001):\n"
        "    with experiments.start_run(f'lr-{lr}'):\n"
        "        experiments.log_params({'lr': lr})\n"
    )
    ended = job(folder, "--name", "base", "--profile", "off", "tracked.py")
    assert ended.returncode == 0, ended.stderr
    said = " ".join(ended.stderr.split())
    assert said.count("are logged to the job's run 'base', as 'lr-0.1' was") == 1
    assert run_of(folder, "base")[1].data.params["lr"] == "0.1"


READS_BACK = """
import json
from pathlib import Path

from headrace import HeadraceError, experiments

experiments.init(experiment="resnet")
for name in ("first", "second"):
    with experiments.start_run(name):
        experiments.log_params({"lr": 0.1})
        for step in range(500):
            experiments.log_time_series_metrics({f"loss.{name}": step}, step=step)
        experiments.ExperimentRun(name).log_metrics({f"accuracy.{name}": 0.75})
frame = experiments.get_experiment_df()
read = {"frame": frame["run_name"].tolist()}
for name in ("base", "first", "second"):
    run = experiments.ExperimentRun(name)
    metrics = [metric for metric in run.get_metrics() if metric.startswith("accuracy")]
    series = run.get_time_series_data_frame()
    read[name] = [len(series), sorted(metrics), run.get_params().get("lr"), run.state]
try:
    experiments.ExperimentRun("third")
except HeadraceError as error:
    read["third"] = str(error)
Path("read.json").write_text(json.dumps(read))
"""


@pytest.mark.parametrize("tracked", ["by name", "by the experiment's id", "off"])
def test_a_jobs_script_reads_what_it_logged_by_the_names_that_it_chose(folder: Path, tracked: str):
    (folder / "train.py").write_text(READS_BACK)
    client, words, extra = MlflowClient(database_uri(folder / "runs")), [], {}
    client.create_run(client.create_experiment("resnet"), run_name="earlier")
    if tracked == "by the experiment's id":
        extra["MLFLOW_EXPERIMENT_ID"] = client.create_experiment("mine")
    if tracked == "off":
        words = ["--tracking-uri", "off"]
    words += ["--name", "base", "--profile", "off"]
    ended = run(folder, *words, "train.py", HEADRACE_TRACKING_URI="", **extra)
    assert ended.returncode == 0, ended.stderr
    read = json.loads((folder / "read.json").read_text())
    assert read.pop("frame") == ["base", "earlier"]
    assert "There is no run 'third'" in read.pop("third")
    logged = [500, ["accuracy.first", "accuracy.second"], "0.1", "RUNNING"]
    expected = [0, [], None, "RUNNING"] if tracked == "off" else logged
    assert read == dict.fromkeys(("base", "first", "second"), expected)


@pytest.mark.parametrize("tracked_on", ["a database", "a server that is away"])
def test_params_that_scripts_log_are_among_the_settings_that_differ(folder: Path, tracked_on: str):
    uri = ["--tracking-uri", "http://127.0.0.1:9"] if tracked_on != "a database" else []
    for name, momentum in (("base", "0.9"), ("other", "0.5")):
        (folder / "settings.txt").write_text(momentum)
        ended = job(folder, "--name", name, *uri, "tracked.py")
        assert ended.returncode == 0, ended.stderr
    compared = run_here(folder, "compare", "base", "other", "--json")
    first, second = json.loads(compared.stdout)["runs"]
    logged = {name: each for name, each in second["settings"].items() if name.startswith("param.")}
    assert logged == {"param.momentum": "0.5"}
    assert first["settings"]["param.momentum"] == "0.9"
    assert "hf-" not in compared.stdout  # a token, which differs, too


def test_a_run_of_another_experiment_does_not_go_on_in_it(folder: Path):
    words = ["--name", "base", "--profile", "off"]
    assert job(folder, *words, "--experiment", "first", "tracked.py").returncode == 0
    for launcher in ([], ["--nproc-per-node", "2"]):
        refused = job(folder, *words, *launcher, "--experiment", "second", "tracked.py")
        assert refused.returncode == 2
        assert "run base is of experiment 'first'" in " ".join(refused.stderr.split())
    assert job(folder, *words, "tracked.py").returncode == 0
    attempts = RunFolder(folder / "runs" / "base").attempts()
    assert [each.number for each in attempts] == [1, 2]


def test_names_of_ranks_that_write_for_tensorboard_do_not_depend_on_which_is_first(folder: Path):
    shutil.copy(SCRIPT.with_name("tensorboard_ranks.py"), folder / "tracked.py")
    words = ["--name", "base", "--nproc-per-node", "2", "--profile", "off", "tracked.py"]
    for _ in range(2):  # attempts
        ended = job(folder, *words)
        assert ended.returncode == 0, ended.stderr
    client, tracked = run_of(folder, "base")
    assert history(client, tracked, "loss") == [(0, 0.0), (0, 0.0), (1, 0.0), (1, 0.0)]
    of_other = history(client, tracked, "rank1/loss")
    assert of_other == [(0, 1.0), (0, 1.0), (1, 1.0), (1, 1.0)]


@pytest.mark.parametrize(("library", "loss", "params"), [
    ("accelerate", "loss", {"momentum": "0.5"}),
    ("lightning", "loss", {"momentum": "0.5"}),
    ("trainer", "train/loss", {}),
])  # fmt: skip
def test_what_a_librarys_logger_writes_for_tensorboard_is_in_the_run_after_a_restart_too(
    folder: Path, library: str, loss: str, params: dict[str, str]
):
    shutil.copy(SCRIPT.with_name("library_loggers.py"), folder / "tracked.py")
    for _ in range(2):
        ended = job(folder, "--name", "base", "--profile", "off", "tracked.py", library)
        assert ended.returncode == 0, ended.stderr
    client, tracked = run_of(folder, "base")
    points = history(client, tracked, loss)
    assert len(points) == 2 * 16
    assert len({step for step, _ in points}) == 16
    assert tracked.data.params.items() >= params.items()


@pytest.mark.parametrize("by", ["autologging", "its logger"])
def test_what_lightning_trains_is_logged_to_the_run(folder: Path, by: str):
    shutil.copy(SCRIPT.with_name("autologged.py"), folder)
    words = ["--name", "base", "--profile", "off"]
    if by == "autologging":
        ended = job(folder, *words, "--environment", "HEADRACE_AUTOLOG=1", "autologged.py")
    else:
        ended = job(folder, *words, "autologged.py", "--logger")
    assert ended.returncode == 0, ended.stderr
    client, tracked = run_of(folder, "base", "autologged")
    assert tracked.info.status == "FINISHED"
    losses = history(client, tracked, "train_loss")
    if by == "autologging":
        assert tracked.data.params.items() >= {"epochs": "2", "lr": "0.05"}.items()
        assert len(losses) == 2  # one an epoch
    else:
        assert [step for step, _ in losses] == [3, 7, 11, 15]
    others = [each.experiment_id for each in client.search_experiments()]
    assert len(client.search_runs(others)) == 1


def test_autologging_goes_to_the_run_under_way_and_ends_with_it(folder: Path):
    shutil.copy(SCRIPT.with_name("autologged.py"), folder)
    ended = subprocess.run(
        [sys.executable, "autologged.py", "--runs"], cwd=folder, capture_output=True, text=True,
        env=clean_environment(HEADRACE_TRACKING_URI=""), check=False, timeout=200,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    client = MlflowClient(database_uri(folder / "runs"))
    found = {
        run.info.run_name: run
        for run in client.search_runs([e.experiment_id for e in client.search_experiments()])
    }
    assert set(found) == {"a", "b"}  # none of MLflow's own
    assert {run.info.status for run in found.values()} == {"FINISHED"}
    lengths = {name: len(history(client, run, "train_loss")) for name, run in found.items()}
    assert lengths == {"a": 4, "b": 2}  # two epochs of each training


def test_a_training_before_the_first_run_is_one_of_its_own(folder: Path):
    shutil.copy(SCRIPT.with_name("autologged.py"), folder)
    ended = subprocess.run(
        [sys.executable, "autologged.py", "--before"], cwd=folder, capture_output=True, text=True,
        env=clean_environment(HEADRACE_TRACKING_URI=""), check=False, timeout=200,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    client = MlflowClient(database_uri(folder / "runs"))
    found = client.search_runs([each.experiment_id for each in client.search_experiments()])
    names = sorted(run.info.run_name or "" for run in found)
    assert [name.partition("-")[0] for name in names] == ["autolog", "mine"]
    assert {run.info.status for run in found} == {"FINISHED"}
    assert [len(history(client, run, "train_loss")) for run in found] == [2, 2]


def test_series_go_on_with_the_next_attempt(folder: Path):
    words = ["--name", "base", "--metric", "loss=loss=([0-9]+)", "tracked.py"]
    assert job(folder, *words, "--fail").returncode == 3
    client, tracked = run_of(folder, "base")
    before = history(client, tracked, "phase_ms/all")
    assert job(folder, *words).returncode == 0
    tracked = client.get_run(tracked.info.run_id)
    values = [0.0, 10.0, 20.0, 30.0]
    assert history(client, tracked, "loss") == list(enumerate([*values, *values]))
    after = history(client, tracked, "phase_ms/all")
    assert after[: len(before)] == before
    assert after[len(before)][0] > before[-1][0]
    assert tracked.data.metrics["phase_ms/all"] == after[-1][1]
