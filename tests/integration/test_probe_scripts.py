"""Unmodified scripts in the styles that people write, recorded through `headrace run`.

Those of one process share a job, one after another; `recorded.Part` is what each of them did.
"""

from __future__ import annotations

import html
import io
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import open_run
from headrace.data.storage import open_store
from headrace.observe.doctor.diagnosis import diagnose
from headrace.records.reader import open_records
from jobs import run_here
from packed import pack_images
from recorded import SCRIPTS, Part, Run, check, record, record_several
from services.object_servers import WebHandler, object_server

WRONG = [("--profile", "maybe"), ("--profile-interval", "1ms"), ("--apply", "num_worker=2")]
SIZE, SAMPLES = 100_000, 480  # of received.py; so many that what a last look may miss is little
WORKERS = ("1", "1 keep", "0")  # of taken.py
HANDED = (  # of handed.py
    *("queue", "future", "two", "polled", "own", "unworked"),
    *("chunks", "beside", "lasting", "filter"),
)
# The thread that trains changes after the first; of the next, whose steps nobody counts, one passes
# until that is seen.
FIRST_STYLES = ("threaded", "own_pool", "own_loader")
PLAIN_STYLES = (
    *("plain", "made_anew", "light", "accumulating", "one_loader"),
    *("mixed_precision", "compiled_step", "received", "loader_subclasses", "failing"),
)
ADVISED = ("plain", "made_anew")  # twice: as they are, and with other arguments for their loaders
LAST_STYLES = ("remote_shards", "streamed", "trainer", "own_path")
APPLIED = (
    *("num_workers@advised_plain.py:10=16", "persistent_workers@advised_plain.py:10=on"),
    *("num_workers@advised_made_anew.py:30=0", "persistent_workers@advised_made_anew.py:30=on"),
    *("num_workers@own_loader.py:12=1", "prefetch_factor@own_loader.py:12=3", "pin_memory=off"),
    *("num_workers@accumulating.py:18=3", "num_workers@plain.py:99=1", "rank_threads=1"),
)

Look = Callable[[str], Part]


def looks(run: Run, names: list[str]) -> Look:
    return lambda name: Part(run, names.index(name))


@pytest.fixture(scope="module")
def styles(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("styles")
    write_labels(folder / "a.tar", 80)
    with object_server(WebHandler) as server:
        url = f"{server.endpoint}/dataset"
        pack_images(folder / "images", str(folder / "packed"), 32)
        for file in (folder / "packed").iterdir():
            open_store(url).put(file.name, file.read_bytes())
        scripts: list[list[Any]] = [
            *([name] for name in (*FIRST_STYLES, *PLAIN_STYLES)),
            *([advised(folder, name)] for name in ADVISED),
            *(["taken", *workers.split()] for workers in WORKERS),
            *(["handed", way] for way in HANDED),
            ["remote_shards", url],
            ["streamed", folder / "a.tar"],
            ["trainer", folder / "out"],
            ["own_path"],  # last, as it changes the path of all that follow
        ]
        flags = ["--profile-interval", "100ms", "--apply", ",".join(APPLIED)]
        run = record_several(folder, scripts, flags)
    check(run)
    return run


@pytest.fixture(scope="module")
def part(styles: Run) -> Look:
    taken = [f"taken {workers}" for workers in WORKERS]
    again = [f"advised {name}" for name in ADVISED]
    handed = [f"handed {way}" for way in HANDED]
    return looks(styles, [*FIRST_STYLES, *PLAIN_STYLES, *again, *taken, *handed, *LAST_STYLES])


def advised(folder: Path, name: str) -> Path:
    """Return a script of another name, to whose loaders other arguments are applied."""
    return Path(shutil.copy(SCRIPTS / f"{name}.py", folder / f"advised_{name}.py"))


def write_labels(path: Path, count: int) -> None:
    with tarfile.open(path, "w") as tar:
        for number in range(count):
            label = str(number % 3).encode()
            member = tarfile.TarInfo(f"{number:04d}.cls")
            member.size = len(label)
            tar.addfile(member, io.BytesIO(label))


def busy_functions(run: Run, *, worker: bool) -> Counter[str]:
    """Return CPU nanoseconds by the innermost frame's function."""
    found: Counter[str] = Counter()
    for row in run.rows("stacks"):
        if (row["worker"] >= 0) == worker and row["phase"] != "idle":
            frames = row["stack"].split("\n")
            frame = next((f for f in reversed(frames) if "/probed/" in f), "")
            found[frame.rpartition(":")[2]] += row["cpu_ns"]
    return found


def test_the_page_is_there_and_says_what_was_said_at_the_end(styles: Run):
    page = html.unescape((styles.folder / "report.html").read_text(encoding="utf-8"))
    diagnosis = json.loads((styles.folder / "diagnosis.json").read_text(encoding="utf-8"))
    assert diagnosis["verdict"]["sentence"] in page
    assert diagnosis["verdict"]["sentence"] in " ".join(styles.stderr.split())


def test_each_sample_of_the_host_has_a_value_for_each_column(styles: Run):
    samples = styles.rows("system")
    cores = {f"core_{number}_percent" for number in os.sched_getaffinity(0)}
    for row in samples:
        assert cores <= row.keys()
        assert all(value is not None and value >= 0 for value in row.values())
        assert all(value <= 100 for name, value in row.items() if name.endswith("percent"))
        known_bytes = row["memory_used_bytes"] + row["memory_available_bytes"]
        assert known_bytes == psutil.virtual_memory().total


def test_a_plain_loop_with_an_evaluation(part: Look):
    run = part("plain")
    assert [row["samples"] for row in run.steps("train")] == [8] * 40
    assert len(run.steps("eval")) == 10
    train, held_out = run.rows("loaders")
    assert (train["workers"], train["style"], train["batch_size"]) == (2, "map", 8)
    assert (Path(train["file"]).name, train["line"]) == ("plain.py", 10)
    made = Counter((row["loader"], row["worker"]) for row in run.rows("batches"))
    assert made == {(0, 0): 20, (0, 1): 20, (held_out["loader"], -1): 10}
    # Each epoch ended with one more question.
    fetched = Counter((row["loader"], row["epoch"]) for row in run.rows("fetches"))
    assert fetched == {(0, 0): 21, (0, 1): 21, (1, 0): 6, (1, 1): 6}
    (getitem,) = {row["name"] for row in run.rows("transforms") if "getitem" in row["name"]}
    assert getitem == "Points.__getitem__"
    assert busy_functions(run, worker=True).most_common(1)[0][0] == "busy"


def test_a_batch_of_the_training_loader_taken_without_gradients_is_evaluated(part: Look):
    run = part("one_loader")
    assert [row["samples"] for row in run.steps("train")] == [8] * 8
    assert [row["samples"] for row in run.steps("eval")] == [8] * 4


def test_loaders_that_are_made_anew_are_distinguished_from_several(part: Look):
    run = part("made_anew")
    rows = run.rows("loaders")
    # Three rounds; a loop; the same function from another line, with two settings by turns; two
    # data sets by turns; two loaders at the same time.
    numbers = [0, 0, 0, 1, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7]
    assert [row["loader"] for row in rows] == numbers
    fetched = Counter((row["loader"], row["epoch"]) for row in run.rows("fetches"))
    epochs = {(number, epoch) for number in range(6) for epoch in range(2)}
    assert fetched == dict.fromkeys(epochs | {(0, 2), (6, 0), (7, 0)}, 5)
    workers = [row["loader"] for row in run.rows("processes") if row["role"] == "worker"]
    assert sorted(workers) == [0, 0, 0, 2, 2, 3, 3]


def test_short_transforms_are_timed_less_often(part: Look):
    rows = part("light").rows("transforms")
    first, *_, last = [row for row in rows if row["name"].endswith("[0]: Scale")]
    assert first["one_in"] == 8
    assert last["one_in"] > 8
    assert first["calls"] % 256 == last["calls"] % 256 == 0


def test_what_a_script_does_after_an_error_in_its_dataset_is_no_wait_for_data(part: Look):
    steps = part("failing").steps("train")
    assert [row["samples"] for row in steps] == [4] * 7
    assert [row["other_ns"] >= 250e6 for row in steps] == [number == 3 for number in range(7)]


def test_accumulated_gradients_from_an_iterable_dataset(part: Look):
    run = part("accumulating")
    assert {(row["batches"], row["samples"]) for row in run.steps("train")} == {(4, 16)}
    assert len(run.steps("train")) == 2 * 2 * 64 // 16
    assert run.rows("loaders")[0]["style"] == "iterable"
    # Workers live on over the epochs.
    assert len([row for row in run.rows("processes") if row["role"] == "worker"]) == 2


def test_spawned_workers_are_recorded_whatever_a_script_makes_of_the_path(part: Look):
    run = part("own_path")
    assert len(run.steps("train")) == 20
    assert {(row["loader"], row["worker"]) for row in run.rows("batches")} == {(0, 0)}
    assert run.rows("loaders")[0]["start_method"] == "spawn"
    assert [row["role"] for row in run.rows("processes")] == ["worker"]


def test_an_optimizer_whose_step_is_compiled_trains_as_without(part: Look, styles: Run):
    assert len(part("compiled_step").steps("train")) == 20
    assert "Dynamo does not know" not in styles.stderr


def test_what_a_pool_of_the_scripts_own_takes_is_the_runs(part: Look, styles: Run):
    recorded = {row["pid"] for row in styles.rows("processes")}
    usage = part("own_pool").rows("process_usage")
    assert any(row["cpu_percent"] > 0 for row in usage if row["pid"] not in recorded)


def test_headraces_own_loader_with_a_compiled_model(part: Look):
    run = part("own_loader")
    assert len(run.steps("train")) == 10
    assert run.rows("loaders")[0]["kind"] == "headrace"
    assert {row["loader"] for row in run.rows("batches")} == {0}
    assert len(run.rows("batches")) == 10
    assert "Points.__getitem__" in {row["name"] for row in run.rows("transforms")}


def test_a_compiled_model_in_mixed_precision(part: Look):
    steps = part("mixed_precision").steps("train")
    # The batch whose gradients overflowed is part of the step after it, as accumulated ones are.
    assert [row["batches"] for row in steps] == [1] * 10 + [2] + [1] * 8
    assert all(row["forward_ns"] and row["backward_ns"] and row["optimizer_ns"] for row in steps)


def test_transformers_trainer(part: Look):
    run = part("trainer")
    assert len(run.steps("train")) == 20
    assert sum(row["batches"] for row in run.steps("train")) == 40
    assert len(run.steps("eval")) == 10


def test_a_script_without_a_loader(tmp_path: Path):
    run = record(tmp_path, "without_loader")  # on its own: no loader was there before
    check(run)
    assert len(run.steps("train")) == 30
    assert run.rows("loaders") == []
    assert busy_functions(run, worker=False).most_common(1)[0][0] == "busy"


def test_a_webdataset_pipeline(part: Look):
    run = part("streamed")
    assert len(run.steps("train")) == 20
    assert busy_functions(run, worker=True).most_common(1)[0][0] == "busy"
    timed = [row for row in run.rows("transforms") if row["name"].endswith(": Slowed")]
    assert sum(row["calls"] for row in timed) > 0
    assert {(Path(row["file"]).name, row["line"]) for row in timed} == {("streamed.py", 17)}
    assert all(row["cpu_ns"] > 0 for row in timed)


def test_loaders_derived_from_torchs_have_their_batches_and_workers(part: Look):
    run = part("loader_subclasses")
    lines = {row["loader"]: row["line"] for row in run.rows("loaders")}
    made = Counter((row["loader"], row["worker"]) for row in run.rows("batches"))
    independent, endless = 1, 2  # 0: what `Independent` takes its settings from
    assert (made[independent, 0], made[independent, 1]) == (4, 4)
    assert made[endless, 0] >= 8
    assert lines[independent] == 86  # where it is constructed, not within its constructor
    fetched = Counter((row["loader"], row["epoch"]) for row in run.rows("fetches"))
    assert fetched[independent, 0] == fetched[independent, 1] == 5
    assert fetched[endless, 0] == fetched[endless, 1] == 4
    workers = Counter(row["loader"] for row in run.rows("processes") if row["role"] == "worker")
    assert (workers[independent], workers[endless], workers[-1]) == (4, 2, 0)


def test_a_steps_samples_are_those_that_its_sampler_named(part: Look):
    run = part("loader_subclasses")
    by_loader = {
        number: [row["samples"] for row in run.steps("train") if row["loader"] == number]
        for number in (3, 4, 5)
    }
    assert by_loader == {3: [3, 1, 2] * 2, 4: [3, 1, 2] * 2, 5: [4, 4, 2]}
    made = {
        number: [row["samples"] for row in run.rows("batches") if row["loader"] == number]
        for number in (3, 4, 5)
    }
    assert made == by_loader


def test_the_time_in_a_sampler_is_part_of_the_wait_for_its_batches(part: Look):
    fetches = part("loader_subclasses").rows("fetches")
    for loader in (3, 4):  # without workers, and with one
        rows = [row for row in fetches if row["loader"] == loader]
        slept = sum(row["sampler_ns"] for row in rows)
        assert 6 * 10e6 <= slept < 1.5e9
        assert all(row["sampler_ns"] <= row["wait_ns"] for row in rows if row["batch"])
    others = [row for row in fetches if row["loader"] in {1, 5} and row["batch"]]
    assert max(row["sampler_ns"] for row in others) < 50e6


def test_bytes_over_sockets_are_counted_in_workers_and_without(part: Look):
    run = part("received")
    rows = sorted(run.rows("batches"), key=itemgetter("loader"))
    loaders = {number: list(own) for number, own in groupby(rows, key=itemgetter("loader"))}
    assert len(loaders) == 2
    for own in loaders.values():
        # To the byte: parts, files and what was decrypted; nothing twice.
        assert sum(row["network_bytes"] for row in own) == SAMPLES * SIZE
    made_by_workers, made_by_the_rank = loaders.values()
    assert {row["worker"] for row in made_by_workers} == {0, 1}
    assert {row["worker"] for row in made_by_the_rank} == {-1}
    # With what came for TLS besides, and what else was read; but no sample twice.
    read = sum(row["read_bytes"] for row in made_by_workers)
    assert SAMPLES * SIZE * 0.9 < read < SAMPLES * SIZE * 1.5
    assert sum(row["reads"] for row in made_by_workers) > SAMPLES
    for row in rows:  # time in reads is part of making a batch
        assert 0 < row["read_ns"] <= row["wall_ns"]


def test_what_headraces_storage_receives_is_counted(part: Look, styles: Run):
    images = (styles.folder.parent / "images").rglob("*.jpg")
    image_bytes = sum(file.stat().st_size for file in images)
    rows = part("remote_shards").rows("batches")
    assert len(rows) == 8
    assert image_bytes <= sum(row["network_bytes"] for row in rows) < 3 * image_bytes
    assert all(row["network_bytes"] <= row["read_bytes"] for row in rows)
    assert all(0 < row["read_ns"] <= row["wall_ns"] for row in rows)


def taken(run: Run) -> list[dict[str, Any]]:
    found = [row for row in run.rows("fetches") if row["loader"] == 0 and not row["ended"]]
    assert [(row["epoch"], row["batch"]) for row in found] == [
        (epoch, batch) for epoch in range(2) for batch in range(5)
    ]
    return found


@pytest.mark.parametrize("workers", ["1", "1 keep"])
def test_each_batch_is_taken_once_and_waiting_for_it_does_not_count(part: Look, workers: str):
    found = taken(part(f"taken {workers}"))
    assert all(0 < row["receive_ns"] <= row["wait_ns"] for row in found)
    assert all(0 < row["receive_cpu_ns"] <= row["receive_ns"] for row in found)
    received, waited = (sum(row[name] for row in found) for name in ("receive_ns", "wait_ns"))
    assert waited > 10 * 4 * 50e6 * 0.3  # so long its sleeps take, while the rank has a core
    assert received < waited / 2


def test_without_workers_nothing_is_taken(part: Look):
    found = taken(part("taken 0"))
    assert {(row["receive_ns"], row["receive_cpu_ns"]) for row in found} == {(-1, -1)}


@pytest.mark.parametrize("way", HANDED)
def test_batches_that_another_thread_takes_are_those_of_the_loader(part: Look, way: str):
    run = part(f"handed {way}")
    fetches = [row for row in run.rows("fetches") if not row["ended"]]
    first = min(row["epoch"] for row in fetches)  # all ways have one loader, made at one line
    taken = {(row["loader"], row["epoch"] - first, row["batch"]) for row in fetches}
    every = {(0, epoch, batch) for epoch in range(2) for batch in range(6)}
    # Before the first one came, nobody knew that batches come this way.
    assert every - {(0, 0, 0)} <= taken <= every
    assert len(taken) == len(fetches)
    assert all(row["ready"] >= 0 for row in fetches)
    steps = run.steps("train")
    counts = [2, 0, 2, 0] if way == "chunks" else [1] * 4  # both of a chunk come with the first
    assert [row["batches"] for row in steps[-4:]] == counts
    assert sum(row["data_wait_ns"] for row in steps) > 0


def test_batches_of_a_thread_that_began_before_any_other_trained(tmp_path: Path):
    run = record(tmp_path, "handed", "queue")
    check(run)
    steps = run.steps("train")
    assert [(row["loader"], row["samples"]) for row in steps[-11:]] == [(0, 4)] * 11
    numbers = [(row["epoch"], row["batch"]) for row in run.rows("fetches") if row["batch"] >= 0]
    assert len(set(numbers)) == len(numbers)


def test_batches_of_a_thread_are_counted_once_where_no_optimizer_steps(tmp_path: Path):
    run = record(tmp_path, "handed", "inference")
    check(run)
    fetches = [row for row in run.rows("fetches") if not row["ended"] and row["batch"] >= 0]
    assert len({(row["epoch"], row["batch"]) for row in fetches}) == len(fetches) <= 12
    rows = [row for row in run.rows("steps") if row["batches"]]
    assert 11 <= sum(row["batches"] for row in rows) <= 12
    assert {row["loader"] for row in rows} == {0}


def test_ranks_that_a_script_starts_itself(tmp_path: Path):
    """The script itself, which only drives them, is no rank."""
    run = record(tmp_path, "own_ranks")
    check(run)
    assert Counter(row["rank"] for row in run.steps("train")) == {0: 12, 1: 12}
    # Made before anything was trained: each rank's, and what the script had made as it forked one.
    assert len(run.rows("loaders")) == 3
    ranks = [row["rank"] for row in run.rows("processes") if row["role"] == "rank"]
    assert sorted(ranks) == [0, 1]


def line_of(script: str, words: str) -> int:
    lines = (SCRIPTS / f"{script}.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if words in line)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_that_trains_is_the_rank_of_a_script_that_looked_at_a_batch(
    tmp_path: Path, method: str
):
    run = record(tmp_path, "peeked", method)
    check(run)
    assert [row["batches"] for row in run.steps("train")] == [1] * 12
    assert [row["batches"] for row in run.steps("eval")] == [1] * 3  # not the batch looked at
    line = line_of("peeked", "trained here")
    trained = {row["loader"] for row in run.rows("loaders") if row["line"] == line}
    assert {row["loader"] for row in run.steps("train")} == trained
    made = Counter(row["worker"] for row in run.rows("batches") if row["loader"] in trained)
    assert made == {0: 12}
    assert line_of("peeked", "evaluated here") not in {row["line"] for row in run.rows("loaders")}
    refused = [row["text"] for row in run.rows("events") if row["kind"] == "not-recorded"]
    assert [text.partition(",")[0] for text in refused] == ["peeked.py"]
    assert any("left no records" in gap for gap in diagnose(open_records(run.folder)).gaps)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_are_the_rank_in_turn_have_loaders_of_their_own(tmp_path: Path, method: str):
    run = record(tmp_path, "stages", method)
    check(run)
    lines = [line_of("stages", words) for words in ("trained first", "trained then")]
    found = {(row["loader"], row["line"], row["workers"]) for row in run.rows("loaders")}
    (first, *one), (then, *other) = sorted(found, key=lambda each: each[1])
    assert (one, other) == ([lines[0], 0], [lines[1], 1])
    assert first != then
    assert Counter(row["loader"] for row in run.steps("train")) == {first: 12, then: 20}
    made = Counter((row["loader"], row["worker"]) for row in run.rows("batches"))
    assert made == {(first, -1): 12, (then, 0): 20}


def test_ranks_that_lightning_starts_are_distinguished_before_they_meet(tmp_path: Path):
    run = record(tmp_path, "lightning_ddp")
    check(run)
    assert Counter(row["rank"] for row in run.steps("train")) == {0: 10, 1: 10}
    assert {row["batches"] for row in run.steps("train")} == {2}
    assert Counter(row["rank"] for row in run.steps("eval")) == {0: 6, 1: 6}
    ranks = [row["rank"] for row in run.rows("processes") if row["role"] == "rank"]
    assert sorted(ranks) == [0, 1]
    made = Counter(row["rank"] for row in run.rows("batches"))
    assert made == {0: 26, 1: 26}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("two_ranks")
    run = record(folder, "two_ranks", flags=["--nproc-per-node", "2"])
    check(run)
    return run


def test_ddp_separates_gradient_sync_from_backward(two_ranks: Run):
    steps = [row for row in two_ranks.steps("train") if row["loader"] == 0]
    assert Counter(row["rank"] for row in steps) == {0: 20, 1: 20}
    measured = [row for row in steps if row["sync_measured"]]
    assert measured
    assert any(row["sync_ns"] for row in measured)
    assert all(row["sync_ns"] == 0 for row in steps if not row["sync_measured"])
    made = [row for row in two_ranks.rows("batches") if row["loader"] == 0]
    assert {row["rank"] for row in made} == {0, 1}


def test_sharded_models_report_waits_for_other_ranks(two_ranks: Run):
    steps = [row for row in two_ranks.steps("train") if row["loader"] != 0]
    assert Counter(row["rank"] for row in steps) == {0: 24, 1: 24}
    assert all(row["sync_measured"] and row["sync_ns"] for row in steps)
    # FSDP2, FSDP1; in the first step of each, ranks wait for who imports more slowly.
    for part in (range(1, 12), range(13, 24)):
        waited: Counter[int] = Counter()
        for rank in (0, 1):
            own = [row for row in steps if row["rank"] == rank]
            waited[rank] = sum(own[number]["sync_ns"] for number in part)
        assert waited[0] > waited[1]  # the other one is slower


def test_nothing_is_recorded_when_the_profile_is_off(tmp_path: Path):
    (tmp_path / "train.py").write_text("print('trained')\n")
    run = record(tmp_path, tmp_path / "train.py", flags=("--profile", "off"))
    assert run.stdout == "trained\n"
    assert not (run.folder / "records").exists()


@pytest.mark.parametrize("flags", WRONG)
def test_wrong_flags_are_reported(tmp_path: Path, flags: tuple[str, str]):
    ended = run_here(tmp_path, "run", *flags, str(SCRIPTS / "plain.py"))
    assert ended.returncode == 2
    assert flags[1] in ended.stderr


def test_the_script_finds_what_it_would_have_found(tmp_path: Path):
    """The same argv, sys.path, stdin and exit code, and its own sitecustomize."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys; sys.users_own = True\n")
    (tmp_path / "prints.py").write_text(
        "import os, sys\n"
        "print([sys.argv, sys.path, os.getcwd(), sys.users_own, sys.stdin.read(), __file__])\n"
        "sys.exit(7)\n"
    )
    outputs = []
    for start in ([sys.executable], [sys.executable, "-m", "headrace.cli.main", "run"]):
        ended = subprocess.run(
            ["env", f"PYTHONPATH={tmp_path / 'own'}", *start, "prints.py", "a", "-b"],
            input="hello", capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert ended.returncode == 7
        outputs.append(ended.stdout)
    assert outputs[0] == outputs[1]


def test_training_in_a_thread_with_workers_of_a_fork_server_and_copies(part: Look, styles: Run):
    run = part("threaded")
    steps = run.steps("train")
    assert len(steps) == 15
    assert {(row["loader"], row["worker"]) for row in run.rows("batches")} == {(1, 0), (1, 1)}
    methods = [row["start_method"] for row in run.rows("loaders")]
    assert methods == [multiprocessing.get_all_start_methods()[0], "forkserver"]
    # The thread that trains is looked at, not the one that waits for it.
    assert "busy" in busy_functions(run, worker=False)
    copies = {(row["copies"], row["pageable_copies"], row["blocking_copies"]) for row in steps}
    assert copies == {(2, 2, 1)}
    assert all(0 < row["copy_ns"] < row["wall_ns"] for row in steps)
    assert styles.rows("device_steps") == []  # nothing has a clock but the host


def test_loaders_get_what_is_applied_in_place_of_the_scripts_arguments(part: Look):
    run = part("advised plain")
    assert [row["workers"] for row in run.rows("loaders")] == [16, 0]
    # 20 batches an epoch, in turns, by many workers that live on.
    made = Counter((row["loader"], row["worker"]) for row in run.rows("batches"))
    assert made == {(1, -1): 10, **{(0, each): 4 if each < 4 else 2 for each in range(16)}}
    workers = {row["pid"] for row in run.rows("processes") if row["role"] == "worker"}
    assert len(workers) == 16


def test_our_own_loader_gets_what_is_applied_too(part: Look):
    rows = part("own_loader").rows("loaders")
    assert {(row["workers"], row["prefetch_factor"]) for row in rows} == {(1, 3)}


def test_what_is_applied_to_no_loader_is_reported(styles: Run):
    stderr = styles.stderr
    unapplied = ("accumulating.py:18=3", "plain.py:99=1")  # a stream's, and at no such line
    for place in unapplied:
        assert f"headrace: num_workers@{place} was applied to no DataLoader" in stderr
    assert stderr.count("was applied to no") == len(unapplied)


def test_a_stream_is_not_iterated_by_more_workers_than_the_script_wanted(part: Look, styles: Run):
    assert part("accumulating").rows("loaders")[0]["workers"] == 2
    assert "is not applied to Stream" in styles.stderr


def test_arguments_that_need_workers_go_with_them(part: Look):
    rows = [row for row in part("advised made_anew").rows("loaders") if row["line"] == 30]
    found = {(row["workers"], row["persistent"], row["prefetch_factor"]) for row in rows}
    assert (len(rows), found) == (7, {(0, 0, 0)})


WITHIN = """
import time
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Items(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.randn(4)

class Stream(IterableDataset):
    def __iter__(self):
        yield from DataLoader(Items(), batch_size=None)

net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(Stream(), batch_size=4)
for epoch in range(3):
    for batch in loader:
        net(batch).square().mean().backward()
        optimizer.step()
"""


def test_a_loader_that_is_iterated_within_a_request_is_a_part_of_the_wait(tmp_path: Path):
    (tmp_path / "within.py").write_text(WITHIN)
    ended = run_here(tmp_path, "run", "--name", "base", "within.py")
    assert ended.returncode == 0, ended.stderr
    steps = open_run(tmp_path / "runs" / "base").steps
    trained = steps[steps["kind"] == "train"]
    assert len(trained) == 12
    assert trained["loader"].nunique() == 1
    assert (trained["data_wait_ns"] >= 4 * 20_000_000).all()  # of each first step, too
