"""A training process that Ray has started on another machine than its run's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.bootstrap.process_start import is_on_another_machine
from headrace.cluster.host_identity import host_id
from headrace.core.errors import LaunchError
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.records.layout import RINGS
from headrace.records.live_switch import create_live_switch
from headrace.records.records_link import RecordsLink
from jobs import clean_environment
from other_user import as_other_user, folder_of_all_users
from recorded import SCRIPTS

TRAINS = """
import torch
from points import Descent
weight = torch.nn.Parameter(torch.ones(1))
optimizer = Descent([weight])
for _ in range(3):
    weight.sum().backward()
    optimizer.step()
"""


def records_folder(path: Path) -> Path:
    """Make a folder in which an attempt is recorded, and return that of its rings."""
    (path / RINGS).mkdir(parents=True)
    create_live_switch(path, interval_s=0.5)
    return path / RINGS


def train(folder: Path, records: Path, boot: str, link: str = "") -> tuple[int, int]:
    """Train; return how often it was said that it is not recorded, and how many rings there are."""
    (folder / "train.py").write_text(TRAINS)
    source = str(Path(SITECUSTOMIZE_DIR).parents[2])
    ended = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(
            HEADRACE_RECORDS_DIR=str(records),
            HEADRACE_RECORDS_BOOT=boot,
            HEADRACE_RECORDS_LINK=link,
            TMPDIR=str(folder),
            RANK="3",
            PYTHONPATH=f"{SITECUSTOMIZE_DIR}:{source}:{SCRIPTS}",
        ),
    )
    return ended.stderr.count("rank 3 trains on"), len(list(folder.rglob("*.ring")))


def test_it_says_once_that_it_is_not_recorded_and_writes_nothing(tmp_path: Path):
    records_folder(tmp_path / "records")
    assert train(tmp_path, tmp_path / "records", "another") == (1, 0)
    assert train(tmp_path, tmp_path / "records", host_id()) == (0, 1)


def test_it_is_recorded_where_a_link_of_its_user_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    link = RecordsLink("of-the-job")
    rings = records_folder(tmp_path / "here")
    link.make(tmp_path / "here")
    with pytest.raises(LaunchError, match="cannot be made"):
        link.make(tmp_path / "here")
    assert train(tmp_path, tmp_path / "there", "another", link.name) == (0, 1)
    assert len(list(rings.glob("*.ring"))) == 1
    assert train(tmp_path, tmp_path / "there", "another", "of-another-job") == (1, 1)
    link.remove()
    assert train(tmp_path, tmp_path / "there", "another", link.name) == (1, 1)


def test_a_link_that_another_user_made_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with folder_of_all_users() as folder:
        folder.chmod(0o777)
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        link = RecordsLink("of-the-job")
        if os.geteuid() == 0:
            as_other_user(lambda: str(link.make(folder)))
            assert link.path.is_symlink()
            assert link.find() is None
            link.remove()
        link.make(folder)
        assert link.find() == folder


def test_where_a_run_s_records_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for boot, folder, is_another in (
        ("another", tmp_path, True),
        (host_id(), tmp_path / "of another container", True),
        (host_id(), tmp_path, False),
        ("", tmp_path, False),  # a disk that machines share
    ):
        monkeypatch.setenv("HEADRACE_RECORDS_DIR", str(folder))
        monkeypatch.setenv("HEADRACE_RECORDS_BOOT", boot)
        assert is_on_another_machine() is is_another
