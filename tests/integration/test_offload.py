"""Batches of unmodified scripts on auxiliary hosts: real stations, real sockets, real kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs import alive, descendants, eventually
from stations import Stations

SCRIPTS = Path(__file__).parents[1] / "scripts"


def started_in(folder: Path) -> Stations:
    for source in SCRIPTS.glob("offload_*.py"):
        shutil.copy(source, folder)
    shutil.copytree(SCRIPTS / "offload_beside", folder / "offload_beside")
    return Stations(folder)


@pytest.fixture
def stations(tmp_path: Path) -> Iterator[Stations]:
    running = started_in(tmp_path)
    yield running
    running.close()


Told = dict[str, Any]


@pytest.fixture(scope="module")
def styles(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Told], list[Told]]:
    """What `offload_styles.py` tells without stations, and with two of which one is slow."""
    stations = started_in(tmp_path_factory.mktemp("styles"))
    try:
        alone = stations.run("offload_styles.py")
        stations.start("one", 2)
        stations.start("slow", 1)
        helped = stations.run("offload_styles.py")
    finally:
        stations.close()
    assert alone.returncode == helped.returncode == 0, helped.stderr
    told = [
        [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        for ended in (alone, helped)
    ]
    return told[0], told[1]


def digests(told: list[Told], name: str = "") -> list[str]:
    return [each["digest"] for each in told if name in ("", each["name"])]


def test_batches_are_the_same_bit_for_bit_wherever_they_are_made(styles):
    alone, helped = styles
    assert digests(helped) == digests(alone)
    assert len(digests(alone)) == 5 * 2 + 1
    assert digests(alone, "ours") == digests(alone, "ours, inline")
    for each in alone:
        assert each.get("makers", {}).keys() <= {"here"}, each
    for each in helped:
        if each.get("epoch") == 0 and "inline" not in each["name"]:
            assert each["makers"].keys() & {"one", "slow"}, each


def test_a_host_that_is_ten_times_slower_makes_less_and_epochs_are_whole(styles):
    _, helped = styles
    assert [each["seen"] for each in helped if "seen" in each] == [[120, 120]] * 5 * 2
    made = sum((Counter(each.get("makers")) for each in helped), Counter())
    # Would everybody wait for it, it would make half as many as the other, which has two cores.
    assert 0 < 3 * made["slow"] < made["one"], made


def test_trainers_that_make_loaders_of_their_own_are_helped(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_trainers.py")
    assert ended.returncode == 0, ended.stderr
    told = [line for line in ended.stdout.splitlines() if line.startswith("by_")]
    assert len(told) == 3, ended.stdout
    for trainer, result in (line.split(" ", 1) for line in told):
        found = json.loads(result)
        assert found["same"], trainer
        assert found["helped"]["elsewhere"] > 0, trainer
        assert sum(found["helped"].values()) == 2 * 48, trainer
        assert found["alone"] == {"here": 2 * 48, "elsewhere": 0}, trainer


def epochs(stations: Stations) -> list[str]:
    """Return what a running `offload_epochs.py` has told of whole epochs."""
    return [line for line in stations.said().splitlines() if line.startswith("epoch ")]


def wait_for_epoch(stations: Stations, wanted: str, *, without: str = "?") -> None:
    """Wait for an epoch that ends from now on, in which `wanted` had a part and `without` none."""
    begun = len(epochs(stations))

    def is_there() -> bool:
        return any(wanted in line and without not in line for line in epochs(stations)[begun + 1 :])

    eventually(is_there, f"an epoch with {wanted} and without {without}")


def finish(script, folder: Path, stations: Stations) -> str:
    (folder / "enough").touch()
    assert script.wait(60) == 0, stations.said()
    assert "Traceback" not in stations.said()
    return stations.said()


def test_hosts_die_freeze_come_back_and_join_while_each_epoch_is_whole(
    stations: Stations, tmp_path: Path
):
    stations.start("one", 2)
    stations.start("two", 2)
    with stations.running("offload_epochs.py") as script:
        wait_for_epoch(stations, "one")
        wait_for_epoch(stations, "two")
        stations.signal("one", signal.SIGKILL)
        stations.signal("two", signal.SIGSTOP)
        wait_for_epoch(stations, "here", without="two")
        eventually(lambda: "two has been silent for 3 s" in stations.said(), "the frozen host told")
        stations.signal("two", signal.SIGCONT)
        wait_for_epoch(stations, "two", without="one")
        stations.start("three", 2)
        wait_for_epoch(stations, "three")
        said = finish(script, tmp_path, stations)
    assert "auxiliary host one is lost" in said
    assert "auxiliary host two is back" in said


def test_without_its_receiver_a_script_goes_on(stations: Stations, tmp_path: Path):
    stations.start("one", 2)
    with stations.running("offload_epochs.py") as script:
        wait_for_epoch(stations, "one")
        (receiver,) = [
            pid for pid in descendants(script.pid)
            if b"offload.receiver" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]  # fmt: skip
        os.kill(receiver, signal.SIGKILL)
        wait_for_epoch(stations, "here", without="one")
        finish(script, tmp_path, stations)


def test_nothing_of_a_killed_script_is_left(stations: Stations):
    stations.start("one", 2)
    station = stations.processes["one"].pid
    with stations.running("offload_epochs.py") as script:
        wait_for_epoch(stations, "one")
        mine, theirs = descendants(script.pid), descendants(station)
        assert mine
        assert len(theirs) == 3, "a forkserver and two workers"
        script.kill()
        eventually(lambda: not any(map(alive, [*mine, *theirs])), "everybody's end")
    assert alive(station)


def test_an_epoch_that_is_left_and_a_dataset_that_changes(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_left.py")
    assert ended.returncode == 0, ended.stderr
    assert "made by ['here', 'one']" in ended.stdout


REMEDY = "mount them there at the same place, or read from object storage"


def test_paths_that_other_hosts_have_not_are_told_after_one_batch(
    stations: Stations, tmp_path: Path
):
    stations.start("one", 2)
    with stations.running("offload_faults.py", "unmounted") as script:
        eventually(lambda: "failed on auxiliary host one" in stations.said(), "the host told")
        (tmp_path / "files" / "told").touch()
        assert script.wait(60) == 0, stations.said()
    assert "whole" in stations.said().splitlines()
    told = [line for line in stations.said().splitlines() if "failed on auxiliary host one" in line]
    assert len(told) == 1, stations.said()
    assert (
        "No such file or directory: 'files/sample'. It is asked no more. The dataset reads"
        in told[0]
    )
    assert REMEDY in told[0]
    assert (tmp_path / "files" / "tries").read_text() == "once\n", "nothing else was lost"


def test_batches_that_fail_on_other_hosts_alone_are_told_and_three_are_enough(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_faults.py", "files", "wait")
    assert (ended.returncode, ended.stdout) == (0, "whole\n"), ended.stderr
    assert "a batch failed on auxiliary host one: FileNotFoundError" in ended.stderr
    assert "files/one/sample" in ended.stderr
    assert REMEDY in ended.stderr
    assert "It was made here." in ended.stderr
    assert "It is asked no more." in ended.stderr


def test_a_module_that_other_hosts_have_not_is_told(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_faults.py", "unknown", "wait")
    assert (ended.returncode, ended.stdout) == (0, "whole\n"), ended.stderr
    assert "auxiliary host one cannot load the dataset, and is not asked" in ended.stderr
    assert "No module named 'a_module_of_that_name'" in ended.stderr
    assert "requirements.txt" in ended.stderr


def test_what_fails_everywhere_is_told_as_without_help(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_faults.py", "wrong")
    assert ended.returncode == 1
    assert "ValueError: a picture without pixels" in ended.stderr
    assert "while making sample 50" in ended.stderr


def test_what_cannot_be_sent_is_made_here_and_its_attribute_named(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_faults.py", "locked")
    assert (ended.returncode, ended.stdout) == (0, "whole\n"), ended.stderr
    assert "batches of Locked are made on this host alone" in ended.stderr
    assert "dataset.guard is a lock" in ended.stderr


def test_batches_of_an_epoch_that_was_left_do_not_come_in_the_next(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_slow_left.py")
    assert (ended.returncode, ended.stdout) == (0, "whole\n"), ended.stderr


def test_a_host_that_lives_and_makes_nothing_holds_up_nobody(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_stuck.py")
    assert (ended.returncode, ended.stdout) == (0, "whole\n"), ended.stderr


def test_a_script_finds_its_own_classes_settings_and_errors(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_own.py")
    assert (ended.returncode, ended.stdout) == (0, "whole\n"), ended.stderr


@pytest.mark.parametrize("kind", ["torch", "headrace"])
def test_wherever_samples_are_made_they_find_what_the_script_has_set(
    kind: str, stations: Stations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    elsewhere.mkdir()
    (tmp_path / "content").write_text("of the job")
    (elsewhere / "content").write_text("of another folder")
    monkeypatch.setenv("REMOVED", "as it began")
    stations.start("one", 1)
    ended = stations.run("offload_own.py", kind, str(elsewhere))
    assert ended.returncode == 0, ended.stderr


def test_loaders_that_are_let_go_of_leave_nothing_open(stations: Stations):
    stations.start("one", 2)
    ended = stations.run("offload_let_go.py")
    assert (ended.returncode, ended.stdout) == (0, "whole\n"), ended.stderr


def test_who_has_another_key_is_not_asked(stations: Stations):
    stations.start("one", 2, key=b"another job's key")
    ended = stations.run("offload_left.py")
    assert ended.returncode == 0, ended.stderr
    assert "made by ['here']" in ended.stdout
