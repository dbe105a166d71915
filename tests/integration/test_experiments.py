"""Runs that scripts log to, read back by MLflow's own client: on SQLite and on its server."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from google.protobuf.timestamp_pb2 import Timestamp
from mlflow import MlflowClient
from mlflow.entities import Run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headrace import HeadraceError, experiments, vertex
from headrace.core.errors import RecordsError, UsageError
from headrace.decide.experiments import spool_sender as sender_module
from headrace.decide.experiments.metric_curves import read_run_curves
from headrace.decide.experiments.run_target import (
    SENT_FILE,
    RunTarget,
    database_uri,
    shown_uri,
    tracking_uri,
)
from headrace.decide.experiments.spool import SPOOL, Entry, SpoolWriter
from headrace.decide.experiments.spool_sender import SpoolInUseError, SpoolSender
from headrace.decide.experiments.sync import unsent_runs
from headrace.records.run_folder import open_run_folder
from jobs import clean_environment, eventually, headrace, run_here
from other_user import as_other_user, folder_of_all_users
from services.gateway import gateway
from services.mlflow_server import free_port, history, mlflow_server
from services.mlflow_server import run_of as run_in
from small_disks import mounted_disk

EXPERIMENT = "resnet"


@pytest.fixture
def runs(tmp_path: Path, new_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs folder with a database in it, that this process's runs go to."""
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copy(new_database, folder)
    monkeypatch.setenv("HEADRACE_RUNS_DIR", str(folder))
    monkeypatch.delenv("HEADRACE_TRACKING_URI", raising=False)
    experiments.init(experiment=EXPERIMENT)
    yield folder
    experiments.init()
    monkeypatch.undo()


def run_of(runs: Path, name: str) -> tuple[MlflowClient, Run]:
    return run_in(runs, name, EXPERIMENT)


def test_what_a_script_logs_is_what_mlflow_and_pandas_read(runs: Path, tmp_path: Path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("well")
    with experiments.start_run("base"):
        experiments.log_params({"lr": 0.1, "model": "resnet50", "amp": True})
        for step in range(300):
            loss = torch.tensor(1 / (step + 1), requires_grad=True)
            experiments.log_time_series_metrics({"loss": loss, "acc": np.float32(step)}, step=step)
        experiments.log_time_series_metrics({"loss": 7}, wall_time=1_700_000_000)  # step 300
        experiments.log_metrics({"best": Decimal(3)})  # type: ignore[dict-item]
        experiments.log_metrics({"best": 2})
        experiments.log_artifact(tmp_path / "notes", Path("about"))  # type: ignore[arg-type]
        experiments.log_model(torch.nn.Linear(2, 1))
        running = experiments.get_experiment_df()
        assert running["state"].tolist() == ["RUNNING"]
        assert running["time_series_metric.acc"].tolist() == [299]

    client, run = run_of(runs, "base")
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1", "model": "resnet50", "amp": "True"}
    expected = [(step, pytest.approx(1 / (step + 1))) for step in range(300)]
    assert history(client, run, "loss") == [*expected, (300, 7.0)]
    assert run.data.metrics["best"] == 2
    paths = [each.path for each in client.list_artifacts(run.info.run_id)]
    assert paths == ["about", "models"]
    model = Path(mlflow.artifacts.download_artifacts(
        run_id=run.info.run_id, artifact_path="models/model.pt", dst_path=str(tmp_path),
        tracking_uri=database_uri(runs),
    ))  # fmt: skip
    assert torch.load(model).keys() == {"weight", "bias"}

    frame = experiments.get_experiment_df()
    row = frame.iloc[0]
    assert (row["experiment_name"], row["run_name"], row["state"]) == (
        EXPERIMENT, "base", "FINISHED",
    )  # fmt: skip
    assert (row["param.lr"], row["metric.best"], row["time_series_metric.loss"]) == ("0.1", 2, 7)
    assert "time_series_metric.loss" not in experiments.get_experiment_df(include_time_series=False)
    base = experiments.ExperimentRun("base")
    assert (base.get_params()["model"], base.get_metrics()) == ("resnet50", {"best": 2})
    series = base.get_time_series_data_frame()
    assert series.columns.tolist() == ["step", "wall_time", "acc", "loss"]
    assert series["step"].tolist() == list(range(301))
    assert series["wall_time"].iloc[-1] == pd.Timestamp(1_700_000_000, unit="s", tz="UTC")
    assert math.isnan(series["acc"].iloc[-1])


def test_an_artifact_is_logged_as_it_was_when_it_was_logged(runs: Path, tmp_path: Path):
    picture = tmp_path / "confusion.png"
    with experiments.start_run("base"):
        for epoch in range(3):
            picture.write_text(f"of epoch {epoch}")
            experiments.log_artifact(picture, f"epoch-{epoch}")
            experiments.log_model({"epoch": epoch}, f"epoch-{epoch}/last")
        with TemporaryDirectory() as folder:
            (Path(folder) / "a.txt").write_text("a")
            (Path(folder) / "dangling").symlink_to("nowhere")
            experiments.log_artifact(folder, "temporary")
        experiments.log_artifact(runs / "base", "itself")
    client, run = run_of(runs, "base")
    found = Path(client.download_artifacts(run.info.run_id, "", str(tmp_path)))
    for epoch in range(3):
        assert (found / f"epoch-{epoch}" / picture.name).read_text() == f"of epoch {epoch}"
        assert torch.load(found / "models" / f"epoch-{epoch}" / "last.pt") == {"epoch": epoch}
    assert [each.name for each in (found / "temporary").iterdir()] == ["a.txt"]
    assert (found / "itself" / "experiment" / "target.json").exists()
    assert not list((runs / "base" / "experiment" / "artifacts").iterdir())


def test_a_folder_that_is_logged_keeps_its_name(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for fold in range(3):
        (tmp_path / f"fold{fold}" / "weights").mkdir(parents=True)
        (tmp_path / f"fold{fold}" / "weights" / "last.txt").write_text(f"of fold {fold}")
    monkeypatch.chdir(tmp_path / "fold2")
    with experiments.start_run("base"):
        experiments.log_artifact(tmp_path / "fold0")
        experiments.log_artifact(f"{tmp_path}/fold1/")
        experiments.log_artifact(".")
        experiments.log_artifact("weights")
    client, run = run_of(runs, "base")
    (tmp_path / "found").mkdir()
    found = Path(client.download_artifacts(run.info.run_id, "", str(tmp_path / "found")))
    files = {path.relative_to(found).as_posix(): path for path in found.rglob("*.txt")}
    assert {name: path.read_text() for name, path in files.items()} == {
        "fold0/weights/last.txt": "of fold 0", "fold1/weights/last.txt": "of fold 1",
        "fold2/weights/last.txt": "of fold 2", "weights/last.txt": "of fold 2",
    }  # fmt: skip


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_artifacts_are_beside_their_database_where_the_runs_folder_was_moved_or_copied(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    own = (tmp_path / "own-artifacts").as_uri()
    MlflowClient(database_uri(runs)).create_experiment("own", own)
    texts, place = {"first": "of the first", "second": "of the second"}, tmp_path / "elsewhere"
    for name, text in texts.items():
        (tmp_path / "a.txt").write_text(text)
        with experiments.start_run(name):
            experiments.log_artifact(tmp_path / "a.txt")
        if name == "first":
            before = {path: path.read_bytes() for path in (runs / "artifacts").rglob("a.txt")}
            shutil.copytree(runs, place) if how == "copied" else runs.rename(place)
            monkeypatch.setenv("HEADRACE_RUNS_DIR", str(place))
    for name, text in texts.items():
        client, run = run_of(place, name)
        assert (run.info.artifact_uri or "").startswith((place / "artifacts").as_uri())
        (tmp_path / name).mkdir()
        found = client.download_artifacts(run.info.run_id, "a.txt", str(tmp_path / name))
        assert Path(found).read_text() == text
    kept = {path: path.read_bytes() for path in (runs / "artifacts").rglob("a.txt")}
    assert kept == (before if how == "copied" else {})
    other = MlflowClient(database_uri(place)).get_experiment_by_name("own")
    assert other is not None
    assert other.artifact_location == own


def test_an_artifact_that_cannot_be_copied_is_logged_as_it_is_when_it_is_sent(
    runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    spool = runs / "base" / "experiment"
    (tmp_path / "a.txt").write_text("a")
    with experiments.start_run("base"):
        (spool / "artifacts").write_text("in the place of a folder")
        experiments.log_artifact(tmp_path / "a.txt")
        experiments.log_model({"weights": 1})
    client, run = run_of(runs, "base")
    assert [each.path for each in client.list_artifacts(run.info.run_id)] == ["a.txt"]
    said = capfd.readouterr().err
    assert "a.txt cannot be copied to" in said
    assert f"model model is not logged: {spool}" in said


def test_points_of_the_same_series_are_all_there_as_they_were_logged(runs: Path):
    """Most calls have names that were logged before, and nothing but floats."""
    with experiments.start_run("base"):
        point: dict[str, Any] = {}
        for step in range(100):
            point |= {"loss": 1 / (step + 1), "lr": 0.1 if step % 3 else torch.tensor(0.5)}
            experiments.log_time_series_metrics(point, step=step)
            point |= {"loss": -1.0, "lr": -1.0}  # a script may use its dict again
            experiments.log_time_series_metrics({"norm": math.inf if step == 7 else 2.0}, step)
    client, run = run_of(runs, "base")
    expected = [(step, pytest.approx(1 / (step + 1))) for step in range(100)]
    assert history(client, run, "loss") == expected
    assert history(client, run, "lr") == [(step, 0.1 if step % 3 else 0.5) for step in range(100)]
    assert len(history(client, run, "norm")) == 100
    frame = experiments.ExperimentRun("base").get_time_series_data_frame()
    assert frame["norm"].tolist() == [math.inf if step == 7 else 2.0 for step in range(100)]


def test_a_run_that_was_sent_is_none_to_send_for_who_may_only_read_it(
    new_database: Path, monkeypatch: pytest.MonkeyPatch
):
    with folder_of_all_users() as runs:
        shutil.copy(new_database, runs / "mlflow.db")
        monkeypatch.setenv("HEADRACE_RUNS_DIR", str(runs))
        experiments.init(experiment=EXPERIMENT)
        for name in ("sent", "cut"):
            with experiments.start_run(name) as run:
                run.log_metrics({"loss": 1.0})
        with next((runs / "cut" / SPOOL).glob("*.jsonl")).open("a") as spool:
            spool.write(json.dumps({"kind": "tags", "at_ms": 1, "values": {}}) + "\n")
        for path in (runs, *runs.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        (runs / "sent" / SPOOL / "target.json").chmod(0o400)  # as it is written
        found = as_other_user(lambda: str([run.name for run in unsent_runs(runs)]))
        for path in (runs, *runs.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert found == "['cut']"


def test_series_may_be_called_like_the_columns_of_a_point(runs: Path):
    with experiments.start_run("base") as run:
        for step in range(3):
            point = {"step": 10.0 * step, "wall_time": 0.5, "at_ms": 1.0, "loss": 2.0}
            run.log_time_series_metrics(point, step=step)
    frame = experiments.ExperimentRun("base").get_time_series_data_frame()
    assert frame["step"].tolist() == [0, 1, 2]
    assert frame["time_series_metric.step"].tolist() == [0.0, 10.0, 20.0]
    assert frame["time_series_metric.wall_time"].tolist() == [0.5] * 3
    assert (frame["at_ms"].tolist(), frame["loss"].tolist()) == ([1.0] * 3, [2.0] * 3)
    assert frame["wall_time"].dt.year.min() > 2000


def test_runs_that_recorded_no_steps_are_not_compared_and_that_is_said(runs: Path, tmp_path: Path):
    for name in ("first", "second"):
        with experiments.start_run(name):
            experiments.log_params({"lr": name})
    refused = run_here(tmp_path, "compare", "first", "second")
    assert refused.returncode == 2
    assert "first is a run of experiments.start_run" in " ".join(refused.stderr.split())


def test_each_experiment_has_its_own_run_of_a_name(runs: Path):
    for number, experiment in enumerate((EXPERIMENT, "a/b", "a b"), 1):
        experiments.init(experiment=experiment)
        if number < 3:
            with experiments.start_run("run-1"):
                experiments.log_params({"number": number})
            with experiments.start_run("run-1", resume=True):
                experiments.log_metrics({"resumed": number})
            found = experiments.ExperimentRun("run-1")
            assert found.get_params() == {"number": str(number)}
            assert found.get_metrics() == {"resumed": number}
    with pytest.raises(HeadraceError, match="There is a run 'run-1' already, in experiment 'a/b'"):
        experiments.start_run("run-1", resume=True)  # its folder would be the same
    experiments.init(experiment="c")
    with experiments.start_run("c.base"):
        experiments.log_params({"is": "c.base"})
    with experiments.start_run("base", resume=True):
        experiments.log_params({"is": "base"})
    assert experiments.ExperimentRun("c.base").get_params() == {"is": "c.base"}
    assert experiments.ExperimentRun("base").get_params() == {"is": "base"}
    assert {each.name for each in runs.iterdir() if each.is_dir()} >= {"run-1", "a_b.run-1"}


def test_a_run_goes_on_where_it_ended_and_a_name_counts_once(runs: Path):
    with experiments.start_run("base"):
        experiments.log_time_series_metrics({"loss": 1.0})
        with pytest.raises(HeadraceError, match="is under way: call end_run"):
            experiments.start_run("other")
    with pytest.raises(HeadraceError, match=r"There is a run 'base' already.*resume=True"):
        experiments.start_run("base")
    untracked = open_run_folder(run_dir=runs / "untracked", name=None, script="t.py")
    untracked.start_attempt(command=["headrace", "run", "t.py"], argv=["t.py"], world_size=1)
    with pytest.raises(HeadraceError, match="untracked is a run of `headrace run`"):
        experiments.start_run("untracked")
    with pytest.raises(RuntimeError), experiments.start_run("base", resume=True):  # noqa: PT012
        experiments.log_time_series_metrics({"loss": 0.5})
        raise RuntimeError
    client, run = run_of(runs, "base")
    assert history(client, run, "loss") == [(0, 1.0), (1, 0.5)]
    assert run.info.status == "FAILED"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": "k"}', '{"unknown": 1}'])
def test_a_run_whose_target_is_damaged_is_named(runs: Path, text: str):
    spool = runs / "base" / SPOOL
    spool.mkdir(parents=True)
    (spool / "target.json").write_text(text)
    for resume in (False, True):
        with pytest.raises(UsageError, match=r"'base'.*target\.json.*cannot be read.*another name"):
            experiments.start_run("base", resume)


def test_a_runs_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_RUNS_DIR", str(tmp_path / "file" / "runs"))
    with pytest.raises(UsageError, match=r"base.*cannot be.*HEADRACE_RUNS_DIR"):
        experiments.start_run("base")


AS_THE_SDKS_EXAMPLES = """
import sys
from headrace import vertex as aiplatform

aiplatform.init(experiment="resnet")
aiplatform.autolog()
aiplatform.start_run(run="first")
aiplatform.log_params({"a": 1})
aiplatform.start_run("second")
aiplatform.log_model({"weights": [1, 2]}, "plain")
aiplatform.end_run(state=aiplatform.gapic.Execution.State.FAILED)
assert "torch" not in sys.modules
"""


def test_a_run_that_was_started_can_be_logged_to_by_its_object(runs: Path):
    with experiments.start_run("first") as run:
        run.log_params({"lr": 0.1})
        run.log_metrics({"accuracy": 0.5})
        run.log_time_series_metrics({"loss": 2.0}, step=0)
        experiments.ExperimentRun("first").log_metrics({"accuracy": 0.9})  # the same run
    with experiments.start_run("second"), pytest.raises(UsageError, match="'first' is not under"):
        run.log_metrics({"accuracy": 0.1})
    with pytest.raises(UsageError, match="No run is under way"):
        run.log_metrics({"accuracy": 0.1})
    found = experiments.ExperimentRun("first")
    assert (found.get_params(), found.get_metrics()) == ({"lr": "0.1"}, {"accuracy": 0.9})
    assert found.get_time_series_data_frame()["loss"].tolist() == [2.0]


def test_a_run_of_that_name_in_another_experiment_is_not_the_one_under_way(runs: Path):
    client = MlflowClient(database_uri(runs))
    client.create_run(client.create_experiment("other"), run_name="first")
    with experiments.start_run("first"):
        experiments.ExperimentRun("first", experiment=EXPERIMENT).log_params({"lr": 0.1})
        with pytest.raises(UsageError, match="'first' of experiment 'other' is not under way"):
            experiments.ExperimentRun("first", experiment="other").log_params({"lr": 0.2})
    assert experiments.ExperimentRun("first").get_params() == {"lr": "0.1"}


def test_numbers_of_all_kinds_are_logged_and_others_refused_whatever_was_logged_before(runs: Path):
    kinds = {
        "float": 0.5, "int": 2, "bool": True, "large": 2**70, "numpy": np.float32(1.5),
        "tensor": torch.tensor(3.0), "decimal": Decimal("0.25"), "fraction": Fraction(1, 4),
    }  # fmt: skip
    with experiments.start_run("kinds"):
        for step in range(3):
            experiments.log_time_series_metrics(kinds, step=step)
            experiments.log_time_series_metrics({"plain": 1.5, "whole": step}, step=step)
        for wrong in ("text", None, [1.0], torch.zeros(2)):
            with pytest.raises(UsageError, match="'whole'"):
                experiments.log_time_series_metrics({"plain": 2.5, "whole": wrong}, step=3)
        experiments.log_time_series_metrics({}, step=4)
    series = experiments.ExperimentRun("kinds").get_time_series_data_frame()
    assert series["step"].tolist() == [0, 1, 2]
    for name, value in kinds.items():
        assert series[name].tolist() == [float(value)] * 3, name
    assert (series["plain"].tolist(), series["whole"].tolist()) == ([1.5] * 3, [0.0, 1.0, 2.0])


def test_calls_of_vertex_in_the_order_of_its_examples(runs: Path, tmp_path: Path):
    script = tmp_path / "example.py"
    script.write_text(AS_THE_SDKS_EXAMPLES)
    subprocess.run(
        [sys.executable, script], check=True, timeout=120,
        env=clean_environment(HEADRACE_TRACKING_URI="", HEADRACE_RUNS_DIR=str(runs)),
    )  # fmt: skip
    frame = experiments.get_experiment_df(EXPERIMENT)
    assert dict(zip(frame["run_name"], frame["state"], strict=True)) == {
        "first": "FINISHED", "second": "FAILED",
    }  # fmt: skip
    client, second = run_of(runs, "second")
    (model,) = client.list_artifacts(second.info.run_id, "models")
    assert model.path == "models/plain.pkl"
    read = vertex.ExperimentRun(
        run_name="first", experiment=vertex.Experiment(EXPERIMENT), project="p", location="l"
    )
    assert read.get_params() == {"a": "1"}
    with pytest.raises(HeadraceError, match=r"RUNNING is no end: give COMPLETE, FAILED"):
        vertex.end_run(vertex.gapic.Execution.State.RUNNING)


def test_a_run_of_vertex_has_the_arguments_of_its_sdk(runs: Path):
    vertex.init(experiment=EXPERIMENT)
    with vertex.start_run("by-object") as run:
        run.log_params({"lr": 0.1})
        run.log_model({"weights": 1}, artifact_id="net", display_name="Net")
        run.log_metrics({"accuracy": 0.9, "arch": "resnet18"})
        vertex.log_metrics({"arch": "resnet50"})
        (runs / "notes.txt").write_text("well")
        vertex.log_artifact(runs / "notes.txt")
    run = vertex.start_run("ended")
    run.end_run(state=vertex.gapic.Execution.State.FAILED)
    client, first = run_of(runs, "by-object")
    (model,) = client.list_artifacts(first.info.run_id, "models")
    assert model.path.startswith("models/net.")
    assert "notes.txt" in {each.path for each in client.list_artifacts(first.info.run_id)}
    read = vertex.ExperimentRun("by-object", EXPERIMENT)
    assert read.get_metrics() == {"accuracy": 0.9, "arch": "resnet50"}
    frame = vertex.get_experiment_df(EXPERIMENT).set_index("run_name")
    assert frame.loc["by-object", "metric.arch"] == "resnet50"
    with vertex.start_run("third"), pytest.raises(UsageError, match="Give a dict"):
        vertex.log_metrics([1])  # type: ignore[arg-type]
    assert run_of(runs, "ended")[1].info.status == "FAILED"


def test_a_name_of_a_tensorboard_keeps_its_project():
    name = "projects/p/locations/eu/tensorboards/1"
    assert vertex.Tensorboard(name).resource_name == name
    board = vertex.Tensorboard.create(display_name="a/b", project="p", location="eu")
    assert (board.display_name, board.resource_name) == ("a/b", f"{name[:-1]}a/b")


def test_runs_are_read_where_jobs_are_tracked(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_TRACKING_URI", "off")
    assert tracking_uri(runs) == database_uri(runs)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://one:5000")
    assert tracking_uri(runs) == "http://one:5000"
    monkeypatch.setenv("HEADRACE_TRACKING_URI", "http://two:5000")
    assert tracking_uri(runs) == "http://two:5000"
    assert tracking_uri(runs, "http://three:5000") == "http://three:5000"


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: experiments.log_metrics([1]), "Give a dict"),  # type: ignore[arg-type]
    (lambda: experiments.log_metrics({"big": 10**400}), "'big': 1000+.* is no number"),
    (lambda: experiments.log_metrics({"z": 1j}), "is no number"),
    (lambda: experiments.log_time_series_metrics({"a": 1}, step="x"), "step 'x'"),  # type: ignore[arg-type]
    (lambda: experiments.log_time_series_metrics({"a": 1}, step=2**64), "is too large"),
    (lambda: experiments.log_time_series_metrics({"a": 1.0}, step=-(2**64)), "is too large"),
    (lambda: experiments.log_time_series_metrics({"a": 1}, wall_time=math.inf), "wall_time inf"),
    (lambda: experiments.log_metrics({"loss": "low"}), "'loss': \"low\" is no number"),
    (lambda: experiments.log_metrics({"hf_token": "x"}), r"'hf_token': \"\*\*\*\" is no number"),
    (lambda: experiments.log_metrics({"loss": torch.zeros(2)}), "is no number"),
    (lambda: experiments.log_time_series_metrics({3: 1.0}), "3 names no param or metric"),  # type: ignore[dict-item]
    (lambda: experiments.log_metrics({"a": 0.5, "note": "text"}), '"text" is no number'),
    (
        lambda: experiments.log_time_series_metrics({"a": 0.5, "b": "text"}, 1),
        '"text" is no number',
    ),
    (lambda: experiments.log_time_series_metrics({"a": 0.5, 0.5: 1.0}, 1), "0.5 names no param"),  # type: ignore[dict-item]
    (lambda: experiments.log_params([("lr", 1)]), "Give a dict"),  # type: ignore[arg-type]
    (lambda: experiments.log_artifact("nowhere.txt"), "nowhere.txt does not exist"),
    (lambda: experiments.log_model(lambda: 1), "model cannot be saved"),
    (lambda: experiments.log_model({}, "../out"), "'../out' names no place below models/"),
    (lambda: experiments.log_model({}, "/out"), "'/out' names no place below models/"),
]


def test_what_cannot_be_logged_is_refused_where_it_is_called(runs: Path):
    for call in (lambda: experiments.log_metrics({"a": 1}), experiments.end_run):
        with pytest.raises(HeadraceError, match="No run is under way"):
            call()
    for name in ("", "a/b", "..", 3):
        with pytest.raises(HeadraceError, match="plain folder name"):
            experiments.start_run(name)  # type: ignore[arg-type]
    with experiments.start_run("base"):
        experiments.log_time_series_metrics({"a": 0.5}, 0)
        experiments.log_time_series_metrics({"a": 0.5, "b": 0.5}, 0)
        for call, message in WRONG:
            with pytest.raises(HeadraceError, match=message):
                call()
    with pytest.raises(HeadraceError, match=r"no run 'bas'.*Did you mean base"):
        experiments.ExperimentRun("bas")


@pytest.mark.parametrize("variable", ["HEADRACE_RUN_DIR", "HEADRACE_RECORDS_DIR"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_process_of_a_job_logs_to_its_run_or_says_that_it_cannot(
    runs: Path, monkeypatch: pytest.MonkeyPatch, variable: str, is_there: bool,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    """On another host there is no such folder: that must not fail a script."""
    if is_there:
        sender(runs).close()
    in_folder = "records/attempt-1" if "RECORDS" in variable else ""
    monkeypatch.setenv(variable, str(runs / "base" / in_folder))
    for value in (1.0, 2.0):
        experiments.log_time_series_metrics({"loss": value})
    experiments.end_run()
    assert capsys.readouterr().err.count("is dropped") == int(not is_there)
    files = list((runs / "base" / "experiment").glob("*.jsonl"))
    assert sum(file.read_text().count('"loss"') for file in files) == (2 if is_there else 0)


def sender(runs: Path, *entries: Entry, uri: str = "", name: str = "base") -> SpoolSender:
    """Return what sends a spool that holds entries."""
    spool = runs / name / "experiment"
    if RunTarget.read(spool) is None:
        RunTarget(
            key=f"key of {name}", tracking_uri=uri or database_uri(runs), experiment=EXPERIMENT,
            run_name=name, started_ms=1 + len(list(runs.glob("*/experiment"))), run_type="test",
        ).write(spool)  # fmt: skip
    add_entries(spool, *entries)
    return SpoolSender(spool)


def add_entries(spool: Path, *entries: Entry) -> None:
    writer = SpoolWriter(spool)
    for entry in entries:
        writer.add(entry)
    writer.close()


def metrics(step: int | None, **values: float) -> Entry:
    return {"kind": "metrics", "at_ms": 1000 + (step or 0), "values": values, "step": step}


def params(**values: str) -> Entry:
    return {"kind": "params", "at_ms": 1000, "values": values}


def test_what_mlflow_would_refuse_is_said_and_the_rest_arrives(
    runs: Path, capsys: pytest.CaptureFixture[str]
):
    names = {"acc@1": 1.0, "acc#1": 2.0, "a//b": 3.0, "../up": 4.0, "x" * 300: 5.0}
    odd: Entry = {"kind": "metrics", "at_ms": 5, "values": names, "step": 0}
    sending = sender(
        runs, params(lr="0.1", text="x" * 10_000, hf_token="first one"),
        params(lr="0.2", file="a\udcff", hf_token="second one"),
        metrics(0, loss=math.nan), metrics(1, loss=math.nan), metrics(2, loss=math.inf), odd,
        metrics(2**63, far=1.0), metrics(3, loss=1.0),
        {"kind": "summary", "at_ms": 9, "values": {"best": math.nan}},
        {"kind": "tags", "at_ms": 1, "values": {"groups": "g" * 20_000}},
    )  # fmt: skip
    sending.send()
    assert sending.is_complete
    said = capsys.readouterr().err
    assert said.count("metric loss is NaN at step 0") == 1
    assert said.count("metric best is NaN") == 1
    assert said.count("metric loss is infinite at step 2") == 1
    assert said.count("NaN") == 2
    assert "param lr stays '0.1'" in said
    assert "param hf_token stays '***'" in said
    assert " one" not in said
    assert "param text has 10000 characters" in said
    assert "series 'acc@1' is called 'acc_1' in MLflow" in said
    client, run = run_of(runs, "base")
    assert run.data.params["lr"] == "0.1"
    assert run.data.params["file"] == "a?"
    assert len(run.data.params["text"]) == 6000
    assert [each.path for each in client.list_artifacts(run.info.run_id, "params")] == [
        "params/text.txt"
    ]
    assert [step for step, _ in history(client, run, "loss")] == [0, 1, 2, 3]
    found = {
        name: run.data.metrics[name] for name in ("acc_1", "acc_1_2", "a/b", "_/up", "x" * 250)
    }
    assert list(found.values()) == [1, 2, 3, 4, 5]
    assert len(run.data.tags["groups"]) == 5000


def test_a_series_and_a_number_of_one_name_are_two_metrics(runs: Path):
    best: Entry = {"kind": "summary", "at_ms": 9, "values": {"loss": 99.0, "best": 1.0}}
    sending = sender(runs, *(metrics(n, loss=n) for n in range(5)), best, metrics(7, best=0.5))
    sending.send()
    client, run = run_of(runs, "base")
    assert history(client, run, "loss") == [(step, step) for step in range(5)]
    read = experiments.ExperimentRun("base")
    assert read.get_metrics() == {"loss": 99.0, "best": 1.0}
    frame = experiments.get_experiment_df()
    assert frame["time_series_metric.loss"].tolist() == [4.0]
    assert frame["metric.loss"].tolist() == [99.0]
    assert frame["time_series_metric.best"].tolist() == [0.5]
    assert [name for name in frame if "/" in name] == []
    assert read.get_time_series_data_frame()["best"].dropna().tolist() == [0.5]


def test_in_tensorboard_a_number_is_no_point_of_the_series_of_its_name(runs: Path):
    with experiments.start_run("base"):
        experiments.log_metrics({"best": 1.0})
        for step in range(1, 4):
            experiments.log_time_series_metrics({"accuracy": step / 10, "best": 0.5}, step=step)
        experiments.log_metrics({"accuracy": 0.95})
    shown = EventAccumulator(str(runs / "base" / "tensorboard"))
    shown.Reload()
    points = {tag: [each.step for each in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}
    assert points == {
        "best": [0], "series/best": [1, 2, 3], "accuracy": [1, 2, 3], "summary/accuracy": [0],
    }  # fmt: skip


def test_a_points_time_may_be_what_vertex_and_python_have(runs: Path):
    at_s = 1_700_000_000.25
    stamp = Timestamp()
    stamp.FromMilliseconds(round(at_s * 1000))
    with experiments.start_run("base"):
        for step, wall_time in enumerate((at_s, datetime.fromtimestamp(at_s, tz=UTC), stamp)):
            experiments.log_time_series_metrics({"loss": 1.0}, step=step, wall_time=wall_time)
    frame = experiments.ExperimentRun("base").get_time_series_data_frame()
    assert {moment.timestamp() for moment in frame["wall_time"]} == {at_s}
    assert vertex.Experiment.get_or_create(EXPERIMENT).get_data_frame()["run_name"][0] == "base"


def test_many_numbers_of_a_run_leave_the_list_of_runs_readable(runs: Path):
    values = {f"class/{number:04}/accuracy": number / 500 for number in range(500)}
    sender(runs, {"kind": "summary", "at_ms": 9, "values": values}).send()
    assert experiments.ExperimentRun("base").get_metrics() == values
    assert experiments.get_experiment_df(include_time_series=False).shape == (1, 504)


@pytest.mark.parametrize("of", ["the run's folder", "the runs folder"])
def test_a_copy_of_a_run_that_goes_on_is_not_sent_while_its_original_is_there(
    runs: Path, tmp_path: Path, of: str
):
    sending = sender(runs, metrics(0, loss=1.0))
    sending.send()
    if of == "the runs folder":
        copies = Path(shutil.copytree(runs, tmp_path / "copies"))
    else:
        copies = runs
        shutil.copytree(runs / "base", runs / "branch")
    add_entries(copies / ("base" if copies != runs else "branch") / SPOOL, metrics(1, loss=2.0))
    assert unsent_runs(copies) == []
    synced = run_here(tmp_path, "runs", "sync", "--runs-dir", str(copies))
    assert synced.stdout == "MLflow has all runs already.\n"
    client, run = run_of(runs, "base")
    assert run.info.status == "RUNNING"
    assert history(client, run, "loss") == [(0, 1.0)]


@pytest.mark.parametrize(("is_copy", "ended_s", "status"), [
    (True, None, "RUNNING"), (True, 5.0, "KILLED"), (False, None, "KILLED"),
])  # fmt: skip
def test_a_run_that_may_go_on_where_its_folder_was_copied_from_is_sent_and_not_called_killed(
    runs: Path, tmp_path: Path, is_copy: bool, ended_s: float | None, status: str
):
    sender(runs, metrics(0, loss=1.0)).close()
    inode = (runs / "base").stat().st_ino
    launcher = {"host": "another machine", "pid": 1, "folder": inode + 1 if is_copy else inode}
    attempt = {
        "number": 1, "command": ["headrace"], "argv": ["t.py"], "world_size": 1, "started_s": 1.0,
        "ended_s": ended_s, "launcher": launcher,
    }  # fmt: skip
    written = {"version": 1, "name": "base", "attempts": [attempt]}
    (runs / "base" / "run.json").write_text(json.dumps(written))
    assert run_here(tmp_path, "runs", "sync").stdout == "base: sent\n"
    client, run = run_of(runs, "base")
    assert run.info.status == status
    assert history(client, run, "loss") == [(0, 1.0)]
    assert unsent_runs(runs) == []


def test_a_run_that_is_resumed_in_a_copy_of_the_runs_folder_is_another_one(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with experiments.start_run("base"):
        experiments.log_time_series_metrics({"loss": 1.0}, step=0)
    copies = Path(shutil.copytree(runs, tmp_path / "copies"))
    monkeypatch.setenv("HEADRACE_RUNS_DIR", str(copies))
    with experiments.start_run("base", resume=True):
        experiments.log_time_series_metrics({"loss": 2.0}, step=1)
    for folder, points in ((runs, [(0, 1.0)]), (copies, [(0, 1.0), (1, 2.0)])):
        client, run = run_of(folder, "base")
        assert history(client, run, "loss") == points


class LostAnswer(sender_module.TrackingStore):
    """A store whose answers to some requests are lost: before it did anything, or after."""

    lost: list[str]

    def log(self, run_id: str, batch: Any) -> None:
        when = self.lost.pop(0) if self.lost else "never"
        if when != "before":
            super().log(run_id, batch)
        if when != "never":
            raise sender_module.StoreUnavailableError("the answer is lost")


@pytest.mark.parametrize("lost", [["before"], ["after"], ["after", "before", "after"]])
def test_what_is_sent_again_is_not_there_twice(
    runs: Path, lost: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sender_module, "TrackingStore", LostAnswer)
    monkeypatch.setattr(LostAnswer, "lost", list(lost), raising=False)
    best: Entry = {"kind": "summary", "at_ms": 9, "values": {"best": 1.0}}
    sending = sender(runs, *(metrics(None, loss=n) for n in range(5)), best)
    for _ in lost:
        with pytest.raises(HeadraceError, match="the answer is lost"):
            sending.send()
    sending.send()
    client, run = run_of(runs, "base")
    assert history(client, run, "loss") == [(step, step) for step in range(5)]
    assert len(history(client, run, "best")) == 1
    assert experiments.ExperimentRun("base").get_metrics() == {"best": 1.0}


@pytest.mark.parametrize("lost", ["nothing", "the note of it", "a part of the note of it"])
def test_what_a_killed_sender_had_sent_is_not_there_twice(runs: Path, lost: str):
    first = sender(runs, *(metrics(step, loss=step) for step in range(50)))
    first.send()
    first.close()
    sent = runs / "base" / "experiment" / "sent.json"
    if lost == "the note of it":
        sent.unlink()
    elif lost != "nothing":
        sent.write_text(sent.read_text()[:40])
    sender(runs, *(metrics(step, loss=step) for step in range(50, 60))).send()
    client, run = run_of(runs, "base")  # one run alone
    assert history(client, run, "loss") == [(step, step) for step in range(60)]


def test_a_run_that_was_deleted_in_mlflow_is_begun_anew_with_all_of_it(runs: Path):
    first = sender(runs, metrics(0, loss=0.0))
    first.send()
    client, run = run_of(runs, "base")
    client.delete_run(run.info.run_id)
    first.close()
    second = sender(runs, metrics(1, loss=1.0))
    second.send()
    client, run = run_of(runs, "base")
    client.delete_run(run.info.run_id)  # while it is sent
    third = SpoolWriter(runs / "base" / "experiment")
    third.add(metrics(2, loss=2.0))
    third.close()
    with pytest.raises(HeadraceError, match="was deleted"):
        second.send()
    second.send()
    client, run = run_of(runs, "base")
    assert history(client, run, "loss") == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_an_artifact_store_that_cannot_be_used_holds_up_nothing_else(runs: Path, tmp_path: Path):
    (tmp_path / "a.txt").write_text("a")
    client = MlflowClient(database_uri(runs))
    client.create_experiment(EXPERIMENT, "mlflow-artifacts://127.0.0.1:9/nowhere")
    sending = sender(
        runs, {"kind": "artifact", "at_ms": 1, "path": str(tmp_path / "a.txt"), "folder": ""},
        metrics(0, loss=1.0), {"kind": "status", "at_ms": 2, "status": "FINISHED"},
    )  # fmt: skip
    with pytest.raises(HeadraceError, match=r"artifact .*a.txt"):
        sending.send()
    client, run = run_of(runs, "base")
    assert run.info.status == "FINISHED"
    assert history(client, run, "loss") == [(0, 1.0)]
    assert not sending.is_complete


def test_a_damaged_line_is_left_out_and_other_runs_are_sent(runs: Path, tmp_path: Path):
    sender(runs, metrics(0, loss=0.0), metrics(1, loss=1.0)).close()
    (file,) = (runs / "base" / "experiment").glob("*.jsonl")
    file.write_bytes(b"\0\0\0\n" + file.read_bytes())
    sender(runs, metrics(0, loss=0.0), name="other").close()
    (runs / "broken" / "experiment").mkdir(parents=True)
    (runs / "broken" / "experiment" / "target.json").write_text("{")
    synced = run_here(tmp_path, "runs", "sync").stdout.splitlines()
    assert [synced[0], synced[2]] == ["base: sent", "other: sent"]
    assert synced[1].startswith("broken: its spool cannot be read")
    client, run = run_of(runs, "base")
    assert history(client, run, "loss") == [(0, 0.0), (1, 1.0)]
    assert run.info.status == "KILLED"  # nobody was left to say so


def test_a_locked_or_refusing_database_is_waited_for(runs: Path, monkeypatch: pytest.MonkeyPatch):
    # MLflow tries again for most of a minute, and warns of each try.
    monkeypatch.setattr("mlflow.store.db.utils._logger.warning", pytest.fail)
    database = sqlite3.connect(runs / "mlflow.db", isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    waiting = sender(runs, metrics(0, loss=1.0))
    with pytest.raises(HeadraceError, match="database is locked"):
        waiting.send()
    database.execute("ROLLBACK")
    database.execute(
        "CREATE TRIGGER full BEFORE INSERT ON metrics BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    with pytest.raises(HeadraceError, match="full"):
        waiting.send()
    database.execute("DROP TRIGGER full")
    waiting.send()
    client, run = run_of(runs, "base")
    assert history(client, run, "loss") == [(0, 1.0)]
    with pytest.raises(SpoolInUseError):
        SpoolSender(runs / "base" / "experiment", lock_s=0.0)


@pytest.mark.parametrize("what", ["all runs", "a run", "the curves of several runs"])
def test_who_reads_a_locked_database_waits_for_a_few_seconds_in_all(
    runs: Path, what: str, monkeypatch: pytest.MonkeyPatch
):
    for name in ("base", "next"):
        sending = sender(runs, metrics(0, loss=1.0), metrics(1, loss=0.5), name=name)
        sending.send()
        sending.close()
    connect, patience_s = sqlite3.connect, list[float]()

    def at_once(*place: Any, timeout: float = 5.0, **more: Any) -> sqlite3.Connection:
        """Connect as it is asked for, but for the time for which a lock is waited for."""
        patience_s.append(timeout)
        return connect(*place, timeout=0.0, **more)

    unreachable: dict[str, HeadraceError] = {}
    reads: dict[str, list[Callable[[], object]]] = {
        "all runs": [experiments.get_experiment_df],
        "a run": [lambda: experiments.ExperimentRun("base")],
        "the curves of several runs": [
            lambda: read_run_curves(runs / "base", unreachable=unreachable),
            lambda: read_run_curves(runs / "next", unreachable=unreachable),
        ],
    }
    with closing(connect(runs / "mlflow.db", isolation_level=None)) as other_program:
        other_program.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(sqlite3, "connect", at_once)
        for read in reads[what]:
            with pytest.raises(HeadraceError, match="database is locked"):
                read()
    assert 0 < sum(patience_s) <= 5


def test_who_reads_runs_where_there_are_none_makes_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    listed = run_here(tmp_path, "runs", "ls", "--runs-dir", "mistyped")
    assert (listed.returncode, listed.stdout) == (0, "There are no runs.\n")
    shown = run_here(tmp_path, "runs", "show", "base")
    assert (shown.returncode, "There is no run 'base'" in shown.stderr) == (2, True)
    synced = run_here(tmp_path, "runs", "sync", "--runs-dir", "mistyped")
    assert (synced.returncode, synced.stdout) == (0, "No run in mistyped is tracked.\n")
    monkeypatch.setenv("HEADRACE_RUNS_DIR", str(tmp_path / "none"))
    assert experiments.get_experiment_df().empty
    assert list(tmp_path.iterdir()) == []


def test_a_database_on_a_full_or_read_only_disk_is_waited_for_and_can_be_read(
    runs: Path, tmp_path: Path, new_database: Path
):
    def synced() -> str:  # by a process of its own: a file that is open keeps a disk writable
        return subprocess.run(
            headrace("runs", "sync"), cwd=tmp_path, env=clean_environment(),
            capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip

    spool = runs / "base" / SPOOL
    with mounted_disk(tmp_path / "disk", "16m") as disk:
        uri = f"sqlite:///{shutil.copy(new_database, disk)}"
        sender(runs, metrics(0, loss=1.0), uri=uri).close()
        assert synced() == "base: sent\n"
        add_entries(spool, metrics(1, loss=2.0))
        with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(4096))
        assert re.search("is full|[Nn]o space|I/O error", synced())
        (disk / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert re.search("[Rr]ead-?only", synced())
        experiments.init(experiment=EXPERIMENT, tracking_uri=uri)
        frame = experiments.get_experiment_df()
        assert frame["time_series_metric.loss"].tolist() == [1.0]
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        assert synced() == "base: sent\n"
        frame = experiments.get_experiment_df()
        assert frame["time_series_metric.loss"].tolist() == [2.0]


@pytest.mark.parametrize("uri", [
    "http://user:p@ss@h:5000/a", "http://user:pa/ss@h:5000/a", "postgresql://h:5000/a?password=pass",
])  # fmt: skip
def test_no_password_of_a_tracking_uri_is_shown(uri: str):
    assert shown_uri(uri).endswith("://h:5000/a")


LOGGER = """
import os, sys, time
from sys import exit as leave
from headrace import experiments
experiments.init(experiment="resnet")
started = experiments.start_run(sys.argv[1])
for step in range(200):
    experiments.log_time_series_metrics({"loss": step}, step=step)
if sys.argv[2] == "wait":
    print("logged", flush=True)
    sys.stdin.read()
if sys.argv[2] == "fail":
    raise ValueError
if sys.argv[2] == "exit":
    sys.exit("it cannot go on")
if sys.argv[2] == "exit with 0":
    sys.exit(0)
if sys.argv[2] == "go on":
    try:
        sys.exit(3)
    except SystemExit:
        experiments.log_params({"lr": 1})
if sys.argv[2] == "end":
    experiments.end_run()
if sys.argv[2] == "in another way":
    exec(sys.argv[3])
"""


def logging_process(runs: Path, name: str, *then: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LOGGER, name, *then],
        env=clean_environment(HEADRACE_RUNS_DIR=str(runs)),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_killed_script_has_lost_at_most_its_last_second_and_its_run_was_killed(runs: Path):
    process = logging_process(runs, "base", "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "logged\n"
    spool = runs / "base" / "experiment"
    logged = lambda: any('"step": 199}' in file.read_text() for file in spool.glob("*.jsonl"))  # noqa: E731
    eventually(logged, "what was logged is on disk")
    process.kill()
    process.communicate()

    def killed() -> bool:
        found = MlflowClient(database_uri(runs)).get_experiment_by_name(EXPERIMENT)
        return found is not None and run_of(runs, "base")[1].info.status == "KILLED"

    eventually(killed, "MLflow knows that the run was killed")
    client, run = run_of(runs, "base")
    assert history(client, run, "loss") == [(step, step) for step in range(200)]


def test_two_scripts_at_once_make_one_database_and_one_experiment(tmp_path: Path):
    runs = tmp_path / "runs"
    processes = [logging_process(runs, name, "end") for name in ("a", "b")]
    for process in processes:
        _, errors = process.communicate(timeout=180)
        assert process.returncode == 0, errors
        assert errors == ""
    for name in ("a", "b"):
        client, run = run_of(runs, name)
        assert run.info.status == "FINISHED"
        assert history(client, run, "loss") == [(step, step) for step in range(200)]


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("stop", "FINISHED"), ("fail", "FAILED"), ("exit", "FAILED"), ("exit with 0", "FINISHED"),
        ("go on", "FINISHED"),
    ],
)  # fmt: skip
def test_a_script_that_only_ends_has_logged_all(runs: Path, then: str, status: str):
    process = logging_process(runs, "base", then)
    process.communicate(timeout=180)
    client, run = run_of(runs, "base")
    assert run.info.status == status
    assert len(history(client, run, "loss")) == 200


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("raise SystemExit(1)", "FAILED"),
        ("raise SystemExit('it cannot go on')", "FAILED"),
        ("raise SystemExit(0)", "FINISHED"),
        ("raise SystemExit", "FINISHED"),
        ("leave(3)", "FAILED"),
        ("exit(2)", "FAILED"),
        ("sys.exit(['a list'])", "FAILED"),
        ("sys.excepthook = lambda *error: None; raise ValueError", "FAILED"),
        ("sys.exit = leave; leave(3)", "FAILED"),
        ("with started: sys.exit(0)", "FINISHED"),
        ("with started: raise SystemExit('it cannot go on')", "FAILED"),
    ],
)
def test_a_run_has_failed_where_its_script_has_another_exit_code_than_0(
    runs: Path, end: str, status: str
):
    process = logging_process(runs, "base", "in another way", end)
    process.communicate(timeout=180)  # also of the process that sends
    assert (process.returncode == 0) == (status == "FINISHED")
    client, run = run_of(runs, "base")
    assert run.info.status == status
    assert len(history(client, run, "loss")) == 200


def test_an_exit_that_is_caught_is_no_failure(runs: Path):
    caught = """
for code in (3, ["a list"]):
    try:
        sys.exit(code)
    except SystemExit:
        pass
"""
    process = logging_process(runs, "base", "in another way", caught)
    process.communicate(timeout=180)
    assert process.returncode == 0
    assert run_of(runs, "base")[1].info.status == "FINISHED"


def test_the_end_of_a_block_ends_its_own_run_alone(runs: Path):
    with experiments.start_run("base"):
        experiments.end_run()
        experiments.start_run("next")
    experiments.log_params({"lr": 1})
    experiments.end_run()
    assert run_of(runs, "next")[1].data.params == {"lr": "1"}


def test_a_server_that_is_down_gets_all_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runs, port = tmp_path / "runs", free_port()
    uri = f"http://127.0.0.1:{port}"
    waiting = sender(runs, params(lr="0.1"), *(metrics(n, loss=n) for n in range(20)), uri=uri)
    with pytest.raises(HeadraceError, match="Connection refused"):
        waiting.send()
    waiting.close()
    down = run_here(tmp_path, "runs", "sync", "--runs-dir", str(runs))
    assert (down.returncode, "cannot be used now" in down.stdout) == (1, True)
    with mlflow_server(tmp_path, port):
        sent = run_here(tmp_path, "runs", "sync", "--runs-dir", str(runs))
        assert (sent.returncode, sent.stdout) == (0, "base: sent\n")
        again = run_here(tmp_path, "runs", "sync", "--runs-dir", str(runs))
        assert again.stdout == "MLflow has all runs already.\n"
        listed = run_here(tmp_path, "runs", "ls", "--tracking-uri", uri)
        assert "base" in listed.stdout
        client = MlflowClient(uri)
        found = client.get_experiment_by_name(EXPERIMENT)
        assert found is not None
        (run,) = client.search_runs([found.experiment_id])
        assert run.data.params == {"lr": "0.1"}
        assert history(client, run, "loss") == [(step, step) for step in range(20)]


def test_a_server_that_refuses_to_write_or_keeps_waiting_costs_the_script_nothing(
    runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    with mlflow_server(tmp_path, free_port()) as server, gateway(server) as between:
        experiments.init(experiment=EXPERIMENT, tracking_uri=between.uri)
        between.status = 500
        with experiments.start_run("refused"):
            for step in range(50):
                experiments.log_time_series_metrics({"loss": step}, step=step)
            assert between.was_asked.wait(180)
        said = capfd.readouterr().err
        assert said.count("not tracked now, but kept until it can be") == 1
        assert "MLflow does not have all of the run yet" in said
        between.status = 0
        synced = run_here(tmp_path, "runs", "sync", "--runs-dir", str(runs))
        assert synced.stdout == "refused: sent\n"

        between.is_open.clear()
        between.was_asked.clear()
        answered = between.answered
        with experiments.start_run("slow"):
            assert between.was_asked.wait(180)
            for step in range(50):
                experiments.log_time_series_metrics({"loss": step}, step=step)
            assert between.answered == answered
            between.is_open.set()
        client = MlflowClient(server)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        assert experiment is not None
        found = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
        for name in ("refused", "slow"):
            assert found[name].info.status == "FINISHED"
            assert history(client, found[name], "loss") == [(step, step) for step in range(50)]


def test_runs_are_listed_shown_and_exported(runs: Path, tmp_path: Path):
    for name in ("a", "b"):
        sending = sender(
            runs, params(lr=name), metrics(0, loss=1.5),
            {"kind": "summary", "at_ms": 9, "values": {"step_ms": 12.5, "data_wait_share": 0.25}},
            {"kind": "status", "at_ms": 61_001, "status": "FINISHED"},
            name=name,
        )  # fmt: skip
        sending.send()
        sending.close()
    listed = run_here(tmp_path, "runs", "ls").stdout
    assert [line.split()[0] for line in listed.splitlines()] == ["run", "b", "a"]
    assert "25%" in listed
    shown = run_here(tmp_path, "runs", "show", "a").stdout
    assert "resnet / a: finished" in shown
    assert "1 min 01 s" in shown
    files = ["--csv", "a.csv", "--parquet", "a.parquet"]
    assert run_here(tmp_path, "runs", "export", *files).returncode == 0
    for frame in (pd.read_csv(tmp_path / "a.csv"), pd.read_parquet(tmp_path / "a.parquet")):
        assert frame["run_name"].tolist() == ["b", "a"]
        assert frame["data_wait_share"].tolist() == [0.25, 0.25]
        assert frame["time_series_metric.loss"].tolist() == [1.5, 1.5]
    assert run_here(tmp_path, "runs", "export").returncode == 2
    assert run_here(tmp_path, "runs", "show", "c").returncode == 2


def test_metrics_that_are_texts_are_shown(runs: Path, tmp_path: Path):
    texts = {"headrace.text_metric.best epoch": "the third [of 5]"}
    sender(
        runs, {"kind": "tags", "at_ms": 9, "values": texts},
        {"kind": "summary", "at_ms": 9, "values": {"accuracy": 0.5}},
    ).send()  # fmt: skip
    shown = run_here(tmp_path, "runs", "show", "base").stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "best epoch the third [of 5]" in lines
    assert "accuracy 0.5" in lines


def test_numbers_that_json_has_none_for_are_null(runs: Path, tmp_path: Path):
    values = {"bad": math.nan, "good": 1.0}
    sender(runs, {"kind": "summary", "at_ms": 9, "values": values}).send()
    shown = run_here(tmp_path, "runs", "show", "base", "--json").stdout
    assert json.loads(shown, parse_constant=pytest.fail)["metrics"] == {"bad": None, "good": 1.0}


class Busy(BaseHTTPRequestHandler):
    """A tracking server that is overloaded; it counts the requests."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_error(503)

    do_POST = do_GET  # noqa: N815 - as above

    def log_message(self, *_: object) -> None:
        pass


def test_a_busy_server_is_asked_once_more_and_the_settings_of_mlflow_stay(
    runs: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    Busy.asked = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        experiments.init(experiment=EXPERIMENT, tracking_uri=uri)
        with pytest.raises(HeadraceError, match="cannot be used now"):
            experiments.get_experiment_df()
        server.shutdown()
    assert Busy.asked == 2
    assert dict(os.environ) == before


def test_of_several_runs_a_server_that_is_down_is_asked_for_the_first_alone(tmp_path: Path):
    unreachable: dict[str, HeadraceError] = {}
    Busy.asked, asked = 0, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for name in ("first", "second"):
            target = RunTarget(
                key=name, tracking_uri=f"http://127.0.0.1:{server.server_port}", experiment="e",
                run_name=name, started_ms=0, run_type="headrace.run",
            )  # fmt: skip
            target.write(tmp_path / name / "experiment")
            (tmp_path / name / "experiment" / SENT_FILE).write_text(json.dumps({"run_id": "1"}))
            with pytest.raises(RecordsError, match=f"metrics of {name} cannot be read of http"):
                read_run_curves(tmp_path / name, unreachable=unreachable)
            asked.append(Busy.asked)
        server.shutdown()
    assert asked == [asked[0], asked[0]]
    assert asked[0] > 0


def test_signals_do_not_reach_the_sender(runs: Path):
    """Ctrl-C ends the script, and what it had logged arrives."""
    process = logging_process(runs, "base", "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "logged\n"
    os.kill(process.pid, signal.SIGINT)
    process.communicate()
    eventually((runs / "base" / "experiment" / "sent.json").exists, "the run is begun")

    def complete() -> bool:
        client, run = run_of(runs, "base")
        return run.info.status != "RUNNING" and len(history(client, run, "loss")) == 200

    eventually(complete, "all is sent")
