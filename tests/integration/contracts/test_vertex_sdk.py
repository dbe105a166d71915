"""`headrace.vertex` in place of Vertex AI's SDK: notebooks that launch jobs and track them."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from headrace import vertex as aiplatform
from headrace.core.errors import UsageError

TASK = """
import argparse, json, os
from headrace import vertex as aiplatform
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--lr", type=float)
parser.add_argument("--fails", action="store_true")
args = parser.parse_args()
if args.fails:
    raise ValueError("the script's own")
cloud = {name: os.environ.get(name) for name in ("CLOUD_ML_PROJECT_ID", "CLOUD_ML_REGION", "LEVEL")}
run = os.environ.get("AIP_EXPERIMENT_RUN_NAME", "run")
with aiplatform.start_run(run):
    aiplatform.log_params({"optimizer": "sgd"})
    for epoch in range(args.epochs):
        aiplatform.log_time_series_metrics({"loss": 1 / (epoch + 1)}, step=epoch)
    aiplatform.log_metrics({"accuracy": 0.9})
model = os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/")
os.makedirs(model, exist_ok=True)
with open(os.path.join(model, "model.json"), "w") as file:
    json.dump({**cloud, "lr": args.lr, "package": __package__}, file)
"""


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a notebook's cells run, with their script in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_TRACKING_URI", raising=False)
    (tmp_path / "task.py").write_text(TASK)
    return tmp_path


def test_a_script_is_launched_and_tracked(
    notebook: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    board = aiplatform.Tensorboard.create(display_name="board", project="my-project")
    aiplatform.init(
        project="my-project", location="us-central1", staging_bucket="gs://my-bucket",
        experiment="resnet", experiment_tensorboard=board,
    )  # fmt: skip
    assert board.gca_resource.name == (
        "projects/my-project/locations/us-central1/tensorboards/board"
    )
    job = aiplatform.CustomJob.from_local_script(
        display_name="resnet first", script_path="task.py", container_uri="pytorch-gpu.2-4",
        args=["--epochs", 3, "--lr=0.1"], requirements=["numpy>=1.20"],
        environment_variables={"LEVEL": "7"}, replica_count=1, machine_type="n1-standard-4",
        accelerator_type="NVIDIA_TESLA_T4", accelerator_count=1, labels={"team": "a"},
    )  # fmt: skip
    job.run(experiment_run="run-1")
    assert job.state == aiplatform.gapic.JobState.JOB_STATE_SUCCEEDED
    waits_for = ("QUEUED", "PENDING", "RUNNING", "CANCELLING", "PAUSED")
    assert job.state not in [aiplatform.gapic.JobState[f"JOB_STATE_{name}"] for name in waits_for]
    assert job.resource_name == "projects/my-project/locations/us-central1/customJobs/run-1"
    assert aiplatform.CustomJob.get(job.resource_name).state == job.state
    assert job.start_time is not None
    assert job.end_time is not None
    assert job.start_time < job.end_time
    output = notebook / "runs" / "run-1" / "output" / "model" / "model.json"
    assert output.read_text() == (
        '{"CLOUD_ML_PROJECT_ID": "my-project", "CLOUD_ML_REGION": "us-central1", "LEVEL": "7", '
        '"lr": 0.1, "package": null}'
    )
    assert "ignored: container_uri, labels" in capfd.readouterr().err
    frame = aiplatform.get_experiment_df("resnet")
    row = frame.iloc[0]
    assert (row["run_name"], row["state"]) == ("run-1", "FINISHED")
    assert (row["param.optimizer"], row["param.lr"], row["metric.accuracy"]) == ("sgd", "0.1", 0.9)
    series = aiplatform.ExperimentRun("run-1", "resnet").get_time_series_data_frame()
    assert series["loss"].tolist() == [1, 1 / 2, 1 / 3]
    assert len(aiplatform.Experiment("resnet").get_data_frame()) == 1
    job.delete()  # as notebooks end
    aiplatform.Experiment("resnet").delete(delete_backing_tensorboard_runs=True)
    said = " ".join(capfd.readouterr().err.split())
    assert "delete: run-1 stays, with its outputs" in said
    assert "delete: resnet stays, with its runs" in said
    assert output.exists()
    assert len(aiplatform.get_experiment_df("resnet")) == 1


def test_a_package_is_launched_without_waiting(notebook: Path) -> None:
    with tarfile.open(notebook / "trainer-0.1.tar.gz", "w:gz") as archive:
        (notebook / "__init__.py").touch()
        archive.add(notebook / "task.py", "trainer-0.1/trainer/task.py")
        archive.add(notebook / "__init__.py", "trainer-0.1/trainer/__init__.py")
    job = aiplatform.CustomPythonPackageTrainingJob(
        display_name="from a package", python_package_gcs_uri="trainer-0.1.tar.gz",
        python_module_name="trainer.task", container_uri="pytorch-cpu.2-4",
    )  # fmt: skip
    assert job.state == aiplatform.gapic.PipelineState.PIPELINE_STATE_PENDING
    job.run(args=["--epochs=1"], replica_count=2, machine_type="n1-standard-4", sync=False)
    job.wait()
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED"
    assert job.name.startswith("from-a-package-")
    model = (notebook / "runs" / job.name / "output" / "model" / "model.json").read_text()
    assert '"package": "trainer"' in model
    with pytest.raises(UsageError, match="has run: make another"):
        job.run()


def test_a_failed_job_raises_what_the_sdk_does(notebook: Path) -> None:
    job = aiplatform.CustomTrainingJob("fails", script_path="task.py", container_uri="x")
    with pytest.raises(RuntimeError, match="the script's own"):
        job.run(args=["--fails"])
    assert job.has_failed
    assert "the script's own" in str(job.error)
    assert job.state.name == "PIPELINE_STATE_FAILED"


def test_bad_arguments_are_refused_before_anything_starts(notebook: Path) -> None:
    job = aiplatform.CustomTrainingJob
    with pytest.raises(UsageError, match="Did you mean requirements"):
        job("a", "task.py", "x", requirement=["numpy"])
    with pytest.raises(UsageError, match="datasets of the cloud"):
        job("a", "task.py", "x").run(object())
    with pytest.raises(UsageError, match=r"args: .* is not a list of texts and numbers"):
        job("a", "task.py", "x").run(args="--epochs 3")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no instance type"):
        job("a", "task.py", "x").run(machine_type="n1-standard-5")
    with pytest.raises(UsageError, match=r"^There is no script absent\.py"):
        job("a", "absent.py", "x").run()
    with pytest.raises(UsageError, match="There is no run"):
        aiplatform.CustomJob.get("projects/p/locations/l/customJobs/none")
    runs = notebook / "runs"
    assert not runs.exists() or not [each for each in runs.iterdir() if each.is_dir()]
