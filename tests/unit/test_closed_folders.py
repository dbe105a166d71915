"""Runs that belong to another user: they are named with their owner, and never left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.files import owner_name
from headrace.records.reader import closed_folders_in, find_run, runs_in
from headrace.records.run_folder import open_run_folder
from headrace.report.live.run_folders import RunFolders
from live_app_here import LiveApp
from other_user import as_other_user, folder_of_all_users


@pytest.fixture
def runs() -> Iterator[Path]:
    """A folder of runs: one that all may read, and two that are closed, one of them in a sweep."""
    with folder_of_all_users() as folder:
        for name in ("open", "closed", "sweep/1"):
            made = open_run_folder(run_dir=folder / name, name=None, script="t.py")
            made.start_attempt(command=["headrace", "run", "t.py"], argv=["t.py"], world_size=1)
        for path in [folder / "open", *(folder / "open").rglob("*"), folder / "sweep"]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        for name in ("closed", "sweep/1"):
            (folder / name).chmod(0)
        yield folder
        for name in ("closed", "sweep/1"):
            (folder / name).chmod(0o700)


def listed(runs: Path) -> str:
    """Return the list of runs as the live page's server answers with it."""
    return LiveApp(runs).get("/api/runs").text


def test_they_are_listed_with_their_owner_beside_those_that_can_be_read(runs: Path):
    found = json.loads(as_other_user(lambda: listed(runs)))
    faults = {run["name"]: run["fault"] for run in found["runs"]}
    assert faults.keys() == {"open", "closed", "sweep/1"}
    assert faults["open"] == ""
    for name in ("closed", "sweep/1"):
        assert f"belongs to {owner_name(runs)} and is closed to other users" in faults[name]
        assert f"chmod -R a+rX {runs / name}" in faults[name]


def test_one_that_is_asked_for_by_its_name_or_path_is_said_to_be_closed(runs: Path):
    for asked in (
        lambda: str(find_run("closed", str(runs))),
        lambda: str(find_run(str(runs / "sweep" / "1"), str(runs))),
        lambda: str(find_run("closed/records/attempt-1", str(runs))),
        lambda: str(RunFolders(runs).split("closed/charts/heatmap")),
        lambda: str(RunFolders(runs).split("sweep/1")),
        lambda: str(RunFolders(runs).find(["open", "closed"])),
        lambda: str(RunFolders(runs).find(["sweep/1", "open"])),
    ):
        said = as_other_user(asked)
        assert said.startswith("RecordsError: ")
        assert "is closed to other users" in said
    assert as_other_user(lambda: str(find_run("open", str(runs)))) == str(runs / "open")
    assert as_other_user(lambda: str(find_run("no/run", str(runs)))).startswith("UsageError: ")
    missing = as_other_user(lambda: str(RunFolders(runs).find(["open", "none"])))
    assert missing.startswith("UsageError: There is no run 'none'")


def test_a_folder_of_runs_that_is_closed_is_no_empty_one(runs: Path):
    runs.chmod(0)
    said = as_other_user(lambda: str(find_run(None, str(runs))))
    runs.chmod(0o755)
    assert said.startswith("RecordsError: ")
    assert str(runs) in said


def test_their_owner_sees_no_closed_ones(runs: Path):
    for name in ("closed", "sweep/1"):
        (runs / name).chmod(0o700)
    assert closed_folders_in(runs) == []
    assert len(runs_in(runs)) == 3
