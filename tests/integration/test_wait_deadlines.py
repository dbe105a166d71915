"""Waits for processes that are stopped or stuck: each ends with an error that says what to do."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from PIL import Image

from headrace.core.errors import DatasetError, LaunchError, StorageError
from headrace.core.process import sidecar
from headrace.core.process.process_kill import run_within
from headrace.core.process.sidecar import request_line
from headrace.data.channels import sidecar_client
from headrace.data.channels.copy import fetcher
from headrace.data.channels.mount import mount_program
from headrace.data.channels.sidecar_client import ChannelRequest, ChannelSidecar, ChannelsRequest
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions
from headrace.jobs import requirements
from jobs import DEADLINE_S, alive
from jobs_here import run_job
from machine import needs

HEARTS = """
from headrace.core.process import sidecar
sidecar._HEARTBEAT_S = 0.01

def main(parent):
    with parent.heartbeats():
        parent.read()
    parent.send({"answer": 1})

sidecar.run_sidecar(main)
"""


@contextmanager
def stopped_at_once(named: str) -> Iterator[list[int]]:
    """Stop each new child of this process whose command line has the name, before it can answer."""
    is_over, stopped = threading.Event(), []

    def watch() -> None:
        while not is_over.wait(0.002):
            for child in psutil.Process().children(recursive=True):
                try:
                    if child.pid not in stopped and any(named in word for word in child.cmdline()):
                        child.suspend()
                        stopped.append(child.pid)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield stopped
    finally:
        is_over.set()
        thread.join(DEADLINE_S)
        for pid in stopped:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)


def requested(tmp_path: Path) -> ChannelsRequest:
    channel = ChannelRequest(name="train", url=str(tmp_path), folder=str(tmp_path / "cache"))
    return ChannelsRequest(channels=(channel,))


@pytest.mark.parametrize("module", ["listing", "copy.trees", "pipe.epoch_pipes"])
def test_a_stopped_process_of_channels_is_named_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
):
    monkeypatch.setattr(sidecar_client, "SILENCE_S", 0.3)
    asked = ChannelSidecar(module, requested(tmp_path))
    os.kill(asked.pid, signal.SIGSTOP)
    with pytest.raises(LaunchError, match=rf"process {asked.pid} has said nothing for 0 s.*again"):
        asked.answer()
    assert not alive(asked.pid)


def test_a_stopped_process_that_counts_channels_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one").write_bytes(b"1")
    (tmp_path / "train.py").touch()
    monkeypatch.setattr("headrace.data.channels.sizes.SILENCE_S", 1.0)
    with stopped_at_once("headrace.data.channels.sizes") as stopped:
        done = run_job(
            tmp_path, "--dry-run", "--contract=sagemaker", "--channel=train=data", "train.py"
        )
    assert stopped
    assert done.returncode != 0
    assert "The channels cannot be counted: process" in done.stderr


def test_a_stopped_process_that_fetches_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetcher, "SILENCE_S", 0.3)
    share = fetcher.FetchShare(
        base=str(tmp_path), inner="", tree=str(tmp_path / "tree"), cache=str(tmp_path), objects=()
    )
    with (
        stopped_at_once("headrace.data.channels.copy.fetcher"),
        fetcher.fetch_in_processes([share], fetcher.CopyCounts()) as works,
        pytest.raises(StorageError, match=r"does not answer: process \d+ has said nothing"),
    ):
        works[0].result(DEADLINE_S)


def test_heartbeats_come_while_the_answer_is_worked_for(tmp_path: Path):
    (tmp_path / "hearts.py").write_text(HEARTS)
    program = subprocess.Popen(
        [sys.executable, tmp_path / "hearts.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(request_line({}))
    program.stdin.flush()
    assert [json.loads(program.stdout.readline()) for _ in range(3)] == 3 * [{"alive": True}]
    last = program.communicate(timeout=DEADLINE_S)[0].splitlines()[-1]
    assert json.loads(last) == {"answer": 1}


def test_heartbeats_are_no_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "hearts.py").write_text(HEARTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked = sidecar.Sidecar("hearts", {})
    threading.Timer(0.2, asked.send, [{}]).start()
    assert asked.receive(DEADLINE_S) == {"answer": 1}
    assert asked.last_words() == "exit code 0"


WAITS = """
from headrace.core.process import sidecar
sidecar._POLL_S = 0.01
reader = sidecar.MessageReader(0)
print("waits", flush=True)
print(reader.wait(2.0), flush=True)
"""


def test_time_for_which_a_whole_job_was_stopped_is_no_silence():
    program = subprocess.Popen(
        [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "waits\n"
    os.kill(program.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, program.pid, os.WSTOPPED)
    threading.Event().wait(2.5)  # longer than it waits
    os.kill(program.pid, signal.SIGCONT)
    threading.Event().wait(0.3)  # what writes goes on later
    said, _ = program.communicate("{}\n", timeout=DEADLINE_S)
    assert said == "True\n"


def test_a_packing_worker_that_is_stopped_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = "headrace.data.shards.task_pool"
    for limit, seconds in (("_POLL_S", 0.1), ("_END_S", 0.1), ("_START_S", 0.5)):
        monkeypatch.setattr(f"{module}.{limit}", seconds)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.jpg").write_bytes(b"1")
    with (
        stopped_at_once("multiprocessing.spawn") as stopped,
        pytest.raises(
            DatasetError, match=r"has said nothing for 0 s at .*Was it stopped"
        ) as silent,
    ):
        pack(str(tmp_path / "data"), str(tmp_path / "packed"), PackOptions(workers=1))
    pid = int(str(silent.value).split()[2])
    assert pid in stopped
    assert not alive(pid)


SLOW_MAIN = """
import threading
from headrace.data.shards import task_pool
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions

task_pool._POLL_S, task_pool._HEARTBEAT_S, task_pool._SILENCE_S = 0.01, 0.02, 0.5
if __name__ == "__main__":
    print(pack("data", "packed", PackOptions(workers=1)).url)
else:
    threading.Event().wait(1.5)  # as imports from a slow disk
"""


def test_a_packing_worker_may_take_long_to_import_the_main_module(tmp_path: Path):
    (tmp_path / "data" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "data" / "cat" / "one.jpg")
    (tmp_path / "main.py").write_text(SLOW_MAIN)
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_stopped_installer_of_requirements_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "requirements.txt").write_text("no-such-package-here\n")
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr(requirements, "_SILENCE_S", 1.0)
    with stopped_at_once("headrace.cluster.requirements_installer") as stopped:
        done = run_job(
            tmp_path, "--contract=sagemaker", "--requirements=requirements.txt", "train.py"
        )
    assert stopped
    assert done.returncode != 0
    assert "its installer said nothing for 1 s, and was killed" in done.stderr


def test_an_unmount_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    program = tmp_path / "fusermount3"
    program.write_text("#!/bin/sh\nexec sleep 3600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 2 0:3 / {tmp_path}/mount rw - fuse x rw\n")
    monkeypatch.setattr(mount_program, "_MOUNTED", mounts)
    monkeypatch.setattr(mount_program, "_UNMOUNT_S", 0.1)
    mount_program.unmount(tmp_path / "mount")
    said = capfd.readouterr().err
    assert f"{tmp_path}/mount is still mounted" in said
    assert f"Run `{program} -u -z {tmp_path}/mount`" in said


FUSE_INIT, FUSE_VERSION = 26, (7, 31)


@contextmanager
def unanswered_mount(folder: Path) -> Iterator[None]:
    """Mount a file system that answers nothing but its first request: see fuse(4)."""
    folder.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    assert libc.mount(b"silent", bytes(folder), b"fuse", 0, options) == 0, ctypes.get_errno()
    try:
        _, asked, number = struct.unpack_from("<IIQ", os.read(device, 2**20))
        assert asked == FUSE_INIT
        answer = struct.pack("<IIIIHHII", *FUSE_VERSION, 2**16, 0, 12, 10, 4096, 1).ljust(64, b"\0")
        os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, number) + answer)
        reader = threading.Thread(target=os.read, args=(device, 2**20), daemon=True)
        reader.start()  # a request that nobody has read can be interrupted
        yield
    finally:
        libc.umount2(bytes(folder), 1 | 2)  # by force, and once nobody uses it
        os.close(device)


@needs("fuse", "disks")
def test_a_program_that_no_signal_ends_is_left_behind(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    with unanswered_mount(tmp_path / "silent"), pytest.raises(subprocess.TimeoutExpired):
        run_within(["stat", str(tmp_path / "silent")], 0.5, kill_s=0.2)
    assert "was killed and has not ended within 0 s" in capfd.readouterr().err


def test_a_program_that_ends_in_time_is_told_with_its_output():
    done = run_within(["sh", "-c", "echo out; echo err >&2; exit 3"], DEADLINE_S)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
