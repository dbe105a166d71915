"""A run's folder and its run.json: attempts, names, locks, damage."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import Estimator
from headrace.core.errors import LaunchError, RecordsError, UsageError
from headrace.core.files import is_temporary, temporary_name
from headrace.records import run_folder
from headrace.records.reader import Records, run_provenance, wait_for_records
from headrace.records.run_folder import RunFolder, open_run_folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(folder):
    return folder.start_attempt(command=["headrace", "run", "t.py"], argv=["t.py"], world_size=2)


def test_a_name_that_another_job_has_is_said():
    folder = open_run_folder(run_dir=None, name="base", script="t.py")
    said = []
    for script in ("t.py", "here/t.py", "other.py"):
        attempt = folder.start_attempt(command=["headrace"], argv=[script], world_size=1)
        folder.end_attempt(attempt.number, 0)
        said.append(folder.other_job(attempt))
    assert said[:2] == ["", ""]
    assert "base is a run of t.py, and other.py is its attempt 3" in said[2]


def test_an_attempt_is_reported_from_its_start_to_its_end():
    folder = open_run_folder(run_dir=None, name="base", script="t.py")
    attempt = start(folder)
    assert folder.logs(attempt.number).is_dir()
    (running,) = folder.attempts()
    assert (running.number, running.ended_s, running.exit_code) == (1, None, None)
    assert {"python", "torch"} <= set(running.versions)
    folder.end_attempt(attempt.number, 3)
    (ended,) = folder.attempts()
    assert ended.exit_code == 3
    assert ended.ended_s is not None
    assert ended.ended_s >= ended.started_s
    assert json.loads((folder.path / "run.json").read_text())["name"] == "base"


def test_a_run_that_is_started_again_has_a_second_attempt():
    start(open_run_folder(run_dir="mine", name=None, script="t.py"))
    again = start(open_run_folder(run_dir="mine", name=None, script="t.py"))
    assert again.number == 2


def test_what_a_newer_version_wrote_is_not_written_over(here: Path):
    folder = open_run_folder(run_dir="mine", name=None, script="t.py")
    start(folder)
    newer = (here / "mine" / "run.json").read_text().replace('"version": 1', '"version": 2')
    (here / "mine" / "run.json").write_text(newer)
    with pytest.raises(LaunchError, match=r"A newer Headrace wrote .*run.json .format 2"):
        start(open_run_folder(run_dir="mine", name=None, script="t.py"))
    assert (here / "mine" / "run.json").read_text() == newer


def test_attempts_that_begin_and_end_side_by_side_are_all_there():
    folder = open_run_folder(run_dir="mine", name=None, script="t.py")

    def attempt(_: int) -> int:
        number = start(open_run_folder(run_dir="mine", name=None, script="t.py")).number
        folder.end_attempt(number, number % 7)
        return number

    with ThreadPoolExecutor(8) as threads:
        numbers = sorted(threads.map(attempt, range(40)))
    assert numbers == list(range(1, 41))
    assert [(each.number, each.exit_code) for each in folder.attempts()] == [
        (number, number % 7) for number in numbers
    ]


def test_runs_of_the_same_second_get_folders_of_their_own():
    paths = {open_run_folder(run_dir=None, name=None, script="a/t.py").path for _ in range(3)}
    assert len(paths) == 3
    assert all(path.parent.name == "runs" and path.name.startswith("t-") for path in paths)


@pytest.mark.parametrize(
    ("script", "stem"),
    [
        ("code/train.py", "train"),
        ("package.train", "package.train"),
        ("resnet-1.5", "resnet-1.5"),
        ("..", "run"),
        ("a\nb\0c.sh", "a_b_c"),
    ],
)
def test_a_run_without_a_name_is_named_after_its_script(script: str, stem: str):
    folder = open_run_folder(run_dir=None, name=None, script=script)
    assert folder.path.name.rsplit("-", 2)[0] == stem


def test_a_run_json_that_is_just_being_written_is_no_other_file(here: Path):
    (here / "mine").mkdir()
    (here / "mine" / temporary_name()).touch()  # before it is renamed to run.json
    assert start(open_run_folder(run_dir="mine", name=None, script="t.py")).number == 1


@pytest.mark.parametrize(
    "name", ["a/b", "..", "", ".hidden", "a\nb", "a\0b", "a\x1b[31m", "\ud800", 5]
)
def test_a_name_is_a_plain_folder_name(name: Any):
    with pytest.raises(UsageError, match="plain folder name"):
        open_run_folder(run_dir=None, name=name, script="t.py")


def test_a_folder_of_something_else_is_left_alone(here: Path):
    (here / "data").mkdir()
    (here / "data" / "file").touch()
    with pytest.raises(UsageError, match=r"holds files but no run\.json"):
        open_run_folder(run_dir="data", name=None, script="t.py")
    with pytest.raises(UsageError, match="cannot be made"):
        open_run_folder(run_dir="data/file", name=None, script="t.py")
    with pytest.raises(UsageError, match="give one"):
        open_run_folder(run_dir="x", name="y", script="t.py")


def test_a_broken_run_json_is_reported(here: Path):
    folder = open_run_folder(run_dir="r", name=None, script="t.py")
    (here / "r" / "run.json").write_text('{"version": 1, "attempts": [{}]}')
    with pytest.raises(LaunchError, match=r"run\.json cannot be read"):
        start(folder)


def test_runs_lie_where_the_call_or_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HEADRACE_RUNS_DIR", str(tmp_path / "given"))
    folder = open_run_folder(run_dir=None, name="base", script="t.py")
    assert folder.path == tmp_path / "given" / "base"
    other = open_run_folder(run_dir=None, name=None, script="t.py", runs_dir=str(tmp_path / "own"))
    assert other.path.parent == tmp_path / "own"


def test_what_a_run_has_written_down_survives_a_power_cut(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    flushed: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        flushed.append("run.json" if is_temporary(name) else name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    folder = open_run_folder(run_dir=None, name="base", script="t.py")
    attempt = start(folder)
    assert flushed == ["runs", "run.json", "base"]  # the folder itself, the file, its name
    folder.end_attempt(attempt.number, 0)
    assert flushed[3:] == ["run.json", "base"]


def test_a_lock_that_is_never_released_is_named(here: Path, monkeypatch: pytest.MonkeyPatch):
    folder = open_run_folder(run_dir=None, name="base", script="t.py")
    start(folder)
    monkeypatch.setattr(run_folder, "_CHANGE_WAIT_S", 0.1)
    with (folder.path / "run.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LaunchError, match=r"run\.json\.lock: another process has held"):
            folder.end_attempt(1, 0)
    folder.end_attempt(1, 0)
    assert folder.attempts()[0].exit_code == 0


@pytest.mark.parametrize(
    ("before", "applied"),
    [
        ([], "-"),
        (["headrace", "run"], "-"),
        (["--apply", "workers=3"], "workers=3"),
        (["headrace", "run", "--apply=workers=3", "--name"], "workers=3"),
    ],
)
def test_a_run_says_what_was_applied_to_it(before: list[str], applied: str):
    folder = open_run_folder(run_dir=None, name="base", script="t.py")
    argv = ["t.py", "--lr", "0.1"]
    attempt = folder.start_attempt(command=[*before, *argv], argv=argv, world_size=1)
    found = run_provenance(Records(folder.path, attempt.number))
    assert (found["script"], found["--lr"], found["--apply"]) == ("t.py", "0.1", applied)


@pytest.mark.parametrize("moved_s", [-3000.0, 0.0, 3000.0])
def test_how_long_an_attempt_took_is_right_though_the_clock_was_set(
    monkeypatch: pytest.MonkeyPatch, moved_s: float
):
    folder = open_run_folder(run_dir=None, name="moved", script="t.py")
    attempt = folder.start_attempt(command=["t"], argv=["t.py"], world_size=1)
    now_s = time.time()
    monkeypatch.setattr("time.time", lambda: now_s + moved_s)
    assert 0.0 <= attempt.now_s() - attempt.started_s < 60.0
    folder.end_attempt(1, 0)
    (ended,) = folder.attempts()
    assert ended.lasted_s is not None
    assert 0.0 <= ended.lasted_s < 60.0


def test_an_attempt_of_another_boot_or_version_lasts_at_least_no_time(
    monkeypatch: pytest.MonkeyPatch,
):
    folder = open_run_folder(run_dir=None, name="other", script="t.py")
    attempt = folder.start_attempt(command=["t"], argv=["t.py"], world_size=1)
    of_another_boot = replace(attempt, launcher={**attempt.launcher, "boot": "another"})
    for other in (of_another_boot, replace(attempt, started_boot_s=0.0)):
        monkeypatch.setattr("time.time", lambda: attempt.started_s + 7.0)
        assert other.now_s() - other.started_s == pytest.approx(7.0)
        monkeypatch.setattr("time.time", lambda: attempt.started_s - 7.0)
        assert other.now_s() == other.started_s
    assert replace(attempt, ended_s=attempt.started_s - 60.0).lasted_s == 0.0


FAILED = "Traceback (most recent call last):\n  File 't.py'\nValueError: {}\n"


def failed_attempt(folder: RunFolder, text: str, *, is_estimators: bool) -> int:
    """Add an attempt that failed and printed a text: to the launcher's log, or to a terminal."""
    place = folder.path / "launcher.log" if is_estimators else Path(os.devnull)
    with subprocess.Popen(["true"]) as launcher:  # it has ended, as that of a run that failed
        pass
    standard_output = os.dup(1)
    with place.open("ab") as output:
        os.dup2(output.fileno(), 1)
        try:
            attempt = folder.start_attempt(
                command=["headrace", "run", "t.py"], argv=["t.py"], world_size=1,
                launcher=launcher.pid,
            )  # fmt: skip
        finally:
            os.dup2(standard_output, 1)
            os.close(standard_output)
        output.write(text.encode())
    (folder.logs(attempt.number) / "rank-0.stderr").write_text(text)
    folder.end_attempt(attempt.number, 1)
    return attempt.number


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize("text", ["no GPU is left\n", FAILED.format("no GPU is left")])
def test_an_attempt_s_output_is_its_own_however_those_of_its_run_were_started(
    capsys: pytest.CaptureFixture[str], first: bool, second: bool, text: str
) -> None:
    folder = open_run_folder(run_dir=None, name="base", script="t.py")
    failed_attempt(folder, FAILED.format("no labels"), is_estimators=first)
    assert failed_attempt(folder, text, is_estimators=second) == 2
    est = Estimator.attach("base")
    est.logs()
    assert capsys.readouterr().out == text
    with pytest.raises(LaunchError, match="no GPU is left") as raised:
        est.wait()
    assert "no labels" not in str(raised.value)


def test_of_an_older_version_s_run_the_launcher_s_log_is_the_first_attempt_s(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = open_run_folder(run_dir=None, name="base", script="t.py")
    for text in ("one\n", "two\n"):
        failed_attempt(folder, text, is_estimators=True)
        content = json.loads((folder.path / "run.json").read_text())
        for attempt in content["attempts"]:
            attempt["launcher"].pop("log_begin", None)
        (folder.path / "run.json").write_text(json.dumps(content))
        Estimator.attach("base").logs()
        assert capsys.readouterr().out == text


def test_the_last_words_of_several_ranks_are_those_of_the_one_that_failed_first() -> None:
    folder = open_run_folder(run_dir=None, name="base", script="t.py")
    failed_attempt(folder, FAILED.format("of the first start"), is_estimators=False)
    restart = folder.logs(1) / "restart-1"
    restart.mkdir()
    for rank, text, written_s in (
        (0, FAILED.format("the connection was closed"), 30),
        (1, "[rank1]: " + FAILED.format("no labels"), 20),
        (2, "a warning\n", 10),
    ):
        (restart / f"rank-{rank}.stderr").write_text(text)
        os.utime(restart / f"rank-{rank}.stderr", (written_s, written_s))
    with pytest.raises(LaunchError, match="no labels") as raised:
        Estimator.attach("base").wait()
    assert str(restart / "rank-1.stderr") in str(raised.value)


def test_a_last_line_without_an_end_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    folder = open_run_folder(run_dir=None, name="base", script="t.py")
    failed_attempt(folder, "accuracy 0.9", is_estimators=False)
    Estimator.attach("base").logs()
    assert capsys.readouterr().out == "accuracy 0.9"
    (folder.logs(1) / "rank-1.stdout").write_text("accuracy 0.8\nend")
    Estimator.attach("base").logs()
    shown = "[rank-0] accuracy 0.9\n[rank-1] accuracy 0.8\n[rank-1] end\n"
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("is_another_boot", [False, True])
def test_a_run_that_began_later_by_its_clock_is_not_waited_for_until_then(
    *, is_another_boot: bool, monkeypatch: pytest.MonkeyPatch
):
    """One without records, as with --profile off; the clock was an hour ahead as it began."""
    monkeypatch.setattr("headrace.records.reader._LONGEST_WAIT_S", 0.2)
    folder = open_run_folder(run_dir=None, name="ahead", script="t.py")
    start(folder)
    file = folder.path / "run.json"
    run = json.loads(file.read_text())
    (attempt,) = run["attempts"]
    attempt["started_s"] += 3600.0
    attempt["started_boot_s"] -= 60.0
    if is_another_boot:
        attempt["launcher"]["boot"] = "another"
    file.write_text(json.dumps(run))
    waits: list[str] = []
    is_waited_for = pytest.raises(RecordsError, match="ahead has begun, and nothing of it is")
    with is_waited_for if is_another_boot else nullcontext():
        wait_for_records(folder.path, lambda: waits.append("waits"))
    assert len(waits) == int(is_another_boot)
