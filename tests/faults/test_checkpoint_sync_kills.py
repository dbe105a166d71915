"""kill -9 at random instants: what is at the URL is always a state that the script had made."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.jobs.sync.remote_copy import RemoteCopy
from headrace.jobs.sync.sync_process import restore
from jobs import DEADLINE_S, alive, descendants, eventually, started

# A checkpoint is a folder of three files that are written slowly, and a file that names it.
WRITES = """
import os, pathlib, shutil, sys, time
folder = pathlib.Path(os.environ["HEADRACE_CHECKPOINT_DIR"])
latest = folder / "latest"
step = int(latest.read_text()) if latest.exists() else 0
pathlib.Path("from").write_text(f"{step}\\n")
while True:
    step += 1
    place = folder / f"step-{step:012}"
    (place / "save").mkdir(parents=True, exist_ok=True)
    for name in "abc":
        with (place / "save" / name).open("w") as file:
            for _ in range(20):
                file.write(f"{step}\\n")
                file.flush()
                time.sleep(0.002)
    (place / "commit.json").write_text(str(step))
    (folder / "draft").write_text(str(step))
    (folder / "draft").rename(latest)
    for old in sorted(folder.glob("step-*"))[:-2]:
        shutil.rmtree(old)
    pathlib.Path("step.new").write_text(f"{step}\\n")
    pathlib.Path("step.new").rename("step")
    time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("seed", range(4))
def test_what_is_copied_is_whole_whatever_is_killed(tmp_path: Path, s3_url: str, seed: int) -> None:
    chosen = random.Random(seed)
    (tmp_path / "train.py").write_text(WRITES)
    flags = ["--name", "a", "--profile", "off", "--checkpoint-uri", s3_url]
    with started(tmp_path, *flags, "train.py", "1.2") as job:
        remote = RemoteCopy(s3_url, print)
        _steps(tmp_path, chosen.randint(1, 2))
        sync_processes = [
            pid for pid in descendants(job.pid) if b"sync.sync_process" in _command(pid)
        ]
        for pid in sync_processes:  # another takes over
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: remote.newest().files, "something is copied")
        # Some time within a step, a manifest, or an upload.
        threading.Event().wait(chosen.uniform(0.0, 1.5))
        everything = [job.pid, *descendants(job.pid)]
        chosen.shuffle(everything)
        for pid in everything:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(map(alive, everything[1:])), "all are dead")
    messages: list[str] = []
    restore(RemoteCopy(s3_url, messages.append), tmp_path / "there", print)
    _check(tmp_path / "there")


def test_on_the_same_disk_a_job_goes_on_from_the_last_checkpoint_whatever_ended_it(
    tmp_path: Path, s3_url: str
) -> None:
    (tmp_path / "train.py").write_text(WRITES)
    flags = ["--name", "a", "--profile", "off", "--checkpoint-uri", s3_url]
    written = 0
    for end in ("SIGTERM", "kill -9, sync process left", "kill -9, everything", "SIGTERM"):
        # A sync process that is left still uploads while the next job starts.
        with started(tmp_path, *flags, "train.py", "0.1") as job:
            assert _first_step(tmp_path) >= written, end
            _steps(tmp_path, written + 2)
            if end == "SIGTERM":
                job.terminate()
            else:
                for pid in (job.pid, *descendants(job.pid)):
                    if end == "kill -9, everything" or b"sync.sync_process" not in _command(pid):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
            job.wait(DEADLINE_S)
        written = int((tmp_path / "step").read_text())
        (tmp_path / "from").unlink()


def _first_step(folder: Path) -> int:
    begun = folder / "from"
    eventually(lambda: begun.exists() and begun.read_text().endswith("\n"), "it goes on")
    return int(begun.read_text())


def _check(folder: Path) -> None:
    for step in folder.glob("step-*"):
        number = int(step.name.removeprefix("step-"))
        assert (step / "commit.json").read_text() == str(number)
        for name in "abc":
            assert (step / "save" / name).read_text() == f"{number}\n" * 20
    latest = folder / "latest"
    if latest.exists():
        assert (folder / f"step-{int(latest.read_text()):012}" / "commit.json").exists()
    assert any(folder.glob("step-*"))


def _steps(folder: Path, count: int) -> None:
    def enough() -> bool:
        step_file = folder / "step"
        text = step_file.read_text() if step_file.exists() else ""
        return text.endswith("\n") and int(text) >= count

    eventually(enough, f"{count} steps")


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
