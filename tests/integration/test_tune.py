"""`headrace tune` and `headrace compare` on real scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.jobs import tune
from jobs import run_here

pytestmark = pytest.mark.timeout(1000)  # a verb alone may take more than the usual limit

SCRIPTS = Path(__file__).parents[1] / "scripts" / "probed"


def printed(folder: Path, *words: str, code: int = 0, **extra: str) -> str:
    """Run a verb in a folder; return what it printed."""
    ended = run_here(folder, *words, **extra)
    assert ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.alone
def test_a_remedy_is_tried_and_its_prediction_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tune, "_MOST_TRIALS", 1)  # another one would show nothing more
    output = printed(tmp_path, "tune", "--steps", "40", str(SCRIPTS / "waiting.py"))
    (tuning,) = (tmp_path / "runs").iterdir()
    runs = sorted(path.name for path in tuning.iterdir())
    assert "as-it-is" in runs
    assert any(name.startswith("1-num_workers") for name in runs), output
    first = next(path for path in tuning.iterdir() if path.name.startswith("1-"))
    checked = json.loads((first / "prediction.json").read_text())
    assert checked["low"] <= checked["predicted"] <= checked["high"]
    assert checked["predicted"] > 1.05
    assert checked["measured_low"] <= checked["measured"] <= checked["measured_high"]
    backtest = json.loads(printed(tmp_path, "doctor", "--backtest", "--json"))
    assert backtest["checked"][0]["error"] == checked["predicted"] / checked["measured"] - 1
    assert "checked: error" in printed(tmp_path, "doctor", "--backtest")
    # The script took no more steps than it was asked for.
    attempts = json.loads((first / "run.json").read_text())["attempts"]
    assert attempts[0]["exit_code"] == 0
    assert "predicted" in output
    assert "measured" in output
    assert (
        "no difference"
        in printed(tmp_path, "compare", str(tuning / "as-it-is"), str(tuning / "as-it-is")).lower()
    )
    assert f"runs/{tuning.name}" in output
    # Its runs are found as others are: the latest, and by name.
    assert printed(tmp_path, "doctor")
    between = printed(tmp_path, "compare", f"{tuning.name}/as-it-is", f"{tuning.name}/{first.name}")
    assert "num_workers: 1 -> " in between
    assert "--apply: - -> num_workers" in between
    check_several(tmp_path, [f"{tuning.name}/{name}" for name in ("as-it-is", first.name)])


def check_several(folder: Path, names: list[str]) -> None:
    """Compare three runs, of which the third is the first."""
    three = [*names, names[0]]
    text = printed(folder, "compare", *three)
    assert f"{Path(names[1]).name} is the fastest" in " ".join(text.split())
    assert "num_workers 1" in text
    runs = json.loads(printed(folder, "compare", "--json", *three))["runs"]
    pair = json.loads(printed(folder, "compare", "--json", *names))
    assert [run["differs"] for run in runs] == [False, True, False]
    assert [runs[1][name] for name in ("speedup", "low", "high")] == [
        pair[name] for name in ("speedup", "low", "high")
    ]
    for run in runs:
        assert sum(run["phases_ms"].values()) == pytest.approx(run["step_ms"])
    assert runs[0]["settings"] == runs[2]["settings"] != runs[1]["settings"]


FRAIL = """
import time
import torch
from points import Descent
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Frail(Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, index):
        if get_worker_info().num_workers > 1:
            raise RuntimeError("too many of us")
        end = time.thread_time() + 0.002  # so much that what samples the stack is little beside it
        while time.thread_time() < end:
            pass
        time.sleep(0.04)  # most of it, so that more workers help on a busy machine, too
        return torch.ones(4)


net = torch.nn.Linear(4, 1)
optimizer = Descent(net.parameters())
for x in DataLoader(Frail(), batch_size=4, num_workers=1):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.alone
def test_a_remedy_that_the_script_fails_with_is_left_out(tmp_path: Path):
    (tmp_path / "frail.py").write_text(FRAIL)
    flags = ("--steps", "20", "--apply", "rank_threads=1")
    output = printed(tmp_path, "tune", *flags, "frail.py", PYTHONPATH=str(SCRIPTS))
    assert "the script failed with it" in output
    assert "too many of us" in output
    assert "Nothing that needs no code change makes it faster." in output
    (tuning,) = (tmp_path / "runs").iterdir()
    for folder in tuning.iterdir():  # what was given is in each of its runs
        command = json.loads((folder / "run.json").read_text())["attempts"][0]["command"]
        assert any("rank_threads=1" in word for word in command)
        assert not (folder / "prediction.json").exists()


def test_a_script_that_fails_is_reported(tmp_path: Path):
    (tmp_path / "broken.py").write_text("raise ValueError('out of luck')\n")
    output = printed(tmp_path, "tune", "broken.py", code=1)
    assert "out of luck" in output
    assert "exit code 1" in output


def test_wrong_use_is_reported(tmp_path: Path):
    assert "No prediction was checked" in printed(tmp_path, "doctor", "--backtest", code=1)
    assert "needs a script" in printed(tmp_path, "tune", code=2)
    (tmp_path / "x.py").touch()
    assert "names its runs itself" in printed(tmp_path, "tune", "--name", "x", "x.py", code=2)
    (tmp_path / "x.yaml").write_text("entry_point: x.py\ncheckpoint_s3_uri: kept\n")
    for words in (
        ("--checkpoint-uri", "kept", "x.py"),
        ("--contract", "vertex", "--output-path=out", "x.py"),
        ("--nproc-per-node", "1", "--checkpoint-uri", "kept", "x.py"),
        ("x.yaml",),
    ):
        assert "go on from each other's checkpoints" in " ".join(
            printed(tmp_path, "tune", *words, code=2).split()
        )
    applied = ("--nproc-per-node", "1", "--apply", "rank_threads=1")
    assert "write it first" in printed(tmp_path, "tune", *applied, "x.py", code=2)
    assert "fewer than 10" in printed(tmp_path, "tune", "--steps", "3", "x.py", code=2)
    assert "There is no run" in printed(tmp_path, "compare", "a", "b", code=2)
    assert "name the run to compare it with" in printed(tmp_path, "compare", "a", code=2)
