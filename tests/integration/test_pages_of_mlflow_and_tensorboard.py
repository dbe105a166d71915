"""The pages of MLflow's and TensorBoard's own servers, in a browser, show what a job has logged."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from headrace.decide.experiments.run_target import DATABASE_FILE
from jobs import clean_environment, eventually, run
from machine import needs
from services.mlflow_server import free_port, mlflow_server, run_of

pytestmark = needs("chromium")

SCRIPT = Path(__file__).parents[1] / "scripts" / "tracked.py"
WAIT_MS, START_S = 120_000, 300.0


@pytest.fixture
def page() -> Iterator[Page]:
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(WAIT_MS)
        yield page
        browser.close()


@pytest.fixture
def runs(tmp_path: Path, new_database: Path) -> Path:
    """The runs folder of a job that has logged params and metrics."""
    (tmp_path / "runs").mkdir()
    shutil.copy(new_database, tmp_path / "runs")
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "settings.txt").write_text("0.9")
    ended = run(tmp_path, "--name", "base", "tracked.py", "--lr", "0.1", HEADRACE_TRACKING_URI="")
    assert ended.returncode == 0, ended.stderr
    return tmp_path / "runs"


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """Run TensorBoard for the block; yield its address."""
    port = free_port()
    words = ["--logdir", str(folder), "--port", str(port), "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", *words, "--load_fast", "false"],
        env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        eventually(lambda: has_runs(f"http://127.0.0.1:{port}"), "TensorBoard", START_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def has_runs(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/data/runs", timeout=5) as answer:  # noqa: S310
            return bool(answer.read() != b"[]")
    except OSError:
        return False


def test_mlflows_page_shows_the_run_with_its_params_and_metrics(
    runs: Path, tmp_path: Path, page: Page
):
    _, tracked = run_of(runs, "base", "tracked")
    with mlflow_server(tmp_path, free_port(), runs / DATABASE_FILE) as uri:
        place = f"{uri}/#/experiments/{tracked.info.experiment_id}/runs"
        page.goto(place)
        expect(page.get_by_role("link", name="base").first).to_be_visible()
        page.goto(f"{place}/{tracked.info.run_id}")
        for text in ("seen.rank0", "job.step_ms", "momentum", "0.9"):
            expect(page.get_by_text(text, exact=True).first).to_be_visible()


def test_tensorboards_page_shows_its_scalars_and_hyperparameters(runs: Path, page: Page):
    with tensorboard(runs / "base" / "tensorboard") as uri:
        page.goto(f"{uri}/#timeseries")
        for text in ("seen.rank0", "phase_ms"):
            expect(page.get_by_text(text).first).to_be_visible()
        page.goto(f"{uri}/#hparams")
        for text in ("momentum", "argument.lr"):
            expect(page.get_by_text(text).first).to_be_visible()
