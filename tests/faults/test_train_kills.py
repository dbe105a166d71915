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


@pytest.fixture(scope="module")
def second_attempt(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Two ranks: killed while they save, started again, and then one of them fails."""
    folder = tmp_path_factory.mktemp("killed")
    script = str(TESTS / "scripts" / "killed_rank.py")
    flags = ["--profile", "off", "--nproc-per-node", "2", "--max-restarts", "1"]
    words = [*flags, script, str(folder / "checkpoints")]
    return folder, run(folder, *words, timeout_s=240, PYTHONPATH=str(TESTS))


def test_a_second_attempt_reuses_the_step_that_the_first_left_incomplete(second_attempt):
    folder, ended = second_attempt
    assert "SIGKILL" in ended.stderr or "exitcode: -9" in ended.stderr
    for rank in range(2):
        assert f"rank {rank} has saved step 2" in ended.stdout, ended.stderr
    assert len(list((folder / "checkpoints" / f"step-{2:012d}").iterdir())) == 2  # save and commit


def test_a_rank_that_fails_leaves_the_group_alone(second_attempt):
    _, ended = second_attempt
    assert ended.returncode == 1, ended.stderr
    assert "rank 0 failed first" in ended.stderr
    assert "RuntimeError: on purpose" in ended.stderr
    assert "in a group at exit: True" in ended.stdout
