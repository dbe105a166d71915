"""Packing that is killed: it goes on where it was, and gives the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions
from headrace.data.storage import open_store
from headrace.data.transforms.decode import decode_member
from image_trees import class_folders, contents, jpeg, write

OPTIONS = PackOptions(shard_bytes=10_000, keep_order=True, workers=2)
SCRIPT = Path(__file__).parents[1] / "scripts" / "gated_pack.py"


def start(source: Path, destination: Path | str) -> tuple[subprocess.Popen[str], int]:
    """Start packing; return it and its worker once that has come to the gate."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(source), str(destination)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    return process, int(process.stdout.readline())


def gated_source(folder: Path) -> Path:
    source = class_folders(folder, each=12)
    write(source, {"dog/dog_008.JPEG": jpeg(7) + b"GATE"})
    return source


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gated_source(tmp_path_factory.mktemp("gated") / "src")


@pytest.fixture(scope="module")
def whole(source: Path) -> dict[str, bytes]:
    """What a packing that nobody ends makes of the source."""
    destination = source.with_name("whole")
    pack(str(source), str(destination), OPTIONS, check=decode_member)
    return contents(destination)


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in folder.glob("*.tar")
    }


def test_after_kill_9_the_same_command_goes_on_behind_the_finished_shards(tmp_path, source, whole):
    destination = tmp_path / "dst"
    process, _ = start(source, destination)
    process.kill()
    process.communicate()  # returns when the worker, which holds the pipe too, is gone
    finished = identities(destination)
    assert len(finished) >= 3
    assert "manifest.json" not in contents(destination)

    reports = []
    pack(str(source), str(destination), OPTIONS, check=decode_member, progress=reports.append)
    assert max(report.resumed for report in reports) >= 3
    assert contents(destination) == whole
    after = identities(destination)
    assert {name: after[name] for name in finished} == finished


def test_a_packing_into_a_bucket_goes_on_after_kill_9_too(source, s3_url, whole):
    bucket = open_store(s3_url)
    process, _ = start(source, s3_url)
    process.kill()
    process.communicate()
    finished = {info.path for info in bucket.list() if info.path.endswith(".tar")}
    assert len(finished) >= 3
    assert "manifest.json" not in {info.path for info in bucket.list()}

    reports = []
    pack(str(source), s3_url, OPTIONS, check=decode_member, progress=reports.append)
    assert max(report.resumed for report in reports) >= 3
    there = {info.path: bytes(bucket.get(info.path)) for info in bucket.list()}
    assert there == whole


def test_a_killed_worker_ends_the_packing_with_its_signal_and_shard(tmp_path, source):
    destination = tmp_path / "dst"
    process, worker = start(source, destination)
    os.kill(worker, signal.SIGKILL)
    _, error = process.communicate()
    assert process.returncode == 1
    assert f"Worker process {worker} was killed by SIGKILL at {destination}/0" in error
    assert "Traceback" not in error


def test_a_source_that_changed_meanwhile_is_reported(tmp_path):
    source, destination = gated_source(tmp_path / "src"), tmp_path / "dst"
    process, _ = start(source, destination)
    process.kill()
    process.communicate()
    write(source, {"cat/new.jpg": jpeg(8)})
    again = subprocess.run(
        [sys.executable, str(SCRIPT), str(source), str(destination)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert again.returncode == 1
    assert "holds an unfinished packing of other options, or its source has changed" in again.stderr
