"""Scripts for Vertex AI that name paths below /gcs: their buckets are there, as they are there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.process.mount_namespace import can_bind_mount, namespace_command
from headrace.data.channels.mount.mount_program import is_mounted
from jobs_here import run_job
from machine import needs
from services.object_servers import GoogleHandler, ObjectServer, StoredObject, object_server

pytestmark = needs("fuse", "mounts")
SCRIPT = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[-1].replace("gs://", "/gcs/"))
print("read", sorted((path.name, path.read_text()) for path in folder.iterdir()), os.getcwd(),
      flush=True)
"""
VERTEX = ("--profile", "off", "--run-dir", "r", "--contract", "vertex")


@pytest.fixture
def cloud() -> Iterator[ObjectServer]:
    with object_server(GoogleHandler) as server:
        yield server


@pytest.fixture
def job(job: Path, cloud: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.endpoint)
    for name in ("a.txt", "b.txt"):
        stored = StoredObject(data=name.encode(), etag=f'"{name}"', modified="")
        cloud.objects[f"photos/train/{name}"] = stored
    return job


@pytest.mark.parametrize(
    ("ranks", "argument"),
    [([], "/gcs/photos/train"), (["--nproc-per-node=1"], "gs://photos/train")],
)
def test_a_bucket_that_an_argument_names_is_a_folder(
    job: Path, ranks: list[str], argument: str
) -> None:
    ended = run_job(job, *VERTEX, *ranks, "train.py", "--data", argument)
    assert f"read [('a.txt', 'a.txt'), ('b.txt', 'b.txt')] {job}\n" in ended.stdout, ended.stderr
    assert not Path("/gcs").exists()
    assert not is_mounted(job / "r" / "hosts" / "workerpool0-0" / "buckets" / "photos")


def test_a_bucket_that_the_script_or_a_hyperparameter_names_is_a_folder(job: Path) -> None:
    (job / "train.py").write_text(SCRIPT.replace("sys.argv[-1]", "'/gcs/photos/train'"))
    assert run_job(job, *VERTEX, "train.py").stdout.startswith("read [('a.txt'")
    (job / "train.py").write_text(SCRIPT.replace("sys.argv[-1]", "sys.argv[-1].split('=')[-1]"))
    ended = run_job(job, *VERTEX, "--hyperparameter", "data=/gcs/photos/train", "train.py")
    assert ended.stdout.startswith("read [('a.txt'"), ended.stderr


def test_where_nothing_can_be_mounted_it_is_reported(job: Path) -> None:
    (job / "bin").mkdir()
    for name in ("sh", "env", "true"):
        (job / "bin" / name).symlink_to(shutil.which(name) or "")
    (job / "train.py").write_text("print('ran')\n")
    flags = [*VERTEX, "train.py", "/gcs/photos/train"]
    ended = run_job(job, *flags, PATH=str(job / "bin"))
    assert ended.stdout == "ran\n"
    assert "/gcs/photos is not there, as it would be on Vertex AI: this host has no" in ended.stderr


def test_paths_of_other_folders_name_no_bucket(job: Path) -> None:
    (job / "train.py").write_text("print('ran')\n")
    ended = run_job(
        job, *VERTEX, "train.py", "/data/gcs/photos", "my/gcs/photos", "/gcs", "/gcs/.."
    )
    assert ended.stdout == "ran\n"
    assert "/gcs" not in ended.stderr
    assert not (job / "r" / "hosts" / "workerpool0-0" / "buckets").exists()


def test_a_folder_of_the_root_can_be_placed() -> None:
    assert can_bind_mount("/headrace-test/deep")
    assert not Path("/headrace-test").exists()


FOLDERS_AT_ROOT = """
import json, os
found = {entry.name: entry for entry in os.scandir("/") if entry.is_dir()}
live = {"proc", "sys", "dev", "run", "tmp"}
print(json.dumps({name: sorted(os.listdir(f"/{name}")) for name in found.keys() - live}))
"""


def test_a_new_folder_at_the_root_leaves_all_others_as_they_are(tmp_path: Path):
    """The root is then made anew upon one of its folders, which must not be hidden by it."""
    command = [sys.executable, "-c", FOLDERS_AT_ROOT]
    places = {f"/headrace-new-{os.getpid()}/below": str(tmp_path)}
    plain, placed = (
        subprocess.run(each, stdout=subprocess.PIPE, text=True, check=True).stdout
        for each in (command, namespace_command(sys.executable, places, command))
    )
    new = json.loads(placed)
    assert new.pop(f"headrace-new-{os.getpid()}") == ["below"]
    assert new == json.loads(plain)
