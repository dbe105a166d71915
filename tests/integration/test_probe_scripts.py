"""Unmodified scripts in the styles that people write, recorded through `headrace run`."""

from __future__ import annotations

import html
import io
import json
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from recorded import SCRIPTS, Run, check

WRONG = [("--profile", "maybe"), ("--profile-interval", "1ms"), ("--apply", "num_worker=2")]


def busy_functions(run: Run, *, worker: bool) -> Counter[str]:
    """Return CPU nanoseconds by the innermost frame's function."""
    found: Counter[str] = Counter()
    for row in run.rows("stacks"):
        if (row["worker"] >= 0) == worker and row["phase"] != "idle":
            frames = row["stack"].split("\n")
            frame = next((f for f in reversed(frames) if "/probed/" in f), "")
            found[frame.rpartition(":")[2]] += row["cpu_ns"]
    return found


def test_a_plain_loop_with_an_evaluation(tmp_path: Path):
    run = Run(tmp_path / "run", "plain")
    check(run)
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
    # The page is there without being asked for, and says what was said at the end.
    page = html.unescape((run.folder / "report.html").read_text(encoding="utf-8"))
    diagnosis = json.loads((run.folder / "diagnosis.json").read_text(encoding="utf-8"))
    assert diagnosis["verdict"]["sentence"] in page
    assert diagnosis["verdict"]["sentence"] in " ".join(run.ended.stderr.split())


def test_loaders_that_are_made_anew_are_told_from_several(tmp_path: Path):
    run = Run(tmp_path / "run", "made_anew")
    check(run)
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


def test_short_transforms_are_timed_less_often(tmp_path: Path):
    run = Run(tmp_path / "run", "light")
    check(run)
    first, *_, last = [row for row in run.rows("transforms") if row["name"].endswith("[0]: Scale")]
    assert first["one_in"] == 8
    assert last["one_in"] > 8
    assert first["calls"] % 256 == last["calls"] % 256 == 0


def test_accumulated_gradients_from_an_iterable_dataset(tmp_path: Path):
    run = Run(tmp_path / "run", "accumulating")
    check(run)
    assert {(row["batches"], row["samples"]) for row in run.steps("train")} == {(4, 16)}
    assert len(run.steps("train")) == 2 * 2 * 64 // 16
    assert run.rows("loaders")[0]["style"] == "iterable"
    # Workers live on over the epochs.
    assert len([row for row in run.rows("processes") if row["role"] == "worker"]) == 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ranks_that_a_script_starts_itself(tmp_path: Path, method: str):
    run = Run(tmp_path / "run", "own_ranks", method)
    check(run)
    assert Counter(row["rank"] for row in run.steps("train")) == {0: 12, 1: 12}


def test_spawned_workers(tmp_path: Path):
    run = Run(tmp_path / "run", "spawned")
    check(run)
    assert len(run.steps("train")) == 10
    assert {(row["loader"], row["worker"]) for row in run.rows("batches")} == {(0, 0)}
    assert run.rows("loaders")[0]["start_method"] == "spawn"


def test_workers_are_recorded_whatever_a_script_makes_of_the_path(tmp_path: Path):
    run = Run(tmp_path / "run", "own_path")
    check(run)
    assert {(row["loader"], row["worker"]) for row in run.rows("batches")} == {(0, 0)}
    assert {row["role"] for row in run.rows("processes")} == {"rank", "worker"}


def test_an_optimizer_whose_step_is_compiled_trains_as_without(tmp_path: Path):
    run = Run(tmp_path / "run", "compiled_step")
    check(run)
    assert len(run.steps("train")) == 20
    assert "Dynamo does not know" not in run.ended.stderr


def test_what_a_pool_of_the_scripts_own_takes_is_the_runs(tmp_path: Path):
    run = Run(tmp_path / "run", "own_pool")
    check(run)
    recorded = {row["pid"] for row in run.rows("processes")}
    usage = run.rows("process_usage")
    assert any(row["cpu_percent"] > 0 for row in usage if row["pid"] not in recorded)


def test_training_in_a_thread_with_workers_of_a_fork_server_and_copies(tmp_path: Path):
    run = Run(tmp_path / "run", "threaded")
    check(run)
    steps = run.steps("train")
    assert len(steps) == 15
    assert {(row["loader"], row["worker"]) for row in run.rows("batches")} == {(1, 0), (1, 1)}
    assert run.rows("loaders")[1]["start_method"] == "forkserver"
    # The thread that trains is looked at, not the one that waits for it.
    assert "busy" in busy_functions(run, worker=False)
    told = {(row["copies"], row["pageable_copies"], row["blocking_copies"]) for row in steps}
    assert told == {(2, 2, 1)}
    assert all(0 < row["copy_ns"] < row["wall_ns"] for row in steps)
    assert run.rows("device_steps") == []  # nothing has a clock but the host


def test_headraces_own_loader_with_a_compiled_model(tmp_path: Path):
    run = Run(tmp_path / "run", "own_loader")
    check(run)
    assert len(run.steps("train")) == 10
    assert run.rows("loaders")[0]["kind"] == "headrace"
    assert {row["loader"] for row in run.rows("batches")} == {0}
    assert len(run.rows("batches")) == 10
    assert "Points.__getitem__" in {row["name"] for row in run.rows("transforms")}


def test_a_compiled_model_in_mixed_precision(tmp_path: Path):
    run = Run(tmp_path / "run", "mixed_precision")
    check(run)
    steps = run.steps("train")
    # The batch whose gradients overflowed is part of the step after it, as accumulated ones are.
    assert [row["batches"] for row in steps] == [1] * 10 + [2] + [1] * 8
    assert all(row["forward_ns"] and row["backward_ns"] and row["optimizer_ns"] for row in steps)


def test_many_workers(tmp_path: Path):
    flags = ("--apply", "num_workers@plain.py:10=16,persistent_workers@plain.py:10=on")
    run = Run(tmp_path / "run", "plain", flags=flags)
    check(run)
    made = Counter(row["worker"] for row in run.rows("batches") if row["loader"] == 0)
    # 20 batches an epoch, in turns.
    assert made == {worker: 4 if worker < 4 else 2 for worker in range(16)}
    workers = {row["pid"] for row in run.rows("processes") if row["role"] == "worker"}
    assert len(workers) == 16


def test_lightning(tmp_path: Path):
    run = Run(tmp_path / "run", "lightning_fit")
    check(run)
    assert [row["batches"] for row in run.steps("train")] == [2] * 20
    assert len(run.steps("eval")) == 10


def test_ranks_that_lightning_starts_are_told_apart_before_they_meet(tmp_path: Path):
    run = Run(tmp_path / "run", "lightning_ddp")
    check(run)
    assert Counter(row["rank"] for row in run.steps("train")) == {0: 20, 1: 20}
    ranks = [row["rank"] for row in run.rows("processes") if row["role"] == "rank"]
    assert sorted(ranks) == [0, 1]
    made = Counter(row["rank"] for row in run.rows("batches"))
    assert made == {0: 20, 1: 20}


def test_transformers_trainer(tmp_path: Path):
    run = Run(tmp_path / "run", "trainer", str(tmp_path / "out"))
    check(run)
    assert len(run.steps("train")) == 20
    assert sum(row["batches"] for row in run.steps("train")) == 40
    assert len(run.steps("eval")) == 10


def test_a_script_without_a_loader(tmp_path: Path):
    run = Run(tmp_path / "run", "without_loader")
    check(run)
    assert len(run.steps("train")) == 60
    assert run.rows("loaders") == []
    assert busy_functions(run, worker=False).most_common(1)[0][0] == "busy"


def test_a_webdataset_pipeline(tmp_path: Path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(80):
            label = str(number % 3).encode()
            member = tarfile.TarInfo(f"{number:04d}.cls")
            member.size = len(label)
            tar.addfile(member, io.BytesIO(label))
    run = Run(tmp_path / "run", "streamed", str(tmp_path / "a.tar"))
    check(run)
    assert len(run.steps("train")) == 20
    assert busy_functions(run, worker=True).most_common(1)[0][0] == "busy"
    timed = [row for row in run.rows("transforms") if row["name"].endswith(": Slowed")]
    assert sum(row["calls"] for row in timed) > 0
    assert {(Path(row["file"]).name, row["line"]) for row in timed} == {("streamed.py", 17)}
    assert all(row["cpu_ns"] > 0 for row in timed)


def test_ddp_tells_gradient_sync_from_backward(tmp_path: Path):
    run = Run(tmp_path / "run", "two_ranks_ddp", flags=("--nproc-per-node", "2"))
    check(run)
    steps = run.steps("train")
    assert Counter(row["rank"] for row in steps) == {0: 20, 1: 20}
    measured = [row for row in steps if row["sync_measured"]]
    assert measured
    assert any(row["sync_ns"] for row in measured)
    assert all(row["sync_ns"] == 0 for row in steps if not row["sync_measured"])
    assert {row["rank"] for row in run.rows("batches")} == {0, 1}


def test_sharded_models_tell_waits_for_other_ranks(tmp_path: Path):
    run = Run(tmp_path / "run", "sharded", flags=("--nproc-per-node", "2"))
    check(run)
    steps = run.steps("train")
    assert Counter(row["rank"] for row in steps) == {0: 24, 1: 24}
    assert all(row["sync_measured"] and row["sync_ns"] for row in steps)
    # FSDP2, FSDP1; in the first step of each, ranks wait for who imports more slowly.
    for part in (range(1, 12), range(13, 24)):
        waited = Counter()
        for row in steps:
            waited[row["rank"]] += row["sync_ns"] if row["step"] in part else 0
        assert waited[0] > waited[1]  # the other one is slower


def test_ray_data(tmp_path: Path):
    run = Run(tmp_path / "run", "ray_batches")
    check(run)
    assert len(run.steps("train")) == 40
    (loader,) = run.rows("loaders")
    assert (loader["kind"], loader["batch_size"], loader["prefetch_factor"]) == ("ray", 8, 2)
    assert Path(loader["file"]).name == "ray_batches.py"
    fetched = Counter((row["loader"], row["epoch"]) for row in run.rows("fetches"))
    assert fetched == {(0, 0): 21, (0, 1): 21}
    assert all(row["data_wait_ns"] for row in run.steps("train"))


def test_nothing_is_recorded_when_the_profile_is_off(tmp_path: Path):
    run = Run(tmp_path / "run", "plain", flags=("--profile", "off"))
    assert not (run.folder / "records").exists()


@pytest.mark.parametrize("flags", WRONG)
def test_wrong_flags_are_told(tmp_path: Path, flags: tuple[str, str]):
    command = [sys.executable, "-m", "headrace.cli.main", "run", *flags]
    ended = subprocess.run(
        [*command, str(SCRIPTS / "plain.py")], capture_output=True, text=True, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 2
    assert flags[1] in ended.stderr


def test_the_script_finds_what_it_would_have_found(tmp_path: Path):
    """The same argv, sys.path, stdin and exit code, and its own sitecustomize."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys; sys.users_own = True\n")
    (tmp_path / "tells.py").write_text(
        "import os, sys\n"
        "print([sys.argv, sys.path, os.getcwd(), sys.users_own, sys.stdin.read(), __file__])\n"
        "sys.exit(7)\n"
    )
    told = []
    for start in ([sys.executable], [sys.executable, "-m", "headrace.cli.main", "run"]):
        ended = subprocess.run(
            ["env", f"PYTHONPATH={tmp_path / 'own'}", *start, "tells.py", "a", "-b"],
            input="hello", capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert ended.returncode == 7
        told.append(ended.stdout)
    assert told[0] == told[1]


def test_loaders_get_what_is_applied_in_place_of_the_scripts_arguments(tmp_path: Path):
    run = Run(
        tmp_path / "run", "plain", flags=("--apply", "num_workers@plain.py:10=1,pin_memory=off")
    )
    check(run)
    assert [row["workers"] for row in run.rows("loaders")] == [1, 0]
    made = Counter((row["loader"], row["worker"]) for row in run.rows("batches"))
    assert made == {(0, 0): 40, (1, -1): 10}


def test_our_own_loader_gets_what_is_applied_too(tmp_path: Path):
    flags = ("--apply", "num_workers=1,prefetch_factor=3")
    run = Run(tmp_path / "run", "own_loader", flags=flags)
    check(run)
    assert {(row["workers"], row["prefetch_factor"]) for row in run.rows("loaders")} == {(1, 3)}
    assert "was applied to no DataLoader" not in run.ended.stderr


def test_what_is_applied_to_no_loader_is_told(tmp_path: Path):
    flags = ("--apply", "num_workers@plain.py:99=1,pin_memory=off,rank_threads=1")
    run = Run(tmp_path / "run", "plain", flags=flags)
    assert "headrace: num_workers@plain.py:99=1 was applied to no DataLoader" in run.ended.stderr
    assert run.ended.stderr.count("was applied to no") == 1


def test_a_stream_is_not_iterated_by_more_workers_than_the_script_wanted(tmp_path: Path):
    run = Run(tmp_path / "run", "accumulating", flags=("--apply", "num_workers=3"))
    assert run.rows("loaders")[0]["workers"] == 2
    assert "is not applied to Stream" in run.ended.stderr


def test_arguments_that_need_workers_go_with_them(tmp_path: Path):
    run = Run(tmp_path / "run", "plain", flags=("--apply", "num_workers=0,persistent_workers=on"))
    check(run)
    found = {
        (row["workers"], row["persistent"], row["prefetch_factor"]) for row in run.rows("loaders")
    }
    assert found == {(0, 0, 0)}
