"""Waits of the sync for what never goes on: each ends with what waited, and for what."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.core.errors import CheckpointError, LaunchError
from headrace.jobs import host_run
from headrace.jobs.environment.script_environment import ScriptEnvironment
from headrace.jobs.spec import ContractOptions, SyncOptions
from headrace.jobs.sync import sync_process


@contextmanager
def locked(path: Path, text: str = "") -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.write(text)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Progress:
    def __init__(self) -> None:
        self.said = 0

    def __call__(self) -> None:
        self.to_launcher()

    def to_launcher(self) -> None:
        self.said += 1


def test_a_launcher_ends_a_fetch_that_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options = SyncOptions(checkpoint_uri=str(tmp_path / "bucket"))
    sync = host_run.HostSync(options, ScriptEnvironment(), tmp_path / "run")
    with monkeypatch.context() as patch, locked(tmp_path / "run/uploads/host.lock-fetch"):
        patch.setattr("headrace.jobs.sync.host_sync.SILENCE_S", 0.5)
        with pytest.raises(LaunchError, match=r"fetches checkpoints from .*bucket has not gone"):
            sync.fetch()
    sync.fetch()


def test_a_launcher_ends_a_reservation_of_outputs_that_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.jobs.sync.host_sync.SILENCE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it never answers
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        output = host_run.OutputUpload(
            SyncOptions(output_path="s3://b/out"),
            ContractOptions(contracts=("sagemaker",)),
            tmp_path,
        )
        with pytest.raises(LaunchError, match=r"reserves s3://b/out has not gone on"):
            output.begin()


@pytest.mark.parametrize("jump_s", [0.0, -1e6, 1e6])
def test_a_fetch_waits_for_another_as_long_as_that_goes_on_whatever_the_time_of_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
):
    lock, progress = tmp_path / "host.lock-fetch", Progress()
    clock = {"now_s": time.time(), "monotonic_s": time.monotonic(), "passes": 0.0}
    monkeypatch.setattr(time, "time", lambda: clock["now_s"])
    monkeypatch.setattr(time, "monotonic", lambda: clock["monotonic_s"])

    def pass_time(_: float) -> None:
        clock["monotonic_s"] += 0.9 * sync_process.SILENCE_S
        clock["now_s"] += 0.9 * sync_process.SILENCE_S + jump_s
        clock["passes"] += 1
        assert clock["passes"] < 20
        if progress.said < 3:
            os.utime(lock, (clock["now_s"], clock["now_s"]))

    monkeypatch.setattr(time, "sleep", pass_time)
    with (
        locked(lock),
        pytest.raises(CheckpointError, match=r"has not gone on for 600 s.*host\.lock-fetch"),
        sync_process._locked_for_fetch(str(lock), progress),
    ):
        pytest.fail("it was locked by another process")
    assert progress.said == 3
    with sync_process._locked_for_fetch(str(lock), progress):
        pass


def test_the_uploads_of_an_earlier_job_are_waited_for_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sync_process, "_EARLIER_JOB_S", 0.5)
    lock, progress = tmp_path / "host.lock", Progress()
    with (
        locked(lock, str(2**22 + 1)),  # no process has such a pid
        pytest.raises(CheckpointError, match=r"earlier job has not ended in .*host\.lock"),
    ):
        sync_process._wait_for_earlier_job(str(lock), progress)
    assert progress.said > 0
    sync_process._wait_for_earlier_job(str(lock), progress)
