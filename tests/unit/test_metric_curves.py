"""Curves of runs: what a chart gets of MLflow's time series."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

from headrace.core.errors import RecordsError, UsageError
from headrace.decide.experiments import metric_curves
from headrace.decide.experiments.metric_curves import MOST_POINTS, read_run_curves
from headrace.decide.experiments.run_target import SENT_FILE, RunTarget, database_uri
from headrace.observe.doctor.diagnosis import diagnose
from headrace.report.formatting import format_number
from headrace.report.page import SECTIONS, PageData
from pages import Page
from run_tables import RunTables

Points = list[tuple[float, int, int]]  # value, time, step


@pytest.fixture
def client(tmp_path: Path, new_database: Path) -> MlflowClient:
    shutil.copy(new_database, tmp_path / "mlflow.db")
    return MlflowClient(database_uri(tmp_path))


def tracked(folder: Path, client: MlflowClient, series: dict[str, Points], uri: str = "") -> Path:
    """Return the folder of a run whose series MLflow has."""
    run_id = client.create_run("0").info.run_id
    for name, points in series.items():
        metrics = [Metric(name, *point) for point in points]
        for at in range(0, len(metrics), 1000):
            client.log_batch(run_id, metrics=metrics[at : at + 1000])
    run = folder / "run"
    target = RunTarget(
        key="k", tracking_uri=uri or database_uri(folder), experiment="Default", run_name="run",
        started_ms=0, run_type="headrace.run",
    )  # fmt: skip
    target.write(run / "experiment")
    (run / "experiment" / SENT_FILE).write_text(json.dumps({"run_id": run_id}))
    return run


def test_a_long_series_is_thinned_evenly_and_keeps_its_ends(tmp_path: Path, client: MlflowClient):
    points = [(math.sin(step / 100), step, 7 * step) for step in range(5000)]
    found = read_run_curves(tracked(tmp_path, client, {"loss": points}))
    curve = found.curves["loss"]
    known = {step: value for value, _, step in points}
    assert (curve.steps[0], curve.steps[-1]) == (0, 7 * 4999)
    assert len(curve.steps) == MOST_POINTS
    assert list(curve.steps) == sorted(set(curve.steps))
    gaps = [after - before for before, after in zip(curve.steps, curve.steps[1:], strict=False)]
    assert max(gaps) - min(gaps) <= 14
    assert curve.values == tuple(known[step] for step in curve.steps)
    assert found.last["loss"] == points[-1][0]


def test_of_a_step_the_last_point_counts_and_nan_stays(tmp_path: Path, client: MlflowClient):
    points = [(0.5, 10, 0), (0.75, 20, 0), (math.nan, 30, 1), (math.inf, 40, 2), (-math.inf, 50, 3)]
    series = {"loss": points, "once": [(4.0, 10, 5)], "odd name/x.y": points[:1] + points[-1:]}
    found = read_run_curves(tracked(tmp_path, client, series))
    assert set(found.curves) == {"loss", "odd name/x.y"}
    assert found.curves["loss"].steps == (0, 1, 2, 3)
    values = found.curves["loss"].values
    assert values[0] == 0.75
    assert math.isnan(values[1])
    assert values[2:] == (math.inf, -math.inf)  # in whose place MLflow has the largest numbers
    assert found.last["loss"] == -math.inf
    assert format_number(found.last["loss"]) == "-inf"
    assert found.last["once"] == 4.0


def test_a_run_whose_runs_folder_was_moved_is_read_of_the_database_that_moved_along(
    tmp_path: Path, new_database: Path
):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    shutil.copy(new_database, old / "mlflow.db")
    run = tracked(old, MlflowClient(database_uri(old)), {"loss": [(1.0, 0, 0), (0.5, 1, 1)]})
    elsewhere = tracked(
        tmp_path / "elsewhere", MlflowClient(database_uri(old)), {"loss": [(2.0, 0, 0)]},
        database_uri(old),
    )  # fmt: skip
    old.rename(new)
    assert read_run_curves(new / run.name).last == {"loss": 0.5}
    target = RunTarget.read(new / run.name / "experiment")
    assert target is not None
    assert target.tracking_uri == database_uri(new)
    with pytest.raises(RecordsError, match="cannot be read of sqlite:///"):  # it is not beside it
        read_run_curves(elsewhere)


def test_steps_that_are_times_are_read(tmp_path: Path, client: MlflowClient):
    points = [(1.0, 0, 0), (2.0, 1, 1_795_000_000_123_456_789)]
    curve = read_run_curves(tracked(tmp_path, client, {"loss": points})).curves["loss"]
    assert curve.steps == (0, 1_795_000_000_123_456_789)


def test_options_of_the_databases_uri_are_no_part_of_its_name(tmp_path: Path, client: MlflowClient):
    uri = f"{database_uri(tmp_path)}?timeout=30"
    found = read_run_curves(tracked(tmp_path, client, {"loss": [(1.0, 0, 0), (2.0, 1, 1)]}, uri))
    assert found.curves["loss"].values == (1.0, 2.0)
    with pytest.raises(UsageError, match="MLflow's database cannot be in"):
        database_uri(tmp_path / "what?")


def test_steps_far_apart_are_all_kept(tmp_path: Path, client: MlflowClient):
    points = [(float(step), step + 20, step**3) for step in range(-20, 30)]
    curve = read_run_curves(tracked(tmp_path, client, {"loss": points})).curves["loss"]
    assert set(curve.steps) <= {step**3 for step in range(-20, 30)}
    assert (curve.steps[0], curve.steps[-1]) == (-8000, 29**3)
    assert len(curve.steps) > 40


SHORT = {
    "doubled": [2**power for power in range(21)],
    "cubes": [number**3 for number in range(-20, 30)],
    "far apart": [*range(150), *range(10**6, 10**6 + 150)],
    "times": [0, 1, 2, 1_795_000_000_123_456_789],
    "several values a step": [number**2 for number in range(200) for _ in range(8)],
}


@pytest.mark.parametrize("steps", SHORT.values(), ids=SHORT)
@pytest.mark.parametrize("store", ["the database", "the client"])
def test_a_short_series_is_whole_however_uneven_its_steps_are(
    tmp_path: Path, client: MlflowClient, monkeypatch: pytest.MonkeyPatch, steps: list[int],
    store: str,
):  # fmt: skip
    points = [(number / 3, number, step) for number, step in enumerate(steps)]
    run = tracked(tmp_path, client, {"loss": points})
    if store == "the client":
        monkeypatch.setattr(metric_curves, "database_file", lambda _: None)
    curve = read_run_curves(run).curves["loss"]
    last = {step: value for value, _, step in points}
    assert (curve.steps, curve.values) == (tuple(last), tuple(last.values()))


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(("count", "times"), [(2, 1), (299, 1), (301, 1), (2000, 1), (350, 4)])
def test_the_client_gives_what_the_database_does(
    tmp_path: Path, client: MlflowClient, monkeypatch: pytest.MonkeyPatch, count: int, power: int,
    times: int,
):  # fmt: skip
    steps = [number**power for number in range(count) for _ in range(times)]
    points = [(number / 3, number, step) for number, step in enumerate(steps)]
    run = tracked(tmp_path, client, {"loss": points})
    direct = read_run_curves(run)
    monkeypatch.setattr(metric_curves, "database_file", lambda _: None)
    assert read_run_curves(run) == direct


def metrics_of_page(run: Path) -> tuple[list[str], str]:
    """Return the names of the curves on a run's page, in their order, and the section's text."""
    tables = RunTables()
    data = PageData(
        name="run", path=run, attempt=1, attempts=(), outcome="succeeded", outcomes=(),
        tables=tables,
        diagnosis=diagnose(tables), cost=None, read_s=0.0,
    )  # fmt: skip
    sections = [found for make in SECTIONS if (found := make(data)) is not None]
    (body,) = (each.body for each in sections if each.id == "metrics")
    return re.findall("<h3>(.*?)</h3>", body), Page(body).text


def word(number: int) -> str:
    """Return a name without digits."""
    return "abcdefgh"[number // 8] + "abcdefgh"[number % 8]


@pytest.mark.parametrize(
    "of_class",
    [
        lambda number: f"class_{number:02}/iou",
        lambda number: f"iou/{word(number)}",
        lambda number: f"{word(number)}_iou",
        lambda number: f"a{number}",
        lambda number: f"layers.{number}.{word(number % 3)}.norm",
        lambda number: f"val/{word(number)}/iou",
    ],
)
def test_metrics_of_the_whole_come_before_those_of_each_class_and_those_left_out_are_counted(
    tmp_path: Path, client: MlflowClient, of_class: Callable[[int], str]
):
    whole = ["lr", "train/loss", "val/loss"]
    points: Points = [(1.0, 0, 0), (0.5, 1, 1)]
    classes = [of_class(number) for number in range(30)]
    uri = database_uri(tmp_path)
    many = tracked(tmp_path / "many", client, dict.fromkeys([*classes, *whole], points), uri)
    names, text = metrics_of_page(many)
    assert (names[:3], len(set(names))) == (whole, 24)
    assert "9 more metrics are in MLflow." in text
    few = tracked(tmp_path / "few", client, dict.fromkeys([*classes[:21], *whole], points), uri)
    names, text = metrics_of_page(few)
    assert (names[:3], set(names[3:])) == (whole, set(classes[:21]))
    assert "more" not in text


def test_a_run_that_is_not_tracked_or_not_sent_has_none(tmp_path: Path):
    (tmp_path / "run").mkdir()
    assert read_run_curves(tmp_path / "run").last == {}
    target = RunTarget(
        key="k", tracking_uri=database_uri(tmp_path), experiment="e", run_name="run", started_ms=0,
        run_type="headrace.run",
    )  # fmt: skip
    target.write(tmp_path / "run" / "experiment")
    assert read_run_curves(tmp_path / "run").curves == {}


def test_a_database_that_is_gone_or_damaged_is_said(tmp_path: Path, client: MlflowClient):
    run = tracked(tmp_path, client, {"loss": [(1.0, 0, 0), (2.0, 1, 1)]})
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 100)
    with pytest.raises(
        RecordsError, match=r"metrics of run cannot be read of sqlite.*not a database"
    ):
        read_run_curves(run)
    (tmp_path / "mlflow.db").unlink()
    with pytest.raises(RecordsError, match="unable to open"):
        read_run_curves(run)
    assert not (tmp_path / "mlflow.db").exists()
    target = json.loads((run / "experiment" / "target.json").read_text())
    assert target["run_name"] == "run"
    (run / "experiment" / "target.json").write_text("{")
    with pytest.raises(RecordsError, match="Where run is tracked"):
        read_run_curves(run)
