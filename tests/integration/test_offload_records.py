"""What is recorded of workers on auxiliary hosts, and what the model makes of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
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


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[OffloadServers]:
    for script in SCRIPTS.glob("offload_recorded*.py"):
        shutil.copy(script, tmp_path)
    running = OffloadServers(tmp_path)
    yield running
    running.close()


def recorded(
    servers: OffloadServers, folder: Path, *flags: str, script: str = "offload_recorded.py"
) -> dict[str, int]:
    """Run a script, recorded; return how many batches were made where."""
    command = headrace("run", "--run-dir", "r", *flags, script, "3")
    ended = subprocess.run(
        command, cwd=folder, env=servers.environment(), capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    told = re.search(r"made (\{.*\})", ended.stdout)
    assert told is not None, ended.stdout
    made: dict[str, int] = json.loads(told[1])
    return made


def test_batches_of_other_hosts_are_recorded_by_host_worker_and_transform(
    servers: OffloadServers, tmp_path: Path
):
    servers.start("one", 2)
    servers.start("two", 1)
    made = recorded(servers, tmp_path)
    run = open_run(tmp_path / "r")
    came = run.arrivals[run.arrivals["counted"] == 1].groupby("host").size()
    assert {host: came[host] for host in ("one", "two")} == {
        host: made[host] for host in ("one", "two")
    }, "those that were made here as well, and came later, do not count"
    assert len(run.workers) >= made["here"]

    away = run.auxiliary_workers
    assert set(away["host"]) == {"one", "two"}
    assert set(away[away["host"] == "one"]["worker"]) == {0, 1}
    assert (away["wall_ns"] >= 4 * 5_000_000).all(), "each batch waits 4 times 5 ms"
    assert (away["samples"] == 4).all()
    began_ns, ended_ns = run.steps["start_ns"].min(), run.steps["start_ns"].max()
    assert ((away["start_ns"] > began_ns - 30e9) & (away["start_ns"] < ended_ns)).all()

    arrivals = run.arrivals
    parts_ns = arrivals["queued_ns"] + arrivals["making_ns"] + arrivals["receive_ns"]
    assert (parts_ns <= arrivals["wall_ns"]).all(), "parts of one time"
    assert (arrivals["size_bytes"] >= 4 * 64 * 4).all(), "four samples of 64 floats"

    timed = run.auxiliary_transforms.groupby("name")[["calls", "wall_ns"]].sum()
    waiting = timed.loc["Samples.transforms[0]: wait_a_little"]
    assert waiting["wall_ns"] >= 5_000_000 * waiting["calls"]
    assert "Samples.transforms[1]: Turned" in timed.index
    assert not set(run.events["kind"]) & {"probe-fault", "dropped-records"}

    measured = measure(open_records(tmp_path / "r"))
    assert measured is not None
    assert measured.pipeline.auxiliary in (1, 2, 3), "its cores, on average"
    assert measured.pipeline.takes_next

    page = write_report(tmp_path / "r").read_text()
    assert "Auxiliary hosts" in page
    assert "Samples.transforms[0]: wait_a_little" in page


def test_of_a_short_iterable_loader_all_is_recorded(servers: OffloadServers, tmp_path: Path):
    servers.strands = 2
    servers.start("one", 1)  # two workers on a core: each sees to its strand at once
    made = recorded(servers, tmp_path, script="offload_recorded_iterated.py")
    assert made["one"] == 8
    run = open_run(tmp_path / "r")
    batches = run.arrivals[run.arrivals["size_bytes"] >= 4 * 64 * 4]
    assert len(batches) == 8
    assert (batches["making_ns"] >= 4 * 5_000_000).all(), "each batch waits 4 times 5 ms"
    assert run.auxiliary_workers["batch"].count() == 8


def test_without_a_recording_hosts_record_nothing(servers: OffloadServers, tmp_path: Path):
    servers.strands = 2
    servers.start("one", 1)
    script = "offload_recorded_iterated.py"
    made = recorded(servers, tmp_path, "--profile", "off", script=script)
    assert made["one"] == 8
    assert not (tmp_path / "r" / "records").exists()
    assert not list((tmp_path / "servers").glob("records-*"))
