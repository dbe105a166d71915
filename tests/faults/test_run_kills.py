"""Whatever is killed, nothing of the job is left, and the code says what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
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

# What each rank does with signals is set by its argument. With "parent" and "parents", each rank
# has a child in its process group, as a data worker would be; with the latter, rank 1 of the first
# start has a daemon, too.
RANK = """
import os, pathlib, signal, subprocess, sys, time
rank, start = os.environ.get("RANK", "0"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
manners = sys.argv[1:] or ["plain"]
manner = manners[int(rank) % len(manners)]
def stay(number, frame):
    pathlib.Path(f"stayed-{rank}").touch()
def count(number, frame):
    with pathlib.Path("interrupts").open("a") as file:
        file.write("one\\n")
def leave(number, frame):
    pathlib.Path(f"signal-{rank}").write_text(str(number))
    sys.exit(0)
handler = {"stubborn": stay, "counting": count, "polite": leave}.get(manner)
if handler is not None:
    signal.signal(signal.SIGINT, handler)
    if manner != "counting":
        signal.signal(signal.SIGTERM, handler)
def begin(name, **how):
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], **how)
    pathlib.Path(f"pid-{start}-{rank}-{name}").write_text(f"{child.pid}\\n")
if manner in ("parent", "parents"):
    begin("child")
    if (manner, start, rank) == ("parents", "0", "1"):
        begin("daemon", start_new_session=True)
pathlib.Path(f"pid-{start}-{rank}").write_text(f"{os.getpid()}\\n")
while True:
    time.sleep(0.1)  # `pause` may wait for ever after a signal that came just before it
"""
UNRECORDED = ("--profile", "off")
TWO_RANKS = ("--nproc-per-node", "2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(RANK)
    return tmp_path


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _pid(folder: Path, name: str) -> int:
    return int((folder / f"pid-{name}").read_text())


def all_gone(pids: list[int]) -> None:
    eventually(lambda: not any(map(alive, pids)), f"the end of {pids}")


def no_thread_takes_a_signal_from_the_one_that_waits(job: subprocess.Popen[bytes]) -> None:
    threads = list(Path(f"/proc/{job.pid}/task").iterdir())
    assert threads
    for thread in threads:
        blocked = int((thread / "status").read_text().partition("SigBlk:")[2].split()[0], 16)
        for passed_on in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            waits = thread.name == str(job.pid)
            assert waits or blocked & 1 << passed_on - 1, f"{thread} takes {passed_on.name}"


@pytest.mark.parametrize("flags", [(), TWO_RANKS])
def test_kill_9_of_the_launcher_leaves_no_process(folder: Path, flags: tuple[str, ...]):
    with started(folder, *flags, "train.py") as job:
        ranks = pids_in(folder, 2 if flags else 1)
        everyone = descendants(job.pid)
        assert set(ranks) <= set(everyone)
        no_thread_takes_a_signal_from_the_one_that_waits(job)
        job.kill()
        all_gone([job.pid, *everyone])


@pytest.mark.parametrize("killed", ["launcher", "script", "both"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_that_is_stuck_does_not_outlive_a_script_run_directly(
    folder: Path, killed: str, number: signal.Signals
):
    """As a worker that waits for a lock: nobody tells it to end, and it does not look around."""
    with started(folder, *UNRECORDED, "train.py", "parents") as job:
        pids = pids_in(folder, 2)
        script, child = _pid(folder, "0-0"), _pid(folder, "0-0-child")
        assert os.getpgid(child) == os.getpgid(script)
        for pid in ([job.pid] if killed != "script" else []) + (
            [script] if killed != "launcher" else []
        ):
            with suppress(ProcessLookupError):  # it may end with the other
                os.kill(pid, number)
        all_gone([job.pid, *pids])
        assert job.wait(timeout=DEADLINE_S) in {128 + number, -number}


def test_the_ranks_of_a_torchrun_that_a_script_runs_end_with_the_launcher(folder: Path):
    (folder / "fit.sh").write_text(
        f"exec {sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 train.py "
        "parents\n"
    )
    with started(folder, *UNRECORDED, "fit.sh") as job:
        pids = pids_in(folder, 5)
        daemon = _pid(folder, "0-1-daemon")
        everyone = descendants(job.pid)
        job.kill()
        try:
            all_gone([pid for pid in {job.pid, *everyone, *pids} if pid != daemon])
            assert alive(daemon)
        finally:
            os.kill(daemon, signal.SIGKILL)


def test_what_a_script_run_directly_leaves_when_it_ends_well_stays(folder: Path):
    (folder / "train.py").write_text(LEAVES)
    with started(folder, *UNRECORDED, "train.py") as job:
        (left,) = pids_in(folder, 1)
        assert job.wait(timeout=DEADLINE_S) == 0
    try:
        assert alive(left)
    finally:
        os.kill(left, signal.SIGKILL)


LEAVES = """
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
pathlib.Path("pid-left").write_text(f"{child.pid}\\n")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_rank_s_child_that_is_stuck_does_not_outlive_the_launcher(
    folder: Path, number: signal.Signals
):
    with started(folder, *UNRECORDED, *TWO_RANKS, "train.py", "parent") as job:
        pids = pids_in(folder, 4)
        everyone = descendants(job.pid)
        assert set(pids) <= set(everyone)
        job.send_signal(number)
        all_gone([job.pid, *everyone])


def test_kill_9_of_torchrun_leaves_no_process(folder: Path):
    with started(folder, *TWO_RANKS, "--run-dir", "r", "train.py", "parent") as job:
        pids = pids_in(folder, 4)
        below = descendants(job.pid)
        (torchrun,) = [pid for pid in below if psutil.Process(pid).ppid() == job.pid]
        os.kill(torchrun, signal.SIGKILL)
        assert job.wait(timeout=DEADLINE_S) == 137
        all_gone([*below, *pids])
    assert "what ran the job was killed by SIGKILL" in (folder / "terminal").read_text()
    assert attempts_of(folder / "r")[0]["exit_code"] == 137


def test_kill_9_of_a_rank_ends_the_others_and_what_all_had_started(folder: Path):
    flags = (*UNRECORDED, *TWO_RANKS, "--max-restarts", "1")
    with started(folder, *flags, "train.py", "parents") as job:
        first = pids_in(folder, 5)
        daemon = _pid(folder, "0-1-daemon")
        try:
            os.kill(_pid(folder, "0-1"), signal.SIGKILL)
            second = set(pids_in(folder, 9)) - set(first)
            all_gone([pid for pid in first if pid != daemon])
            assert all(map(alive, second))
            os.kill(_pid(folder, "1-1"), signal.SIGKILL)
            assert job.wait(timeout=DEADLINE_S) == 137
            all_gone(list(second))
            assert alive(daemon)  # what has left the rank's group means to stay
        finally:
            os.kill(daemon, signal.SIGKILL)
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


def test_what_a_killed_rank_had_started_does_not_outlive_its_restart_with_logs_of_torchruns(
    tmp_path: Path,
):
    (tmp_path / "train.py").write_text(RESTARTED)
    flags = (*UNRECORDED, "--max-restarts", "1", "--tee", "3")
    with started(tmp_path, *flags, "train.py") as job:
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


def test_ctrl_c_reaches_the_ranks_once_and_is_the_code(folder: Path):
    with started(folder, *UNRECORDED, *TWO_RANKS, "train.py", "polite") as job:
        ranks = pids_in(folder, 2)
        job.send_signal(signal.SIGINT)
        assert job.wait(timeout=DEADLINE_S) == 130
        all_gone(ranks)
    assert [(folder / f"signal-{rank}").read_text() for rank in range(2)] == ["2", "2"]


@pytest.mark.parametrize("moment", ["torchrun's process is there", "it was given the job"])
def test_ctrl_c_while_a_job_starts_is_its_code_and_no_traceback(folder: Path, moment: str):
    with started(folder, *UNRECORDED, *TWO_RANKS, "train.py", "polite") as job:
        children = eventually(lambda: descendants(job.pid), "torchrun's process")
        if moment == "it was given the job":  # a thread reads from then on
            threads = Path(f"/proc/{job.pid}/task")
            eventually(lambda: len(list(threads.iterdir())) > 1, "the thread that reads")
        job.send_signal(signal.SIGINT)
        assert job.wait(timeout=DEADLINE_S) in (-signal.SIGINT, 130)
        all_gone(children)
    assert "Traceback" not in (folder / "terminal").read_text()


def test_sigterm_is_the_code_and_a_rank_that_does_not_leave_is_killed_after_its_grace(
    folder: Path,
):
    flags = (*UNRECORDED, *TWO_RANKS, "--shutdown-timeout", "1")
    with started(folder, *flags, "train.py", "polite", "stubborn") as job:
        ranks = pids_in(folder, 2)
        job.terminate()
        assert job.wait(timeout=DEADLINE_S) == 143
        all_gone(ranks)
    assert (folder / "signal-0").read_text() == "15"
    assert (folder / "stayed-1").exists()


def test_ranks_are_killed_at_a_second_ctrl_c(folder: Path):
    with started(folder, *UNRECORDED, *TWO_RANKS, "train.py", "stubborn") as job:
        ranks = pids_in(folder, 2)
        job.send_signal(signal.SIGINT)
        eventually((folder / "stayed-0").exists, "the first ctrl-C at a rank")
        job.send_signal(signal.SIGINT)
        assert job.wait(timeout=DEADLINE_S) == 137
        all_gone(ranks)
    terminal = (folder / "terminal").read_text()
    assert "as it had not stopped when asked to" in terminal
    assert "want of memory" not in terminal


def test_a_script_run_directly_leaves_in_its_own_way_with_a_code_of_its_own(folder: Path):
    with started(folder, *UNRECORDED, "--run-dir", "r", "train.py", "polite") as job:
        pids_in(folder, 1)
        job.terminate()
        assert job.wait(timeout=DEADLINE_S) == 0
    assert (folder / "signal-0").read_text() == "15"
    assert [attempt["exit_code"] for attempt in attempts_of(folder / "r")] == [0]


def _is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal was sent to a process that has not taken it."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (pending,) = [int(line.split()[1], 16) for line in status if line.startswith("ShdPnd:")]
    return bool(pending & 1 << (number - 1))


def test_a_script_run_directly_gets_each_signal_once_and_is_not_killed(folder: Path):
    keyboard, screen = os.openpty()
    command = " ".join(headrace("run", *UNRECORDED, "--run-dir", "r", "train.py", "counting"))
    # The first terminal that the leader of a session opens becomes the session's.
    shell = ["sh", "-c", f"exec {command} < {os.ttyname(screen)}"]
    job = subprocess.Popen(shell, cwd=folder, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        (script,) = pids_in(folder, 1)
        os.write(keyboard, b"\x03")
        eventually(lambda: _text(folder / "interrupts") == "one\n", "ctrl-C at the script")
        # Of two that are pending at once the kernel keeps one.
        eventually(lambda: not _is_pending(job.pid, signal.SIGINT), "ctrl-C at the launcher")
        for times in (2, 3, 4):
            job.send_signal(signal.SIGINT)
            eventually(lambda n=times: _text(folder / "interrupts") == n * "one\n", "each ctrl-C")
        job.terminate()  # comes after all that the signals led to
        assert job.wait(timeout=DEADLINE_S) == 143
        all_gone([script])
    finally:
        job.kill()
        job.wait()
        os.close(keyboard)
        os.close(screen)
    assert (folder / "interrupts").read_text() == "one\n" * 4
    assert [attempt["exit_code"] for attempt in attempts_of(folder / "r")] == [143]
