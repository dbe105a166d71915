"""Real gloo ranks under `headrace run`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import headrace
from jobs import run
from training import Network, differences, everything, optimizer_of

TESTS = Path(__file__).parents[1]


@pytest.mark.timeout(700)
def test_two_ranks_train_alike_and_one_or_three_go_on(tmp_path: Path, s3_url: str):
    script = str(TESTS / "scripts" / "two_ranks.py")
    ended = _run(tmp_path, "2", script, str(tmp_path), s3_url)
    assert ended.returncode == 0, ended.stderr
    ended = _run(tmp_path, "3", str(TESTS / "scripts" / "any_ranks.py"), str(tmp_path), "fsdp")
    assert ended.returncode == 0, ended.stderr
    assert "world 3" in ended.stdout
    reference = torch.load(tmp_path / "reference.pt", weights_only=True)
    for saved_by in ("ddp", "fsdp"):
        model = Network()
        optimizer = optimizer_of(model)
        restored = headrace.Checkpointer(f"{tmp_path}/{saved_by}").restore(model, optimizer)
        assert restored is not None
        assert not differences(reference[saved_by], everything(model, optimizer))


def test_a_script_that_ends_well_leaves_the_process_group(tmp_path: Path):
    # gloo's threads may abort a process that keeps the group while Python shuts down.
    ended = _run(tmp_path, "2", str(TESTS / "scripts" / "leaves_group.py"))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("in a group at the end: True") == 2
    assert ended.stdout.count("in a group at exit: False") == 2


def test_a_group_that_a_script_destroys_is_gone(tmp_path: Path):
    # What is left would be used by gloo's threads while Python shuts down: SIGABRT, now and then.
    script = str(TESTS / "scripts" / "destroys_group.py")
    ended = run(tmp_path, script, str(tmp_path / "checkpoints"), timeout_s=280)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("references left: 0\n")


def test_a_rank_that_fails_leaves_the_group_alone(tmp_path: Path):
    ended = _run(tmp_path, "2", str(TESTS / "scripts" / "leaves_group.py"), "--fail")
    assert ended.returncode == 1, ended.stderr
    assert "rank 0 failed first" in ended.stderr
    assert "RuntimeError: on purpose" in ended.stderr
    assert "in a group at exit: True" in ended.stdout


def _run(folder: Path, ranks: str, *arguments: str):
    flags = ["--nproc-per-node", ranks]
    return run(folder, *flags, *arguments, timeout_s=280, PYTHONPATH=str(TESTS))
