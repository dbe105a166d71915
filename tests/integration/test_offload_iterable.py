"""Iterable datasets on auxiliary hosts: real stations, real sockets, real kills."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from jobs import descendants, eventually
from stations import Stations

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def stations(tmp_path: Path) -> Iterator[Stations]:
    for script in SCRIPTS.glob("offload_iterated*.py"):
        shutil.copy(script, tmp_path)
    running = Stations(tmp_path)
    running.strands = 2
    yield running
    running.close()


def test_batches_are_those_of_torch_with_as_many_workers(stations: Stations):
    stations.strands = 3
    stations.start("one", 2)
    stations.start("two", 1)
    alone = stations.run_without("offload_iterated.py", "5")
    helped = stations.run("offload_iterated.py", "2")
    assert alone.returncode == helped.returncode == 0, helped.stderr
    *came, made_by = helped.stdout.splitlines()
    assert came == alone.stdout.splitlines()[:-1]
    assert len(came) == 5 + 1
    assert all(name in made_by for name in ("here", "one", "two")), made_by


def both_ranks(stations: Stations, *arguments: str) -> list[CompletedProcess[str]]:
    def run(rank: int) -> CompletedProcess[str]:
        return stations.run(
            "offload_iterated_ranks.py", *arguments, RANK=str(rank), WORLD_SIZE="2",
            LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
        )  # fmt: skip

    with ThreadPoolExecutor() as pool:
        return list(pool.map(run, range(2)))


def test_two_ranks_have_each_sample_once(stations: Stations):
    stations.strands = 3  # of which each has one
    stations.start("one", 2)
    ranks = both_ranks(stations, "torch", "2")
    came: list[int] = []
    for ended in ranks:
        assert ended.returncode == 0, ended.stderr
        assert " one\n" in ended.stdout
        for line in ended.stdout.splitlines():
            came += map(int, line[1 : line.index("]")].split(","))
    assert sorted(came) == list(range(200))


def test_our_own_loader_goes_on_from_its_state(stations: Stations):
    stations.start("one", 2)
    helped = stations.run("offload_iterated_ranks.py", "ours", "2")
    alone = stations.run_without("offload_iterated_ranks.py", "ours", "4")
    assert helped.returncode == alone.returncode == 0, helped.stderr
    assert " one\n" in helped.stdout
    assert helped.stdout.replace(" one\n", " here\n") == alone.stdout
    assert "shared among 4" in helped.stdout


def test_what_need_not_share_itself_out_stays_here(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_iterated_alone.py", "unshared")
    assert (ended.returncode, ended.stdout) == (0, "whole\n"), ended.stderr
    for workers in (0, 1):
        told = f"Unshared are made on this host alone: it is iterated by num_workers={workers},"
        assert ended.stderr.count(told) == 2, ended.stderr


def test_a_loader_that_cannot_be_helped_counts_its_place_accordingly(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_iterated_alone.py", "fallen")
    assert (ended.returncode, ended.stdout) == (0, "whole\n"), ended.stderr


def whole(stations: Stations) -> list[str]:
    """Return what a running script has told of whole epochs."""
    return [line for line in stations.said().splitlines() if line.startswith("epoch ")]


def next_whole(stations: Stations, *, after: int) -> str:
    return str(eventually(lambda: whole(stations)[after:], "another epoch")[0])


def stop_in_the_middle(stations: Stations, pause: Path) -> int:
    """Wait for the middle of an epoch; return how many were whole before."""
    begun = stations.said().count("in the middle")
    pause.touch()
    eventually(lambda: stations.said().count("in the middle") > begun, "the middle of an epoch")
    return len(whole(stations))


def test_hosts_die_freeze_and_come_back_in_the_middle_of_an_epoch(
    stations: Stations, tmp_path: Path
):
    pause, stations.strands = tmp_path / "pause", 4
    stations.start("one", 2)
    stations.start("two", 2)
    with stations.running("offload_iterated_epochs.py", "6") as script:
        assert "['here', 'one', 'two']" in next_whole(stations, after=0)
        number = stop_in_the_middle(stations, pause)
        os.kill(descendants(stations.processes["two"].pid)[-1], signal.SIGKILL)  # a worker there
        stations.signal("one", signal.SIGKILL)  # its strands go to the other host
        pause.unlink()
        assert "['here', 'one', 'two']" in next_whole(stations, after=number)
        number = stop_in_the_middle(stations, pause)
        stations.signal("two", signal.SIGSTOP)  # ... and then home
        pause.unlink()
        assert "['here', 'two']" in next_whole(stations, after=number)
        assert "['here']" in next_whole(stations, after=number + 1)
        stations.signal("two", signal.SIGCONT)
        eventually(lambda: "auxiliary host two is back" in stations.said(), "its return")
        begun = len(whole(stations))
        assert "['here', 'two']" in next_whole(stations, after=begun + 1)
        (tmp_path / "enough").touch()
        assert script.wait(60) == 0, stations.said()
    lost = "auxiliary host one is lost; what it had is made by others; of an iterable dataset they"
    assert lost in stations.said()
    assert "two has been silent for 3 s" in stations.said()


def test_without_its_receiver_an_epoch_goes_on(stations: Stations, tmp_path: Path):
    stations.start("one", 2)
    with stations.running("offload_iterated_epochs.py", "4") as script:
        number = stop_in_the_middle(stations, tmp_path / "pause")
        (receiver,) = [
            pid for pid in descendants(script.pid)
            if b"offload.receiver" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]  # fmt: skip
        os.kill(receiver, signal.SIGKILL)
        (tmp_path / "pause").unlink()
        assert "['here', 'one']" in next_whole(stations, after=number)
        (tmp_path / "enough").touch()
        assert script.wait(60) == 0, stations.said()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("files", "a batch failed on auxiliary host one: FileNotFoundError"),
        ("unmounted", "a batch failed on auxiliary host one: FileNotFoundError"),
        ("unknown", "auxiliary host one cannot load the dataset, and is not asked"),
        ("hanging", "auxiliary host one is late with an iterable dataset; its part is made here"),
        ("locked", "batches of Locked are made on this host alone"),
    ],
)
def test_what_fails_or_hangs_elsewhere_is_made_here(stations: Stations, kind: str, told: str):
    stations.start("one", 2)
    ended = stations.run("offload_iterated_faults.py", kind)
    assert (ended.returncode, ended.stdout) == (0, "whole\n"), ended.stderr
    assert told in ended.stderr


def test_without_any_host_it_is_made_here(stations: Stations):
    ended = stations.run("offload_iterated_faults.py", "files")
    assert (ended.returncode, ended.stdout) == (0, "whole\n"), ended.stderr
    assert "no auxiliary host is there for an iterable dataset: what 2 workers" in ended.stderr


def test_an_empty_share_that_is_refused_tells_among_how_many_it_is_shared(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_iterated_faults.py", "few")
    assert ended.returncode == 1
    assert "Few is shared among 4 workers: 2 here, 2 on auxiliary hosts\n" in ended.stderr
    assert "ValueError: no samples found" in ended.stderr
    assert "shared among 4 workers, 2 of them on auxiliary hosts. Where that" in ended.stderr
    assert "--group cpu=1:cpus=K" in ended.stderr


def test_what_fails_everywhere_is_told_as_without_help(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_iterated_faults.py", "wrong")
    assert ended.returncode == 1
    assert "ValueError: a picture without pixels" in ended.stderr
