"""What is recorded of workers on auxiliary hosts, and what the model makes of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace import open_run
from headrace.observe.whatif.measured_pipeline import measure
from headrace.records.reader import open_records
from headrace.report.page import write_report
from jobs import headrace
from offload_servers import OffloadServers

SCRIPTS = Path(__file__).parents[1] / "scripts"
pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Recorded:
    """What a run has left: its folder, and how many batches were made where, by loader."""

    folder: Path
    made: dict[str, int]  # of the map-style loader
    iterated: dict[str, int]


def ran(folder: Path, *words: str) -> Recorded:
    """Run `offload_recorded.py` with two auxiliary hosts."""
    shutil.copy(SCRIPTS / "offload_recorded.py", folder)
    servers = OffloadServers(folder)
    servers.partitions = 2
    try:
        servers.start("one", 2)
        servers.start("two", 1)
        ended = subprocess.run(
            headrace("run", "--run-dir", "r", *words), cwd=folder, env=servers.environment(),
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    finally:
        servers.close()
    assert ended.returncode == 0, ended.stderr
    made: list[dict[str, int]] = [
        json.loads(match) for match in re.findall(r"(?:made|iterated) (\{.*\})", ended.stdout)
    ]
    return Recorded(folder / "r", *made, *[{}] * (2 - len(made)))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return ran(tmp_path_factory.mktemp("recorded"), "offload_recorded.py", "3", "iterable")


def test_batches_of_other_hosts_are_recorded_by_host_worker_and_transform(recorded: Recorded):
    run, made = open_run(recorded.folder), recorded.made
    arrivals = run.arrivals[run.arrivals["loader"] == 0]
    came = arrivals[arrivals["counted"] == 1].groupby("host").size()
    assert {host: came[host] for host in ("one", "two")} == {
        host: made[host] for host in ("one", "two")
    }, "those that were made here as well, and came later, do not count"
    assert len(run.workers) >= made["here"]

    workers = run.auxiliary_workers
    workers = workers[workers["loader"] == 0]
    assert set(workers["host"]) == {"one", "two"}
    assert set(workers[workers["host"] == "one"]["worker"]) == {0, 1}
    assert (workers["wall_ns"] >= 4 * 5_000_000).all(), "each batch waits 4 times 5 ms"
    assert (workers["samples"] == 4).all()
    began_ns, ended_ns = run.steps["start_ns"].min(), run.steps["start_ns"].max()
    assert ((workers["start_ns"] > began_ns - 30e9) & (workers["start_ns"] < ended_ns)).all()

    parts_ns = arrivals["queued_ns"] + arrivals["making_ns"] + arrivals["receive_ns"]
    assert (parts_ns <= arrivals["wall_ns"]).all(), "parts of one time"
    assert (arrivals["size_bytes"] >= 4 * 64 * 4).all(), "four samples of 64 floats"

    timed = run.auxiliary_transforms.groupby("name")[["calls", "wall_ns"]].sum()
    waiting = timed.loc["Samples.transforms[0]: wait_a_little"]
    assert waiting["wall_ns"] >= 5_000_000 * waiting["calls"]
    assert "Samples.transforms[1]: Turned" in timed.index
    assert not set(run.events["kind"]) & {"probe-fault", "dropped-records"}

    measured = measure(open_records(recorded.folder))
    assert measured is not None
    assert measured.pipeline.auxiliary in (1, 2, 3), "its cores, on average"
    assert measured.pipeline.takes_next

    page = write_report(recorded.folder).read_text()
    assert "Auxiliary hosts" in page
    assert "Samples.transforms[0]: wait_a_little" in page


def test_of_a_short_iterable_loader_all_is_recorded(recorded: Recorded):
    run = open_run(recorded.folder)
    assert sum(recorded.iterated.values()) - recorded.iterated["here"] == 8
    arrivals, workers = (
        table[table["loader"] == 1] for table in (run.arrivals, run.auxiliary_workers)
    )
    batches = arrivals[arrivals["size_bytes"] >= 4 * 64 * 4]
    assert len(batches) == 8
    assert (batches["making_ns"] >= 4 * 5_000_000).all(), "each batch waits 4 times 5 ms"
    assert workers["batch"].count() == 8


def test_without_a_recording_hosts_record_nothing(tmp_path: Path):
    made = ran(tmp_path, "--profile", "off", "offload_recorded.py", "0").made
    assert made.keys() & {"one", "two"}
    assert not (tmp_path / "r" / "records").exists()
    assert not list((tmp_path / "servers").glob("records-*"))
