"""Channels in modes FastFile and Mount: folders at once, whose files come as they are wanted."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.data.channels.mount.mount_program import is_mounted
from headrace.data.storage import open_store
from jobs import alive, descendants, eventually, started
from jobs_here import run_job
from machine import needs

pytestmark = needs("fuse")
SCRIPT = """
import os, pathlib
folder = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*")
         if path.is_file()}
print("read", os.environ["SM_CURRENT_HOST"], sorted(files.items()), flush=True)
"""
SAGEMAKER = ("--profile", "off", "--run-dir", "r", "--contract", "sagemaker")


@pytest.fixture
def train(s3_url: str) -> str:
    for name in ("a.txt", "deep/b.txt"):
        open_store(s3_url).put(name, name.encode())
    return f"--channel=train={s3_url}"


@pytest.mark.parametrize(
    ("flags", "ranks"),
    [
        (["--input-mode=train=Mount"], []),
        (["--input-mode=FastFile"], ["--nproc-per-node=2"]),
    ],
)
def test_files_of_a_bucket_are_read_through_a_mount_that_ends_with_the_job(
    job: Path, train: str, flags: list[str], ranks: list[str]
) -> None:
    ended = run_job(job, *SAGEMAKER, *flags, *ranks, train, "train.py")
    assert ended.returncode == 0, ended.stderr
    line = "read algo-1 [('a.txt', 'a.txt'), ('deep/b.txt', 'deep/b.txt')]\n"
    assert ended.stdout.count(line) == max(1, 2 * len(ranks))
    mounts = job / "r" / "hosts" / "algo-1" / "mounts"
    assert json.loads((mounts / "train.json").read_text())["program"] == "rclone"
    assert not is_mounted(mounts / "train")
    config = job / "r" / "hosts" / "algo-1" / "ml" / "input" / "config" / "inputdataconfig.json"
    assert (
        json.loads(config.read_text())["train"]["TrainingInputMode"] == "File"
    )  # as SageMaker gives it


def test_an_object_that_is_replaced_meanwhile_is_reported(
    job: Path, s3_url: str, train: str
) -> None:
    (job / "train.py").write_text(
        "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n"
    )
    with started(job, *SAGEMAKER, "--input-mode=Mount", train, "train.py") as process:
        eventually(lambda: has_looked(process.pid), "the first look")
        open_store(s3_url).put("a.txt", b"another one")
        (job / "go").touch()
        assert process.wait(60) == 0
    output = (job / "terminal").read_text()
    assert "warning: channel train: 1 object was replaced or removed at s3://" in output
    assert output.rstrip().endswith(": a.txt")


def test_what_a_job_reads_of_a_cache_is_of_the_objects_as_they_are_listed(
    job: Path, s3_url: str, train: str
) -> None:
    caches = []
    for content in (b"a.txt", b"a.txt", b"other"):
        if caches[1:] or not caches:
            open_store(s3_url).put("a.txt", content)
        ended = run_job(job, *SAGEMAKER, "--input-mode=Mount", train, "train.py")
        assert f"[('a.txt', {content.decode()!r}), " in ended.stdout, ended.stderr
        mount = json.loads((job / "r/hosts/algo-1/mounts/train.json").read_text())
        caches += [word for word in mount["command"] if word.startswith("--cache-dir=")]
    assert caches[0] == caches[1] != caches[2]


def test_what_is_no_folder_s_is_copied(job: Path, s3_url: str) -> None:
    """A mount would show a/x alone; on SageMaker both are there, as a channel is a key prefix."""
    for name in ("a/x", "a-b.txt", "b"):
        open_store(s3_url).put(name, name.encode())
    flags = ("--input-mode=FastFile", f"--channel=train={s3_url}/a", "train.py")
    ended = run_job(job, *SAGEMAKER, *flags)
    assert "read algo-1 [('a-b.txt', 'a-b.txt'), ('x', 'a/x')]\n" in ended.stdout, ended.stderr
    assert (
        "copied (mode File), as it cannot be mounted here: a-b.txt is not in a folder"
        in ended.stderr
    )
    assert "is the beginning of keys, as on SageMaker, so that it has a-b.txt too" in ended.stderr


def has_looked(pid: int) -> bool:
    """Whether the process that looks for changes waits for its standard input once more."""
    for below in descendants(pid):
        with suppress(OSError):
            if b"channels.listing" in Path(f"/proc/{below}/cmdline").read_bytes():
                return Path(f"/proc/{below}/syscall").read_text().split()[1:2] == ["0x0"]
    return False


def test_hosts_share_a_mounted_channel(job: Path, train: str) -> None:
    url = train.partition("=train=")[2]
    spec = json.dumps({"uri": url, "mode": "FastFile", "distribution": "ShardedByS3Key"})
    ended = run_job(job, *SAGEMAKER, "--group=gpu=2", f"--channel=train={spec}", "train.py")
    assert ended.returncode == 0, ended.stderr
    assert "read algo-1 [('a.txt', 'a.txt')]\n" in ended.stdout
    assert "read algo-2 [('deep/b.txt', 'deep/b.txt')]\n" in ended.stdout


def test_where_nothing_can_be_mounted_the_channel_is_copied_and_that_is_reported(
    job: Path, train: str
) -> None:
    (job / "bin").mkdir()
    for name in ("sh", "env", "true"):
        (job / "bin" / name).symlink_to(shutil.which(name) or "")
    ended = run_job(
        job, *SAGEMAKER, "--input-mode=FastFile", train, "train.py", PATH=str(job / "bin")
    )
    assert ended.returncode == 0, ended.stderr
    assert "read algo-1 [('a.txt', 'a.txt'), ('deep/b.txt', 'deep/b.txt')]\n" in ended.stdout
    assert "channel train is copied (mode File), as it cannot be mounted here: " in ended.stderr


def test_a_url_with_nothing_below_it_is_refused(job: Path, train: str) -> None:
    ended = run_job(job, *SAGEMAKER, "--input-mode=Mount", f"{train}/none", "train.py")
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert "it has nothing below it. Name a URL that holds data" in ended.stderr


def test_kill_9_of_a_job_leaves_no_mount(job: Path, train: str) -> None:
    (job / "train.py").write_text(
        "import os, pathlib, signal\n"
        "file = open(os.environ['SM_CHANNEL_TRAIN'] + '/a.txt')\n"
        "pathlib.Path(os.environ['SM_OUTPUT_DATA_DIR'], 'begun').touch()\n"
        "signal.pause()\n"
    )
    host = job / "r" / "hosts" / "algo-1"
    with started(job, *SAGEMAKER, "--input-mode=Mount", train, "train.py") as launched:
        eventually((host / "ml" / "output" / "data" / "begun").exists, "a script that reads")
        everyone = descendants(launched.pid)
        os.kill(launched.pid, signal.SIGKILL)
        eventually(lambda: not any(map(alive, everyone)), "the end of all")
        eventually(lambda: not is_mounted(host / "mounts" / "train"), "the end of the mount")
