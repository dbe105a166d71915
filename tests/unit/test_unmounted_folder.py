"""Files that a job leaves where its platform would have mounted storage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.process.mount_namespace import namespace_command
from headrace.jobs.environment.unmounted_folder import UnmountedFolder
from machine import needs


def folder(root: Path, *own: Path) -> UnmountedFolder:
    return UnmountedFolder(root, own, host="algo-1", remedy="Write elsewhere.")


def write(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_a_folder_that_the_job_makes_is_lost_with_all_in_it(tmp_path: Path):
    seen = folder(tmp_path / "gcs")
    assert seen.loss() is None
    (tmp_path / "gcs" / "bucket" / "model").mkdir(parents=True)
    assert seen.loss() is None  # nothing is in it
    model = write(tmp_path / "gcs" / "bucket" / "model" / "model.pt")
    loss = seen.loss() or ""
    assert loss.startswith(f"algo-1: 1 file was written below {tmp_path}/gcs, ")
    assert f": {model}. " in loss
    assert loss.endswith(" Write elsewhere.")
    for number in range(7):
        write(model.with_name(f"{number}.pt"))
    loss = seen.loss() or ""
    assert "8 files were written" in loss
    assert "and 3 more" in loss


@pytest.mark.parametrize("is_link", [False, True])
def test_what_was_there_before_is_none_of_the_jobs(tmp_path: Path, is_link: bool):
    root = tmp_path / "gcs"
    if is_link:
        (tmp_path / "disk").mkdir()
        root.symlink_to(tmp_path / "disk")
    old, other = write(root / "bucket" / "old.pt", "1"), write(root / "other.pt", "1")
    seen = folder(root)
    assert seen.loss() is None
    other.unlink()
    old.read_text()
    assert seen.loss() is None
    write(old, "2")  # as long as before
    os.utime(old, ns=(1, 1))
    assert f": {old.resolve()}. " in (seen.loss() or "")


def test_folders_that_the_user_put_there_are_no_loss(tmp_path: Path):
    root = tmp_path / "gcs"
    seen = folder(root, root / "bucket" / "runs" / "a", root / "out")
    write(root / "bucket" / "runs" / "a" / "output" / "model" / "model.pt")
    write(root / "out" / "model.tar.gz")
    assert seen.loss() is None
    assert folder(root, root).loss() is None
    write(root / "bucket" / "runs" / "model.pt")
    assert "1 file was" in (seen.loss() or "")


IN_A_BUCKET = """
import sys
from pathlib import Path
from headrace.jobs.environment.unmounted_folder import UnmountedFolder
root = Path(sys.argv[1])
seen = UnmountedFolder(root, [], host="algo-1", remedy="")
(root / "bucket" / "model").mkdir()
(root / "bucket" / "model" / "model.pt").touch()
print(seen.loss())
(root / "other.pt").touch()
print(seen.loss())
"""


@needs("mounts")
def test_a_bucket_that_the_system_mounts_keeps_its_files(tmp_path: Path):
    root, bucket = tmp_path / "gcs", tmp_path / "bucket"
    (root / "bucket").mkdir(parents=True)
    bucket.mkdir()
    command = [sys.executable, "-c", IN_A_BUCKET, str(root)]
    command = namespace_command(sys.executable, {str(root / "bucket"): str(bucket)}, command)
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    nothing, loss = ended.stdout.splitlines()
    assert nothing == "None"
    assert f"1 file was written below {root}, where nothing is mounted: {root}/other.pt" in loss
    assert (bucket / "model" / "model.pt").exists()
