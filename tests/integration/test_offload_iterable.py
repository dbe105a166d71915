"""Iterable datasets on auxiliary hosts: real servers, real sockets, real kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobs import DEADLINE_S, descendants, eventually
from offload_servers import OffloadServers

SCRIPTS = Path(__file__).parents[1] / "scripts"
pytestmark = pytest.mark.timeout(1200)  # the shared job is the first test's


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[OffloadServers]:
    running = servers_in(tmp_path, partitions=2)
    yield running
    running.close()


def servers_in(folder: Path, *, partitions: int) -> OffloadServers:
    for script in SCRIPTS.glob("offload_iterated*.py"):
        shutil.copy(script, folder)
    servers = OffloadServers(folder)
    servers.partitions = partitions
    return servers


def test_two_ranks_have_each_sample_once(servers: OffloadServers, tmp_path: Path):
    servers.partitions = 3  # of which each has one
    servers.start("one", 2)
    ended = servers.run("offload_iterated_ranks.py")
    assert ended.returncode == 0, ended.stderr
    came: list[int] = []
    for rank in range(2):
        written = (tmp_path / f"rank-{rank}").read_text()
        assert " one\n" in written
        for line in written.splitlines():
            came += map(int, line[1 : line.index("]")].split(","))
    assert sorted(came) == list(range(200))


def whole(servers: OffloadServers) -> list[str]:
    """Return what a running script has printed of whole epochs."""
    return [line for line in servers.output().splitlines() if line.startswith("epoch ")]


def next_whole(servers: OffloadServers, *, after: int) -> str:
    return str(eventually(lambda: whole(servers)[after:], "another epoch")[0])


def stop_in_the_middle(servers: OffloadServers, pause: Path) -> int:
    """Wait for the middle of an epoch; return how many were whole before."""
    begun = servers.output().count("in the middle")
    pause.touch()
    eventually(lambda: servers.output().count("in the middle") > begun, "the middle of an epoch")
    return len(whole(servers))


def test_hosts_die_freeze_and_come_back_in_the_middle_of_an_epoch(
    servers: OffloadServers, tmp_path: Path
):
    pause, servers.partitions = tmp_path / "pause", 4
    servers.start("one", 2)
    servers.start("two", 2)
    with servers.running("offload_iterated_epochs.py", "6") as script:
        assert "['here', 'one', 'two']" in next_whole(servers, after=0)
        number = stop_in_the_middle(servers, pause)
        os.kill(descendants(servers.processes["two"].pid)[-1], signal.SIGKILL)  # a worker there
        servers.signal("one", signal.SIGKILL)  # its partitions go to the other host
        pause.unlink()
        assert "['here', 'one', 'two']" in next_whole(servers, after=number)
        number = stop_in_the_middle(servers, pause)
        servers.signal("two", signal.SIGSTOP)  # ... and then back to the rank
        pause.unlink()
        assert "['here', 'two']" in next_whole(servers, after=number)
        assert "['here']" in next_whole(servers, after=number + 1)
        servers.signal("two", signal.SIGCONT)
        eventually(lambda: "auxiliary host two is back" in servers.output(), "its return")
        begun = len(whole(servers))
        assert "['here', 'two']" in next_whole(servers, after=begun + 1)
        # Without its proxy an epoch goes on, too.
        number = stop_in_the_middle(servers, pause)
        (proxy,) = [
            pid
            for pid in descendants(script.pid)
            if b"offload.proxy" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(proxy, signal.SIGKILL)
        pause.unlink()
        assert "['here', 'two']" in next_whole(servers, after=number)
        (tmp_path / "enough").touch()
        assert script.wait(DEADLINE_S) == 0, servers.output()
    lost = "auxiliary host one is lost; what it had is made by others; of an iterable dataset they"
    assert lost in servers.output()
    assert "two has been silent for 3 s" in servers.output()


@dataclass(frozen=True)
class Sections:
    """What `offload_iterated_sections.py` has left: results by section, output, exit code.

    Attributes:
        alone: What two of them give with as many workers and no auxiliary host.
    """

    results: dict[str, Any]
    output: str
    exit_code: int
    alone: dict[str, list[str]]


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> Sections:
    folder = tmp_path_factory.mktemp("sections")
    servers = servers_in(folder, partitions=2)
    try:
        with servers.running("offload_iterated_sections.py") as script:
            eventually(lambda: "no server was needed" in servers.output(), "batches made alone")
            servers.start("one", 2)
            (folder / "servers-run").touch()
            code = script.wait(1000)
        output = servers.output()
        alone = servers.run_without("offload_iterated.py", "4")
    finally:
        servers.close()
    assert alone.returncode == 0, alone.stderr
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"section"')]
    results = {line["section"]: line["result"] for line in lines}
    return Sections(results, output, code, json.loads(alone.stdout))


def result_of(sections: Sections, name: str) -> Any:
    assert name in sections.results, sections.output
    return sections.results[name]


def test_batches_are_those_of_torch_with_as_many_workers(sections: Sections):
    *came, made_by = result_of(sections, "iterated")
    assert came == sections.alone["iterated"][:-1]
    assert len(came) == 5 + 1
    assert all(name in made_by for name in ("here", "one")), made_by


def test_our_own_loader_goes_on_from_its_state(sections: Sections):
    helped = result_of(sections, "resumed")
    made_there = [line for line in helped if line.endswith(" one")]
    assert made_there
    local_lines = [
        line.removesuffix(" one") + " here" if line in made_there else line for line in helped
    ]
    assert local_lines == sections.alone["resumed"]
    assert helped[-1] == "shared among 4"


MISSING = (
    "a batch failed on auxiliary host one: FileNotFoundError: [Errno 2] No such file or directory: "
)


@pytest.mark.parametrize(
    ("section", "reported"),
    [
        ("files", f"{MISSING}'nowhere/sample'"),
        ("unmounted", f"{MISSING}'elsewhere/sample'"),
        ("unknown", "auxiliary host one cannot load the dataset, and is not asked"),
        ("hanging", "auxiliary host one is late with an iterable dataset; its part is made here"),
        ("locked", "batches of Locked are made on this host alone"),
        ("alone", "no auxiliary host is there for an iterable dataset: what 2 workers"),
    ],
)
def test_what_fails_or_hangs_on_an_auxiliary_host_is_made_here(
    section: str, reported: str, sections: Sections
):
    epochs = result_of(sections, section)
    assert len(epochs) == (2 if section == "files" else 1)
    for epoch in epochs:
        assert sorted(index for batch in epoch for index in batch) == list(range(96))
        workers = {index % 4 for index in epoch[0]}  # two here, two on auxiliary hosts
        assert len(workers) == 1 or section == "locked", epoch[0]
    assert reported in sections.output


def test_what_need_not_share_itself_out_stays_here(sections: Sections):
    assert result_of(sections, "unshared") == [list(range(12))] * 8
    for workers in (0, 1):
        reported = f"Unshared are made on this host alone: it is iterated by num_workers={workers},"
        assert sections.output.count(reported) == 2, sections.output


def test_a_loader_that_cannot_be_helped_counts_its_place_accordingly(sections: Sections):
    assert result_of(sections, "fallen") == [4, 2, 2, 2]


def test_an_empty_share_that_is_refused_says_among_how_many_it_is_shared(sections: Sections):
    error = result_of(sections, "few")
    assert "Few is shared among 4 workers: 2 here, 2 on auxiliary hosts\n" in sections.output
    assert "ValueError: no samples found" in error
    assert "shared among 4 workers, 2 of them on auxiliary hosts. Where that" in error
    assert "--group cpu=1:cpus=K" in error


def test_what_fails_everywhere_is_reported_as_without_help(sections: Sections):
    assert sections.exit_code == 1
    after_all_others = sections.output.rpartition('{"section"')[2]
    assert "ValueError: a picture without pixels" in after_all_others
