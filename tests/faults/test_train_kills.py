"""Real kill -9 while checkpoints are written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jobs import clean_environment, run

TESTS = Path(__file__).parents[1]


@pytest.mark.timeout(600)
def test_a_save_killed_at_any_instant_leaves_the_checkpoint_before_it(tmp_path: Path, s3_url: str):
    script = str(TESTS / "scripts" / "killed_saves.py")
    # To the bucket 18 MB go at a time, in parts.
    saves = [str(tmp_path), "12", "400", s3_url, "6", "1500"]
    ended = subprocess.run(
        [sys.executable, script, *saves],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def test_a_second_attempt_reuses_the_step_that_the_first_left_incomplete(tmp_path: Path):
    script = str(TESTS / "scripts" / "killed_rank.py")
    flags = ["--nproc-per-node", "2", "--max-restarts", "1"]
    folder = tmp_path / "checkpoints"
    ended = run(tmp_path, *flags, script, str(folder), timeout_s=120, PYTHONPATH=str(TESTS))
    assert ended.returncode == 0, ended.stderr
    assert "SIGKILL" in ended.stderr or "exitcode: -9" in ended.stderr
    assert len(list((folder / f"step-{2:012d}").iterdir())) == 2  # one save, and its commit
