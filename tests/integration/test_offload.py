"""Batches of unmodified scripts on auxiliary hosts: real servers, real sockets, real kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobs import DEADLINE_S, alive, descendants, eventually
from offload_servers import OffloadServers

SCRIPTS = Path(__file__).parents[1] / "scripts"
Line = dict[str, Any]
LONGEST_S = 600.0  # of a part of a script, on a machine that does much else
pytestmark = pytest.mark.timeout(1200)  # the shared job is the first test's


def servers_in(folder: Path) -> OffloadServers:
    for source in SCRIPTS.glob("offload_*.py"):
        shutil.copy(source, folder)
    shutil.copytree(SCRIPTS / "offload_package", folder / "offload_package")
    return OffloadServers(folder)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[OffloadServers]:
    running = servers_in(tmp_path)
    yield running
    running.close()


@dataclass(frozen=True)
class Styles:
    """What `offload_styles.py` prints without servers, and with two of which one is slow.

    Attributes:
        processes: Those of the script and of its sessions at server one, while it was at work.
        left: Of these, those that were there after it had been killed.
        server_lives: Whether server one was, too.
    """

    alone: list[Line]
    helped: list[Line]
    processes: tuple[list[int], list[int]]
    left: list[int]
    server_lives: bool


@pytest.fixture(scope="module")
def styles(tmp_path_factory: pytest.TempPathFactory) -> Styles:
    folder = tmp_path_factory.mktemp("styles")
    servers = servers_in(folder)

    def wait_for(text: str) -> None:
        eventually(lambda: text in servers.output() or not alive(script.pid), text, LONGEST_S)
        assert text in servers.output(), servers.output()

    try:
        with servers.running("offload_styles.py") as script:
            for host, cores in (("one", 2), ("slow", 1)):
                wait_for(f"without {host}")
                servers.start(host, cores)
                (folder / host).touch()
            wait_for('"on and on"')
            server = servers.processes["one"].pid
            # Sessions of loaders that are gone end a little later.
            eventually(lambda: len(descendants(server)) == 3, "a forkserver and two workers")
            processes = descendants(script.pid), descendants(server)
            script.kill()
            left = [pid for pids in processes for pid in pids]
            with suppress(AssertionError):  # the test's
                eventually(lambda: not any(map(alive, left)), "everybody's end")
            left = [pid for pid in left if alive(pid)]
            server_lives = alive(server)
    finally:
        servers.close()
    lines = [json.loads(line) for line in servers.output().splitlines() if line.startswith("{")]
    ends = [number for number, line in enumerate(lines) if line["name"] == "drawn after"]
    alone, helped = lines[: ends[0] + 1], lines[ends[0] + 1 : ends[1] + 1]
    return Styles(alone, helped, processes, left, server_lives)


def digests(lines: list[Line], name: str = "") -> list[str]:
    return [each["digest"] for each in lines if name in ("", each["name"])]


def test_batches_are_the_same_bit_for_bit_wherever_they_are_made(styles: Styles):
    alone, helped = styles.alone, styles.helped
    assert digests(helped) == digests(alone)
    assert len(digests(alone)) == 5 * 2 + 1
    assert digests(alone, "ours") == digests(alone, "ours, inline")
    for each in alone:
        assert each.get("makers", {}).keys() <= {"here"}, each
    for each in helped:
        if each.get("epoch") == 0 and "inline" not in each["name"]:
            assert each["makers"].keys() & {"one", "slow"}, each


def test_a_host_that_is_ten_times_slower_makes_less_and_epochs_are_whole(styles: Styles):
    helped = styles.helped
    assert [each["seen"] for each in helped if "seen" in each] == [[120, 120]] * 5 * 2
    made = sum((Counter(each["makers"]) for each in helped if each["name"] == "dicts"), Counter())
    # Would everybody wait for it, it would make half as many as the other, which has two cores.
    assert 0 < 3 * made["slow"] < made["one"], made


def test_trainers_that_make_loaders_of_their_own_are_helped(servers: OffloadServers):
    servers.start("one", 2)
    ended = servers.run("offload_trainers.py")
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stdout.splitlines() if line.startswith("by_")]
    assert len(lines) == 3, ended.stdout
    for trainer, result in (line.split(" ", 1) for line in lines):
        found = json.loads(result)
        assert found["same"], trainer
        assert found["helped"]["auxiliary"] > 0, trainer
        assert sum(found["helped"].values()) == 2 * 48, trainer
        assert found["alone"] == {"here": 2 * 48, "auxiliary": 0}, trainer


def epochs(servers: OffloadServers) -> list[str]:
    """Return what a running `offload_epochs.py` has printed of whole epochs."""
    return [line for line in servers.output().splitlines() if line.startswith("epoch ")]


def wait_for_epoch(servers: OffloadServers, wanted: str, *, without: str = "?") -> None:
    """Wait for an epoch that ends from now on, in which `wanted` had a part and `without` none."""
    begun = len(epochs(servers))

    def is_there() -> bool:
        return any(wanted in line and without not in line for line in epochs(servers)[begun + 1 :])

    eventually(is_there, f"an epoch with {wanted} and without {without}")


def proxies_of(script: int) -> list[int]:
    return [
        pid
        for pid in descendants(script)
        if b"offload.proxy" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def test_hosts_die_freeze_come_back_and_join_while_each_epoch_is_whole(
    servers: OffloadServers, tmp_path: Path
):
    servers.start("one", 2)
    servers.start("two", 2)
    with servers.running("offload_epochs.py") as script:
        wait_for_epoch(servers, "one")
        wait_for_epoch(servers, "two")
        servers.signal("one", signal.SIGKILL)
        servers.signal("two", signal.SIGSTOP)
        wait_for_epoch(servers, "here", without="two")
        eventually(lambda: "two has been silent for 3 s" in servers.output(), "the frozen host")
        servers.signal("two", signal.SIGCONT)
        wait_for_epoch(servers, "two", without="one")
        servers.start("three", 2)
        wait_for_epoch(servers, "three")
        # Without its proxy a script goes on, too.
        (proxy,) = proxies_of(script.pid)
        os.kill(proxy, signal.SIGKILL)
        wait_for_epoch(servers, "here")
        assert alive(script.pid)
        (tmp_path / "enough").touch()
        assert script.wait(DEADLINE_S) == 0, servers.output()
    output = servers.output()
    assert "Traceback" not in output
    assert "auxiliary host one is lost" in output
    assert "auxiliary host two is back" in output


def test_nothing_of_a_killed_script_is_left(styles: Styles):
    mine, theirs = styles.processes
    assert mine
    assert theirs
    assert styles.left == []
    assert styles.server_lives


@dataclass(frozen=True)
class Sections:
    """What `offload_sections.py` has left: results by section, output, exit code, folder.

    Attributes:
        of_other_job: The processes of a server whose key is another job's, but for itself.
    """

    results: dict[str, Any]
    output: str
    exit_code: int
    folder: Path
    of_other_job: list[int]


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> Sections:
    folder = tmp_path_factory.mktemp("sections")
    other_folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "content").write_text("of the job")
    (other_folder / "content").write_text("of another folder")
    servers = servers_in(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMOVED", "as it began")
        try:
            servers.start("one", 2)
            servers.start("stranger", 2, key=b"another job's key")
            with servers.running("offload_sections.py", str(other_folder)) as script:
                eventually(lambda: "'unmounted/sample'" in servers.output(), "the lost path")
                (folder / "unmounted" / "reported").touch()
                code = script.wait(1000)
            of_other_job = descendants(servers.processes["stranger"].pid)
            output = servers.output()
        finally:
            servers.close()
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"section"')]
    results = {line["section"]: line["result"] for line in lines}
    return Sections(results, output, code, folder, of_other_job)


def result_of(sections: Sections, name: str) -> Any:
    assert name in sections.results, sections.output
    return sections.results[name]


TWO_WHOLE_EPOCHS = [list(range(80))] * 2
REMEDY = "mount them there at the same place, or read from object storage"


def test_batches_that_fail_on_other_hosts_alone_are_reported_and_three_are_enough(
    sections: Sections,
):
    assert result_of(sections, "files") == TWO_WHOLE_EPOCHS
    lines = [line for line in sections.output.splitlines() if "files/one/sample" in line]
    assert "a batch failed on auxiliary host one: FileNotFoundError" in lines[0]
    assert REMEDY in lines[0]
    assert "It was made here." in "\n".join(lines)
    assert "It is asked no more." in lines[-1]


def test_paths_that_other_hosts_have_not_are_reported_after_one_batch(sections: Sections):
    assert result_of(sections, "unmounted") == TWO_WHOLE_EPOCHS
    (line,) = [line for line in sections.output.splitlines() if "'unmounted/sample'" in line]
    assert "failed on auxiliary host one" in line
    assert (
        "No such file or directory: 'unmounted/sample'. It is asked no more. The dataset reads"
        in line
    )
    assert REMEDY in line
    attempts = (sections.folder / "unmounted" / "attempts").read_text()
    assert attempts == "once\n", "nothing else was lost"


def test_a_module_that_other_hosts_have_not_is_named(sections: Sections):
    assert result_of(sections, "unknown") == TWO_WHOLE_EPOCHS
    assert "auxiliary host one cannot load the dataset, and is not asked" in sections.output
    assert "No module named 'a_module_of_that_name'" in sections.output
    assert "requirements.txt" in sections.output


def test_what_fails_everywhere_is_reported_as_without_help(sections: Sections):
    assert sections.exit_code == 1
    after_all_others = sections.output.rpartition('{"section"')[2]
    assert "ValueError: a picture without pixels" in after_all_others
    assert "while making sample 50" in after_all_others


def test_what_cannot_be_sent_is_made_here_and_its_attribute_named(sections: Sections):
    assert result_of(sections, "locked") == TWO_WHOLE_EPOCHS
    assert "batches of Locked are made on this host alone" in sections.output
    assert "dataset.guard is a lock" in sections.output


def test_an_epoch_that_is_left_and_a_dataset_that_changes(sections: Sections):
    found = result_of(sections, "epochs left")
    assert found["turns"] == [
        [1000 * turn + index for index in range(10 if turn % 2 else 64)] for turn in range(6)
    ]
    assert found["makers"] == ["here", "one"]


def test_batches_of_an_epoch_that_was_left_do_not_come_in_the_next(sections: Sections):
    assert result_of(sections, "slow epochs left") == [
        [1000 * turn + index for index in range(4 if turn < 3 else 60)] for turn in range(4)
    ]


def test_a_host_that_lives_and_makes_nothing_holds_up_nobody(sections: Sections):
    assert result_of(sections, "hanging") == [list(range(200))] * 2


def test_a_script_finds_its_own_classes_settings_and_errors(sections: Sections):
    assert result_of(sections, "own classes") == {
        "errors": ["twenty-one"],
        "used": [9, 9],
        "dtypes": ["torch.float64"],
        "values": [14.0],
    }


@pytest.mark.parametrize("kind", ["torch", "headrace"])
def test_wherever_samples_are_made_they_find_what_the_script_has_set(kind: str, sections: Sections):
    ((hashed, *before),), ((hashed_later, *after),) = result_of(sections, f"environment, {kind}")
    assert before == ["('at first', 'there')", "of the job"]
    assert after == ["('later', None)", "of another folder"]
    assert hashed == hashed_later


def test_loaders_that_are_let_go_of_leave_nothing_open(sections: Sections):
    found = result_of(sections, "let go")
    assert sorted(found) == ["leave", "look_once", "train"]
    for way, (before, after) in found.items():
        assert after <= before, way


def test_who_has_another_key_is_not_asked(sections: Sections):
    assert result_of(sections, "epochs left")["makers"] == ["here", "one"]
    assert sections.of_other_job == [], "it has never started a worker"
