"""Sidecars: processes of ours beside a script, from their request to their end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.core.errors import NoSpaceError
from headrace.core.process.sidecar import RestartedSidecar, Sidecar, sidecar_pids
from jobs import DEADLINE_S, alive, eventually

PROGRAM = """
import os, signal, time
from pathlib import Path
from headrace.core.errors import NoSpaceError
from headrace.core.process.sidecar import run_sidecar

class _DiskError(NoSpaceError):
    pass

def main(parent):
    print("no message")
    for code in parent.request.get("exits", ()):
        place = Path(parent.request["folder"], f"exited {code}")
        if not place.exists():
            place.touch()
            return code
    parent.send({"request": parent.request, "parent": parent.pid, "rank": os.environ.get("RANK")})
    while (message := parent.read()) is not None:
        if "raise" in message:
            raise _DiskError(message["raise"])
        if "exit" in message:
            return message["exit"]
        if "hang" in message:
            time.sleep(3600)  # its input's end is not seen
        parent.send({"echo": message})
    Path(parent.request["folder"], "input ended").touch()

run_sidecar(main, dies_by=DIES_BY)
"""


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, dies_by in (("dying", "signal.SIGKILL"), ("finishing", "None")):
        (tmp_path / f"{name}.py").write_text(PROGRAM.replace("DIES_BY", dies_by))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_it_is_asked_answers_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    request = {"folder": str(tmp_path), "key": "a secret"}
    sidecar = Sidecar("finishing", request)
    assert sidecar.receive() == {"request": request, "parent": os.getpid(), "rank": None}
    assert sidecar.pid in sidecar_pids()
    assert os.getsid(sidecar.pid) == sidecar.pid
    assert b"secret" not in Path(f"/proc/{sidecar.pid}/cmdline").read_bytes()
    large = {"text": "x" * 2**20}  # more than a pipe holds
    sidecar.send(large)
    assert sidecar.receive() == {"echo": large}
    os.kill(sidecar.pid, signal.SIGTERM)  # such as one to the job's process group
    assert sidecar.end(patience_s=DEADLINE_S) == 0
    assert (tmp_path / "input ended").exists()
    assert sidecar.receive() is None
    assert sidecar.pid not in sidecar_pids()


def test_its_error_is_raised_here(tmp_path: Path) -> None:
    sidecar = Sidecar("dying", {"folder": str(tmp_path)})
    sidecar.receive()
    sidecar.send({"raise": "the disk is full"})
    with pytest.raises(NoSpaceError, match="the disk is full"):
        sidecar.receive()
    assert sidecar.wait(DEADLINE_S) == NoSpaceError.exit_code
    sidecar.send({"text": "to nobody"})
    assert sidecar.end(patience_s=DEADLINE_S) == NoSpaceError.exit_code


@pytest.mark.parametrize("message", [{"hang": True}, {"text": "to wait for more"}])
def test_it_ends_with_its_parent_at_once_or_when_it_has_finished(
    tmp_path: Path, message: dict[str, object]
) -> None:
    program = "dying" if "hang" in message else "finishing"
    script = (
        "import json, sys, signal\n"
        "from headrace.core.process.sidecar import Sidecar\n"
        "sidecar = Sidecar(sys.argv[1], {'folder': sys.argv[2]})\n"
        "sidecar.receive()\n"
        "sidecar.send(json.loads(sys.argv[3]))\n"
        "print(sidecar.pid, flush=True)\n"
        "signal.pause()\n"
    )
    command = [sys.executable, "-c", script, program, str(tmp_path), json.dumps(message)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    eventually(lambda: not alive(pid), "the sidecar's end")
    if program == "finishing":
        assert (tmp_path / "input ended").exists()


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    sidecar = Sidecar("finishing", {"folder": str(tmp_path)})
    sidecar.receive()
    os.kill(sidecar.pid, signal.SIGSTOP)
    assert sidecar.end(patience_s=0.0) is None
    assert sidecar.wait() == -signal.SIGKILL


def test_one_that_is_killed_is_replaced_as_often_as_allowed(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []
    sidecar = RestartedSidecar(
        "finishing", {"folder": str(tmp_path)}, restarts=1, killed=lambda *each: seen.append(each)
    )
    first = sidecar.pid
    os.kill(first, signal.SIGKILL)
    eventually(lambda: seen, "another one")
    assert sidecar.pid != first
    assert sidecar.end({"exit": 5}, patience_s=DEADLINE_S) == 5
    assert seen == [(-signal.SIGKILL, True)]


def test_one_that_is_killed_too_often_is_not_replaced(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []
    sidecar = RestartedSidecar(
        "finishing", {"folder": str(tmp_path)}, restarts=0, killed=lambda *each: seen.append(each)
    )
    os.kill(sidecar.pid, signal.SIGKILL)
    eventually(lambda: seen, "its end")
    assert seen == [(-signal.SIGKILL, False)]
    assert sidecar.end(patience_s=DEADLINE_S) == -signal.SIGKILL


def test_restarts_are_counted_anew_after_a_long_life(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []
    sidecar = RestartedSidecar(
        "finishing", {"folder": str(tmp_path)}, restarts=1,
        killed=lambda *each: seen.append(each), long_life_s=0.0,
    )  # fmt: skip
    for number in range(1, 4):
        os.kill(sidecar.pid, signal.SIGKILL)
        eventually(lambda number=number: len(seen) == number, "another one")
    assert sidecar.end({"exit": 5}, patience_s=DEADLINE_S) == 5
    assert seen == [(-signal.SIGKILL, True)] * 3


def test_one_that_fails_is_replaced_where_that_is_asked_for_until_a_code_is_final(
    tmp_path: Path,
) -> None:
    seen: list[tuple[int, bool]] = []
    request = {"folder": str(tmp_path), "exits": [1, 2, 3]}
    sidecar = RestartedSidecar(
        "finishing", request, restarts=9, killed=lambda *each: seen.append(each),
        is_repeated=lambda code: code != 3, finishes=True,
    )  # fmt: skip
    eventually((tmp_path / "exited 3").exists, "its last exit")
    assert sidecar.end({"exit": 5}, patience_s=DEADLINE_S) == 3
    assert seen == [(1, True), (2, True)]


def test_one_that_ends_before_its_end_is_replaced_for_its_last_work(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []
    sidecar = RestartedSidecar(
        "finishing", {"folder": str(tmp_path)}, restarts=0,
        killed=lambda *each: seen.append(each), finishes=True,
    )  # fmt: skip
    os.kill(sidecar.pid, signal.SIGKILL)
    eventually(lambda: seen, "its end")
    assert sidecar.end({"exit": 5}, patience_s=DEADLINE_S) == 5


def test_the_thread_that_restarts_one_gets_no_signals(tmp_path: Path) -> None:
    sidecar = RestartedSidecar(
        "finishing", {"folder": str(tmp_path)}, restarts=1, killed=lambda *_: None
    )
    (thread,) = (each for each in threading.enumerate() if each.name == "headrace-sidecar")
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    found = re.search(r"SigBlk:\s*(\w+)", status)
    assert found is not None
    blocked = int(found[1], 16)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert blocked & (1 << (number - 1))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    assert sidecar.end(patience_s=DEADLINE_S) == 0
