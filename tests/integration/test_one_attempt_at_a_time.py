"""A run's folder has one attempt at a time: another one meanwhile is refused."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import UsageError
from headrace.records.run_folder import (
    RunFolder,
    open_run_folder,
    process_identity,
    running_launcher,
    running_pid,
)
from jobs import DEADLINE_S, attempts_of, pids_in, started
from jobs_here import run_job, run_verb

WAITS = """
import os, pathlib, signal
if pathlib.Path("go").exists():
    print("went on", flush=True)
else:
    pathlib.Path(f"pid-{os.environ.get('RANK', 0)}").write_text(f"{os.getpid()}\\n")
    signal.pause()
"""
HOLDS = """
import sys
from headrace.records.run_folder import open_run_folder
folder = open_run_folder(run_dir=sys.argv[1], name=None, script="t.py")
try:
    attempt = folder.start_attempt(command=["t"], argv=["t.py"], world_size=1)
except Exception as error:
    print(type(error).__name__, error, flush=True)
else:
    print("began", attempt.number, flush=True)
    sys.stdin.read()
"""
QUIET = ("--profile", "off")


def holder(folder: Path) -> subprocess.Popen[str]:
    """Start a process that begins an attempt of the run r, says so, and waits."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDS, "r"], cwd=folder, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize("ranks", [[], ["--nproc-per-node", "1"]])
def test_a_run_that_is_running_is_not_begun_again_until_it_has_ended(
    tmp_path: Path, ranks: list[str]
) -> None:
    (tmp_path / "train.py").write_text(WAITS)
    with started(tmp_path, "--name", "base", *QUIET, *ranks, "train.py") as job:
        pids_in(tmp_path, 1)
        again = [*QUIET, "--nproc-per-node", "1"] if not ranks else QUIET
        for refused in (
            run_verb(tmp_path, "resume", "base"),
            run_job(tmp_path, "--run-dir", "runs/base", *again, "train.py"),
        ):
            assert (refused.returncode, refused.stdout) == (2, "")
            (message,) = refused.stderr.splitlines()
            assert "base is running since 20" in message
            assert (
                f"led by process {job.pid} on {platform.node()} (attempt 1). Wait until" in message
            )
            assert f"stop it by kill {job.pid} there" in message
        assert len(attempts_of(tmp_path / "runs" / "base")) == 1
        job.send_signal(signal.SIGKILL)  # what it started ends with it
        job.wait()
        (tmp_path / "go").touch()
        assert run_verb(tmp_path, "resume", "base").stdout.endswith("went on\n")
    assert len(attempts_of(tmp_path / "runs" / "base")) == 2


def test_of_starts_at_one_moment_one_begins(tmp_path: Path) -> None:
    processes = [holder(tmp_path) for _ in range(4)]
    lines = []
    for process in processes:
        assert process.stdout is not None
        lines.append(process.stdout.readline())
    for process in processes:
        process.communicate(timeout=DEADLINE_S)
    assert sorted(line.split()[0] for line in lines) == ["UsageError"] * 3 + ["began"]
    assert len(attempts_of(tmp_path / "r")) == 1


def test_a_lock_names_a_launcher_on_another_host_and_a_pid_of_it_means_nothing(
    tmp_path: Path,
) -> None:
    """What its run.json names cannot be looked up here; the folder is locked as long as it runs."""
    with holder(tmp_path) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "began 1\n"
        file = tmp_path / "r" / "run.json"
        content = json.loads(file.read_text())
        content["attempts"][0]["launcher"] = {"host": "another", "pid": os.getpid(), "began_s": 0.0}
        file.write_text(json.dumps(content))
        folder = RunFolder((tmp_path / "r").resolve())
        with pytest.raises(UsageError, match=rf"led by process {os.getpid()} on another"):
            folder.check_free()
        other.kill()
    folder.check_free()
    assert attempts_of(tmp_path / "r")[0]["ended_s"] is None


def test_a_copy_of_a_running_jobs_folder_runs_nothing(tmp_path: Path) -> None:
    with holder(tmp_path) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "began 1\n"
        original, copy, moved = (tmp_path.resolve() / name for name in ("r", "copy", "moved"))
        shutil.copytree(original, copy)
        assert launcher_of(original) == job.pid
        assert launcher_of(copy) is None
        RunFolder(copy).check_free()
        original.rename(moved)  # which is the folder itself
        assert launcher_of(moved) == job.pid
        with pytest.raises(UsageError, match=f"led by process {job.pid}"):
            RunFolder(moved).check_free()
        job.communicate()


def launcher_of(folder: Path) -> int | None:
    return running_launcher(folder, RunFolder(folder).attempts()[-1].launcher)


def test_a_launcher_is_known_though_the_clock_was_set(tmp_path: Path) -> None:
    """The time of day at which a process began is its time since boot and the clock's of boot."""
    identity = process_identity(os.getpid())
    assert running_pid({**identity, "began_s": identity["began_s"] - 3600.0}) == os.getpid()
    assert running_pid({**identity, "began_ticks": identity["began_ticks"] - 1}) is None
    assert running_pid({**identity, "boot": "another"}) is None
    older = {name: identity[name] for name in ("host", "pid", "began_s")}
    assert running_pid(older) == os.getpid()
    assert running_pid({**older, "began_s": identity["began_s"] - 3600.0}) is None


def test_another_process_of_the_same_number_is_not_the_launcher(tmp_path: Path) -> None:
    folder = open_run_folder(run_dir=str(tmp_path / "r"), name=None, script="t.py")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        folder.start_attempt(command=["t"], argv=["t.py"], world_size=1, launcher=stranger.pid)
        with pytest.raises(UsageError, match=f"led by process {stranger.pid}"):
            folder.check_free()
        file = tmp_path / "r" / "run.json"
        content = json.loads(file.read_text())
        content["attempts"][0]["launcher"]["began_s"] -= 100.0
        content["attempts"][0]["launcher"]["began_ticks"] -= 10_000
        file.write_text(json.dumps(content))
        folder.check_free()
        assert stranger.poll() is None
        stranger.communicate()
