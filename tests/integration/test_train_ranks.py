"""Real gloo ranks: two under `headrace run`, and others that go on with what they saved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from s3_server import S3Server

import headrace
from jobs import clean_environment, run
from training import Network, differences, everything, optimizer_of

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def two_ranks(
    tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Two ranks that train, save and restore, under torchrun; and the folder they save to."""
    folder = tmp_path_factory.mktemp("two")
    words = [str(TESTS / "scripts" / "two_ranks.py"), str(folder), f"s3://{s3_server.bucket}/two"]
    environment = s3_server.environment() | {"PYTHONPATH": str(TESTS)}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        ended = run(folder, "--nproc-per-node", "2", *words, timeout_s=280, **environment)
    return folder, ended


def test_two_ranks_train_alike_and_one_or_three_go_on(two_ranks):
    folder, ended = two_ranks
    assert ended.returncode == 0, ended.stderr
    any_ranks = str(TESTS / "scripts" / "any_ranks.py")
    ended = subprocess.run(
        [sys.executable, any_ranks, str(folder), "fsdp", "3"],
        env=clean_environment(PYTHONPATH=os.pathsep.join([*sys.path, str(TESTS)])),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("world 3") == 3
    reference = torch.load(folder / "reference.pt", weights_only=True)
    for saved_by in ("ddp", "fsdp"):
        model = Network()
        optimizer = optimizer_of(model)
        restored = headrace.Checkpointer(f"{folder}/{saved_by}").restore(model, optimizer)
        assert restored is not None
        assert not differences(reference[saved_by], everything(model, optimizer))


def test_a_script_that_ends_well_leaves_the_process_group(two_ranks):
    # gloo's threads may abort a process that keeps the group while Python shuts down.
    _, ended = two_ranks
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("in a group at the end: True") == 2
    assert ended.stdout.count("in a group at exit: False") == 2


def test_a_group_that_a_script_destroys_is_gone(tmp_path: Path):
    # What is left would be used by gloo's threads while Python shuts down: SIGABRT, now and then.
    script = str(TESTS / "scripts" / "destroys_group.py")
    ended = run(tmp_path, script, str(tmp_path / "checkpoints"), timeout_s=280)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("references left: 0\n")
