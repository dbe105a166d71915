"""Folders of one process: what a killed one leaves behind goes, what is in use stays."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cluster.agent import HostAgent
from headrace.core.scratch_folder import ScratchFolder

KILLED = """
import os, signal
from headrace.core.scratch_folder import ScratchFolder
folder = ScratchFolder("headrace-run-")
(folder.path / "assignment").write_text("a secret")
print(folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def killed() -> Path:
    """Return the folder of a process that was killed."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED], check=False, capture_output=True, text=True
    )
    folder = Path(done.stdout.strip())
    assert folder.is_dir()
    return folder


def test_a_killed_process_leaves_its_folder_to_the_next_one(temporary: Path):
    other = ScratchFolder("another-")
    left = killed()
    with ScratchFolder("headrace-run-") as mine:
        assert not left.exists()
        assert sorted(temporary.iterdir()) == sorted([mine, other.path])
        with ScratchFolder("headrace-run-"):
            assert mine.is_dir()
    assert list(temporary.iterdir()) == [other.path]
    other.remove()
    other.remove()
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("place", ["uploads/node.lock", "records/attempt-1/node.lock"])
def test_an_agent_s_folder_stays_while_its_files_are_uploaded(temporary: Path, place: str):
    left = killed()
    lock = left / place
    lock.parent.mkdir(parents=True)
    with lock.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as what uploads or collects, until it has ended
        first = HostAgent()
        first.replace_file("assignment", b"x", 1)
        assert (left / "assignment").exists()
    second = HostAgent()
    second.replace_file("assignment", b"x", 1)
    assert not left.exists()
    for agent in (first, second):
        agent.remove_folder()
    assert not list(temporary.iterdir())
