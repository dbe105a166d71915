"""Whatever is killed, nothing of the job is left, and the code says what happened."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from jobs import (
    DEADLINE_S,
    alive,
    attempts_of,
    descendants,
    eventually,
    headrace,
    pids_in,
    started,
)

# Each rank starts a child of its own, as a data worker would be, in its process group.
RANK = """
import os, pathlib, signal, subprocess, sys
rank = os.environ.get("RANK", "0")
if "stubborn" in sys.argv:
    def stay(number, frame):
        pathlib.Path(f"stayed-{rank}").touch()
    signal.signal(signal.SIGINT, stay)
    signal.signal(signal.SIGTERM, stay)
if "counting" in sys.argv:
    def count(number, frame):
        with pathlib.Path("interrupts").open("a") as file:
            file.write("one\\n")
    signal.signal(signal.SIGINT, count)
if "polite" in sys.argv:
    def leave(number, frame):
        pathlib.Path(f"signal-{rank}").write_text(str(number))
        sys.exit(0)
    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)
if "child" in sys.argv:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    pathlib.Path(f"pid-{rank}-child").write_text(f"{child.pid}\\n")
pathlib.Path(f"pid-{rank}").write_text(f"{os.getpid()}\\n")
while True:
    signal.pause()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(RANK)
    return tmp_path


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def all_gone(pids: list[int]) -> None:
    eventually(lambda: not any(map(alive, pids)), f"the end of {pids}")


def test_kill_9_of_the_launcher_leaves_no_process(folder: Path):
    with started(folder, "--nproc-per-node", "2", "train.py") as job:
        ranks = pids_in(folder, 2)
        everyone = descendants(job.pid)
        assert set(ranks) < set(everyone)
        job.kill()
        all_gone([job.pid, *everyone])


def test_kill_9_of_torchrun_leaves_no_process(folder: Path):
    with started(folder, "--nproc-per-node", "2", "--run-dir", "r", "train.py") as job:
        ranks = pids_in(folder, 2)
        below = descendants(job.pid)
        (torchrun,) = [pid for pid in below if psutil.Process(pid).ppid() == job.pid]
        os.kill(torchrun, signal.SIGKILL)
        assert job.wait(timeout=DEADLINE_S) == 137
        all_gone([*below, *ranks])
    assert "what ran the job was killed by SIGKILL" in (folder / "terminal").read_text()
    assert attempts_of(folder / "r")[0]["exit_code"] == 137


def test_kill_9_of_a_rank_ends_the_others_and_what_it_had_started(folder: Path):
    with started(folder, "--nproc-per-node", "2", "train.py", "child") as job:
        pids = pids_in(folder, 4)
        rank_1 = int((folder / "pid-1").read_text())
        os.kill(rank_1, signal.SIGKILL)
        assert job.wait(timeout=DEADLINE_S) == 137
        all_gone(pids)
    assert "rank 1 failed first: killed by SIGKILL" in (folder / "terminal").read_text()


RESTARTED = """
import os, pathlib, signal, subprocess, sys

def start(name, **how):
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], **how)
    pathlib.Path(f"pid-{name}").write_text(f"{child.pid}\\n")

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    start("worker")
    start("daemon", start_new_session=True)
    os.kill(os.getpid(), signal.SIGKILL)
start("left")
"""


@pytest.mark.parametrize("flags", [[], ["--tee", "3"]])  # the logs are ours, or torchrun's
def test_what_a_killed_rank_had_started_does_not_outlive_its_restart(
    tmp_path: Path, flags: list[str]
):
    (tmp_path / "train.py").write_text(RESTARTED)
    with started(tmp_path, "--max-restarts", "1", *flags, "train.py") as job:
        assert job.wait(timeout=DEADLINE_S) == 0
    daemon, left, worker = pids_in(tmp_path, 3)
    try:
        eventually(lambda: not alive(worker), "the end of the worker", timeout_s=30)
        # What has left the rank's group, and what ranks that ended well leave, they mean to.
        assert alive(daemon)
        assert alive(left)
    finally:
        for pid in filter(alive, (daemon, left, worker)):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_the_ranks_once_and_is_the_code(folder: Path, sent: int, code: int):
    with started(folder, "--nproc-per-node", "2", "train.py", "polite") as job:
        ranks = pids_in(folder, 2)
        job.send_signal(sent)
        assert job.wait(timeout=DEADLINE_S) == code
        all_gone(ranks)
    assert [(folder / f"signal-{rank}").read_text() for rank in range(2)] == [str(int(sent))] * 2


def test_ranks_that_do_not_leave_are_killed_after_their_grace(folder: Path):
    flags = ["--nproc-per-node", "2", "--shutdown-timeout", "1", "train.py", "stubborn"]
    with started(folder, *flags) as job:
        ranks = pids_in(folder, 2)
        job.terminate()
        assert job.wait(timeout=DEADLINE_S) == 143
        all_gone(ranks)


def test_a_script_run_directly_ends_with_the_launcher(folder: Path):
    with started(folder, "train.py") as job:
        (script,) = pids_in(folder, 1)
        job.kill()
        all_gone([job.pid, script])


def test_a_script_run_directly_gets_each_signal_and_is_not_killed(folder: Path):
    with started(folder, "--run-dir", "r", "train.py", "polite") as job:
        pids_in(folder, 1)
        job.terminate()
        assert job.wait(timeout=DEADLINE_S) == 0  # it left in its own way, with a code of its own
    (folder / "pid-0").unlink()
    with started(folder, "--run-dir", "r", "train.py", "counting") as job:
        (script,) = pids_in(folder, 1)
        for times in (1, 2, 3):
            job.send_signal(signal.SIGINT)
            eventually(lambda n=times: _text(folder / "interrupts") == n * "one\n", "each ctrl-C")
        job.terminate()
        assert job.wait(timeout=DEADLINE_S) == 143
        all_gone([script])
    assert [attempt["exit_code"] for attempt in attempts_of(folder / "r")] == [0, 143]


def test_ranks_are_killed_at_a_second_ctrl_c(folder: Path):
    with started(folder, "--nproc-per-node", "2", "train.py", "stubborn") as job:
        ranks = pids_in(folder, 2)
        job.send_signal(signal.SIGINT)
        eventually((folder / "stayed-0").exists, "the first ctrl-C at a rank")
        job.send_signal(signal.SIGINT)
        assert job.wait(timeout=DEADLINE_S) == 137
        all_gone(ranks)


@pytest.mark.parametrize("flags", [[], ["--nproc-per-node", "2"]])
def test_no_thread_of_the_launcher_takes_a_signal_from_the_one_that_waits(
    folder: Path, flags: list[str]
):
    with started(folder, *flags, "train.py") as job:
        pids_in(folder, 2 if flags else 1)
        for thread in Path(f"/proc/{job.pid}/task").iterdir():
            blocked = int((thread / "status").read_text().partition("SigBlk:")[2].split()[0], 16)
            for passed_on in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                waits = thread.name == str(job.pid)
                assert waits or blocked & 1 << passed_on - 1, f"{thread} takes {passed_on.name}"


def test_ctrl_c_at_a_terminal_reaches_a_script_run_directly_once(folder: Path):
    keyboard, screen = os.openpty()
    command = " ".join(headrace("run", "train.py", "counting"))
    # The first terminal that the leader of a session opens becomes the session's.
    shell = ["sh", "-c", f"exec {command} < {os.ttyname(screen)}"]
    job = subprocess.Popen(shell, cwd=folder, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        (script,) = pids_in(folder, 1)
        os.write(keyboard, b"\x03")
        eventually(lambda: _text(folder / "interrupts") == "one\n", "ctrl-C at the script")
        job.terminate()  # comes after all that ctrl-C led to
        assert job.wait(timeout=DEADLINE_S) == 143
        all_gone([script])
    finally:
        job.kill()
        job.wait()
        os.close(keyboard)
        os.close(screen)
    assert (folder / "interrupts").read_text() == "one\n"
