"""`headrace tune` and `headrace compare` on real scripts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts" / "probed"
HEADRACE = [sys.executable, "-m", "headrace.cli.main"]


def said(folder: Path, *words: str, code: int = 0) -> str:
    """Run a verb in a folder; return what it printed."""
    ended = subprocess.run(
        [*HEADRACE, *words], capture_output=True, text=True, check=False, cwd=folder, timeout=240
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.alone
def test_a_remedy_is_tried_and_its_prediction_checked(tmp_path: Path):
    told = said(tmp_path, "tune", "--steps", "40", str(SCRIPTS / "waiting.py"))
    (tuning,) = (tmp_path / "runs").iterdir()
    runs = sorted(path.name for path in tuning.iterdir())
    assert "as-it-is" in runs
    assert any(name.startswith("1-num_workers") for name in runs), told
    first = next(path for path in tuning.iterdir() if path.name.startswith("1-"))
    checked = json.loads((first / "prediction.json").read_text())
    assert checked["low"] <= checked["predicted"] <= checked["high"]
    assert checked["predicted"] > 1.05
    assert checked["measured_low"] <= checked["measured"] <= checked["measured_high"]
    backtest = json.loads(said(tmp_path, "doctor", "--backtest", "--json"))
    assert backtest["checked"][0]["error"] == checked["predicted"] / checked["measured"] - 1
    assert "checked: error" in said(tmp_path, "doctor", "--backtest")
    # The script took no more steps than it was asked for.
    attempts = json.loads((first / "run.json").read_text())["attempts"]
    assert attempts[0]["exit_code"] == 0
    assert "predicted" in told
    assert "measured" in told
    assert (
        "no difference"
        in said(tmp_path, "compare", str(tuning / "as-it-is"), str(tuning / "as-it-is")).lower()
    )
    assert f"runs/{tuning.name}" in told
    # Its runs are found as others are: the latest, and by name.
    assert said(tmp_path, "doctor")
    between = said(tmp_path, "compare", f"{tuning.name}/as-it-is", f"{tuning.name}/{first.name}")
    assert "num_workers: 1 -> " in between


def test_a_script_that_fails_is_told(tmp_path: Path):
    (tmp_path / "broken.py").write_text("raise ValueError('out of luck')\n")
    told = said(tmp_path, "tune", "broken.py", code=1)
    assert "out of luck" in told
    assert "exit code 1" in told


def test_wrong_use_is_told(tmp_path: Path):
    assert "No prediction was checked" in said(tmp_path, "doctor", "--backtest", code=1)
    assert "needs a script" in said(tmp_path, "tune", code=2)
    assert "fewer than 10" in said(tmp_path, "tune", "--steps", "3", "x.py", code=2)
    assert "There is no run" in said(tmp_path, "compare", "a", "b", code=2)
