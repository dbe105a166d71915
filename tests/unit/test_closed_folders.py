"""Runs that belong to another user: they are named with their owner, and never left out."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.core.files import owner_name
from headrace.records.layout import RINGS
from headrace.records.outbox import SentLine
from headrace.records.reader import Records, closed_folders_in, find_run, runs_in
from headrace.records.ring import RingWriter
from headrace.records.run_folder import open_run_folder
from headrace.records.schema import FETCHES
from headrace.records.sent_rows import SentRowsWriter
from headrace.report.live.run_folders import RunFolders
from live_app_here import LiveApp
from other_user import as_other_user, folder_of_all_users
from records_folders import collector_of, kill
from run_tables import row_of


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


@pytest.fixture
def opened() -> Iterator[Path]:
    """The folder of a run that its user has opened to all."""
    before = os.umask(0o022)
    try:
        with folder_of_all_users() as folder:
            yield folder
    finally:
        os.umask(before)


def write_some(run: Path, ring: str, count: int) -> None:
    """Write rows of a rank into a ring, which the collector may drain."""
    writer = RingWriter(Records(run, 1).folder / RINGS / f"{ring}.ring")
    for number in range(count):
        writer.write(FETCHES, *row_of(FETCHES, rank=number))


def read(run: Path) -> str:
    """Return whether a run goes on, how many rows are found, and the kinds of its events."""
    records = Records(run, 1)
    kinds = records.table("events").column("kind").to_pylist()
    return json.dumps([records.live, records.table("fetches").num_rows, kinds])


@contextmanager
def collected(run: Path) -> Iterator[None]:
    """Have a process collect a run's records: 2 rows in its store, 3 in a ring, 1 of a host."""
    context = multiprocessing.get_context("fork")
    has_begun, is_over = context.Event(), context.Event()

    def collect() -> None:
        collector = collector_of(run)
        write_some(run, "drained", 2)
        collector.drain()
        write_some(run, "not-drained", 3)
        rows = {str(FETCHES.number): [row_of(FETCHES, rank=9)]}
        sent = SentLine(1, json.dumps({"tables": rows, "system": []}))
        SentRowsWriter(collector.folder / RINGS, 2).add([sent], 0)
        has_begun.set()
        is_over.wait(60)

    process = context.Process(target=collect, daemon=True)
    process.start()
    try:
        assert has_begun.wait(60)
        yield
    finally:
        is_over.set()
        process.join()


def test_a_run_that_goes_on_is_to_others_as_to_its_user(opened: Path):
    with collected(opened):
        assert read(opened) == json.dumps([True, 6, []])
        assert as_other_user(lambda: read(opened)) == json.dumps([True, 6, []])
    assert as_other_user(lambda: read(opened)) == json.dumps([False, 6, []])


@pytest.mark.parametrize("file", ["rings/not-drained.ring", "rings/host-2-000001.rows"])
def test_what_others_may_not_read_is_named_and_costs_nothing_else(opened: Path, file: str):
    """Files of earlier versions are their user's alone."""
    with collected(opened):
        (Records(opened, 1).folder / file).chmod(0)
        is_live, rows, kinds = json.loads(as_other_user(lambda: read(opened)))
    assert (is_live, rows) == (True, 3 if file.endswith("ring") else 5)
    assert kinds == ["probe-fault"]


def test_a_store_that_is_closed_is_read_where_nothing_can_be_written(opened: Path):
    """As where the disk was full at the job's end, and its records stayed as they were."""
    collector = collector_of(opened)
    write_some(opened, "drained", 3)
    collector.drain()
    kill(collector)
    folder = collector.folder
    assert not list(folder.glob("*-wal"))
    for path in (folder, folder / RINGS):
        path.chmod(0o555)
    assert as_other_user(lambda: read(opened)) == json.dumps([False, 3, []])
    for path in (folder, folder / RINGS):
        path.chmod(0o755)
