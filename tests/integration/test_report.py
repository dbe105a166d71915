"""Pages about real runs."""

from __future__ import annotations

import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.report import report
from headrace.core.errors import UsageError
from headrace.records.schema import PHASES
from headrace.report.open_run import open_run
from headrace.report.page import write_report
from jobs import run_here
from pages import Page, check_alone
from recorded import SCRIPTS

BROWSER = shutil.which("chromium")
HOSTILE = "</script><script>alert(1)</script>"
SCRIPT = f"""
import torch
from points import Descent
from torch.utils.data import DataLoader, Dataset


class Blur:
    def __call__(self, image):
        for _ in range(30):
            image = image.roll(1, 0) * 0.5 + image * 0.5
        return image


Blur.__name__ = Blur.__qualname__ = {HOSTILE!r}


class Images(Dataset):
    def __init__(self):
        self.transforms = [Blur()]

    def __len__(self):
        return 320

    def __getitem__(self, index):
        image = torch.rand(48, 48)
        for transform in self.transforms:
            image = transform(image)
        return image


torch.set_num_threads(1)
model = torch.nn.Linear(48, 1)
optimizer = Descent(model.parameters())
for images in DataLoader(Images(), batch_size=4, num_workers=1):
    model(images).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "train <b>.py").write_text(SCRIPT)
    words = ("run", "--name", "base", "train <b>.py", HOSTILE, "--api-key", "hunter2")
    ended = run_here(folder, *words, PYTHONPATH=str(SCRIPTS))
    assert ended.returncode == 0, ended.stderr
    return folder / "runs" / "base"


def test_a_run_becomes_one_page_that_stands_alone(recorded: Path):
    path = write_report(recorded)
    assert path == recorded / "report.html"
    html = path.read_text(encoding="utf-8")
    page = Page(html)
    check_alone(page)
    assert {"phases", "timeline", "heatmap", "waits", "flame-workers"} <= page.charts.keys()
    assert HOSTILE in page.text
    assert "train <b>.py" in page.text
    assert "hunter2" not in html
    assert "80 training steps" in page.text
    assert list(recorded.glob("*.tmp")) == []


@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")
def test_a_browser_draws_every_chart_and_refuses_nothing(recorded: Path, tmp_path: Path):
    path = write_report(recorded, output=tmp_path / "page.html")
    assert BROWSER is not None
    shown = subprocess.run(
        [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000",
            "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    charts = Page(path.read_text(encoding="utf-8")).charts.keys()
    drawn = re.findall(r'<div class="chart[^>]*id="chart-([\w-]+)"[^>]*><(?!/div)', shown.stdout)
    assert set(drawn) == charts
    assert "CONSOLE" not in shown.stderr


def test_a_run_without_steps_says_so(tmp_path: Path):
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    assert run_here(tmp_path, "run", "--name", "none", "train.py").returncode == 3
    page = Page(write_report(tmp_path / "runs" / "none").read_text(encoding="utf-8"))
    check_alone(page)
    assert "No training step was recorded" in page.text
    assert "exit code 3" in page.text
    assert "timeline" not in page.charts


def test_the_verb_writes_the_page_at_the_given_path(recorded: Path, tmp_path: Path):
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command()(report)
    output = tmp_path / "new" / "page.html"
    arguments = ["report", "base", "--runs-dir", str(recorded.parent), "--output", str(output)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.output.strip() == str(output)
    assert "base" in Page(output.read_text(encoding="utf-8")).text


def test_a_place_that_cannot_be_written_is_reported(recorded: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--output"):
        write_report(recorded, output=tmp_path / "file" / "page.html")


def test_charts_for_notebooks(recorded: Path):
    opened = open_run(recorded)
    assert (opened.steps.kind == "train").sum() == 80  # the tables are still there
    of_steps = opened.phases.query("kind == 'train'").groupby("phase").size().to_dict()
    assert of_steps == dict.fromkeys(PHASES, 80)
    assert pickle.loads(pickle.dumps(opened.phases)).equals(pd.DataFrame(opened.phases))
    assert opened.arrow("steps").num_rows == len(opened.steps)
    for figure in (opened.heatmap(), opened.timeline(), opened.phases(),
                   opened.data_waits(), opened.flame()):  # fmt: skip
        assert len(figure.data) > 0
        assert figure.to_json()


def test_making_a_page_imports_no_torch_and_no_loader():
    code = (
        "import sys, headrace.report.page, headrace.report.open_run;"
        "print(*({'torch', 'ray', 'obstore'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
