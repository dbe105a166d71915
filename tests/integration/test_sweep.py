"""`headrace sweep`: runs of real jobs, their failures and kills, and the page about them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from headrace.core.errors import UsageError
from jobs import clean_environment, eventually, headrace, run_here
from pages import Page, check_alone

SCRIPT = Path(__file__).parents[1] / "scripts" / "swept.py"
SWEEP = """
entry_point = "swept.py"

[sweep]
name = "tried"
[sweep.grid]
hyperparameters.kind = ["plain", "odd"]
hyperparameters.delay-ms = [0, 2]
"""
LISTED = """
entry_point = "swept.py"

[sweep]
name = "tried"
runs = [
    { name = "plain-delay-ms0", hyperparameters = { kind = "plain", delay-ms = 0 } },
    { name = "plain-delay-ms2", hyperparameters = { kind = "plain", delay-ms = 2 } },
    { name = "odd-delay-ms0", hyperparameters = { kind = "odd", delay-ms = 0 } },
]
"""
RUNS = ["tried-plain-delay-ms0", "tried-plain-delay-ms2", "tried-odd-delay-ms0"]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, new_database: Path) -> Path:
    (tmp_path / "runs").mkdir()
    shutil.copy(new_database, tmp_path / "runs")
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path


def sweep(folder: Path, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(**{"HEADRACE_TRACKING_URI": "", "COLUMNS": "80", **extra})
    return subprocess.run(
        headrace("sweep", *words, "sweep.toml"), cwd=folder, capture_output=True, text=True,
        env=environment, check=False, timeout=180,
    )  # fmt: skip


def attempts(folder: Path, run: str) -> list[int | None]:
    """Return the exit codes of a run's attempts."""
    found = json.loads((folder / "runs" / run / "run.json").read_text())["attempts"]
    return [each["exit_code"] for each in found]


def test_a_sweep_goes_on_after_failures_and_compares_its_runs(folder: Path):
    (folder / "sweep.toml").write_text(LISTED)
    listed = sweep(folder, "--dry-run")
    assert listed.returncode == 0, listed.stderr
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["run", "hyperparameters.kind", "hyperparameters.delay-ms"],
        *([run, run.split("-")[1], run[-1]] for run in RUNS),
    ]
    assert not list((folder / "runs").glob("tried*"))
    (folder / "fail").touch()
    failed = sweep(folder)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    for run in RUNS:
        assert attempts(folder, run) == [1 if "odd" in run else 0]
        if "odd" in run:
            assert f"{run} failed" in failed.stderr
            assert f"{run} has not ended well, and is not compared." in " ".join(
                failed.stdout.split()
            )
    assert "this kind is not there yet" in failed.stderr
    assert "tried-plain-delay-ms2" in failed.stdout  # those two are compared
    (folder / "fail").unlink()
    ended = sweep(folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 runs, of which 2 ended well before" in ended.stderr
    for run in RUNS:
        assert attempts(folder, run) == ([1, 0] if "odd" in run else [0])
    assert max(map(len, ended.stdout.splitlines()[:-1])) <= 80
    check_page(folder, Path(ended.stdout.split()[-1]))
    listed = run_here(folder, "runs", "ls", "--json", "--experiment", "tried")
    tracked = json.loads(listed.stdout)["runs"]
    assert {run["state"] for run in tracked} == {"FINISHED"}
    assert {run["name"]: run["params"]["delay-ms"] for run in tracked} == {
        run: run[-1] for run in RUNS
    }
    check_equal_names(folder)
    check_changes(folder)


def check_equal_names(folder: Path) -> None:
    """Runs of one name in two folders, and a run compared with itself, stay apart on the page."""
    (folder / "other").mkdir()
    shutil.copytree(folder / "runs" / RUNS[1], folder / "other" / RUNS[0], symlinks=True)
    places = [f"runs/{RUNS[0]}", f"other/{RUNS[0]}", f"runs/{RUNS[0]}"]
    compared = run_here(folder, "compare", *places, "--html", "page.html")
    assert compared.returncode == 0, compared.stderr
    lines = Page((folder / "page.html").read_text()).charts["curve-0"]["series"]
    assert [line["name"] for line in lines] == [places[0], places[1], f"{places[0]} (2)"]
    assert lines[0]["y"] == lines[2]["y"] != lines[1]["y"]


def check_page(folder: Path, path: Path) -> None:
    """The page that compares the three runs."""
    assert path == (folder / "runs" / "tried" / "comparison.html").resolve()
    page = Page(path.read_text())
    check_alone(page)
    assert "--delay-ms" in page.text
    assert "0.00x" not in page.text
    lines = page.charts["curve-0"]["series"]
    assert [line["name"] for line in lines] == RUNS
    assert all(len(line["x"]) == len(line["y"]) > 0 for line in lines)
    bars = page.charts["phases"]
    assert {part["name"] for part in bars["parts"]} >= {"data wait", "forward", "backward"}
    assert bars["rows"] == RUNS
    assert {name for name in page.charts if name.startswith("heatmap")} == {
        f"heatmap-{place}" for place in range(3)
    }


def check_changes(folder: Path) -> None:
    """Nothing is left to do; other settings under the same names are refused."""
    again = sweep(folder)
    assert again.returncode == 0
    assert "starts" not in again.stderr
    (folder / "sweep.toml").write_text(LISTED.replace("[sweep]", "max_run = 3000\n[sweep]"))
    other = sweep(folder)
    assert other.returncode == 2
    assert "was made with other settings" in other.stderr
    assert attempts(folder, RUNS[0]) == [0]


@pytest.mark.parametrize("words", [("--dry-run",), ()])
def test_a_script_that_is_not_there_is_said_before_any_run_starts(
    folder: Path, words: tuple[str, ...]
):
    text = SWEEP.replace('entry_point = "swept.py"\n', "")
    (folder / "sweep.toml").write_text(text + 'entry_point = ["swept.py", "swpt.py"]\n')
    ended = sweep(folder, *words)
    assert ended.returncode == UsageError.exit_code
    said = " ".join(ended.stderr.split())
    assert "There is no script swpt.py" in said
    assert "Did you mean swept.py?" in said
    assert not (folder / "runs" / "tried").exists()


def test_a_sweep_that_is_killed_goes_on_and_repeats_no_finished_run(folder: Path):
    text = SWEEP.replace("delay-ms = [0, 2]", "delay-ms = [0]")
    (folder / "sweep.toml").write_text(text)
    (folder / "wait").touch()
    command = headrace("sweep", "sweep.toml")
    environment = clean_environment()
    with (folder / "terminal").open("wb") as terminal:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=terminal, stderr=terminal
        )
    try:
        eventually((folder / "waiting").exists, "the second run trained")
        other = sweep(folder)
        assert other.returncode == 2
        assert "Another headrace sweep runs tried" in other.stderr
        below = psutil.Process(process.pid).children(recursive=True)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    eventually(lambda: not any(each.is_running() for each in below), "its run ended, too")
    (folder / "wait").unlink()
    ended = sweep(folder)
    assert ended.returncode == 0, ended.stderr
    assert attempts(folder, RUNS[0]) == [0]
    assert attempts(folder, RUNS[2]) == [None, 0]


def test_a_folder_that_is_removed_meanwhile_fails_its_run_alone(folder: Path):
    (folder / "sweep.toml").write_text(SWEEP.replace("delay-ms = [0, 2]", "delay-ms = [0]"))
    text = (folder / "swept.py").read_text()
    remove = f"\nimport shutil\nif args.kind == 'plain': shutil.rmtree('runs/{RUNS[0]}')\n"
    (folder / "swept.py").write_text(text + remove)
    ended = sweep(folder, HEADRACE_TRACKING_URI="off")
    assert ended.returncode == 1
    assert f"{RUNS[0]} failed" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert attempts(folder, RUNS[2]) == [0]


def test_ctrl_c_stops_the_run_that_goes_on(folder: Path):
    text = SWEEP.replace('["plain", "odd"]', '["odd"]').replace("[0, 2]", "[0]")
    (folder / "sweep.toml").write_text(text)
    (folder / "wait").touch()
    environment = clean_environment()
    with (folder / "terminal").open("wb") as terminal:
        process = subprocess.Popen(
            headrace("sweep", "sweep.toml"), cwd=folder, env=environment, stdout=terminal,
            stderr=terminal,
        )  # fmt: skip
    eventually((folder / "waiting").exists, "the second run trained")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert attempts(folder, RUNS[2]) == [143]
