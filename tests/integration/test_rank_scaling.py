"""`headrace cost simulate`: what a recorded run would be with many ranks."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.observe.whatif.measured_pipeline import measure
from headrace.observe.whatif.prediction import Simulator
from headrace.observe.whatif.tables import CachedTables
from headrace.observe.whatif.train_steps import read_steps
from headrace.records.reader import open_records
from jobs import run_here

RECORDED = Path(__file__).parents[1] / "goldens" / "artefacts" / "recorded"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two ranks that waits for data, on a host with a price."""
    found = tmp_path_factory.mktemp("simulated")
    shutil.copytree(RECORDED / "ranks", found / "runs" / "ranks")
    run = found / "runs" / "ranks" / "run.json"
    content = json.loads(run.read_text())
    group = {"name": "gpu", "hosts": 1, "instance_type": "g5.12xlarge", "role": "training"}
    content["attempts"][-1] |= {"groups": [group]}
    run.write_text(json.dumps(content))
    return found


def simulated(folder: Path, *words: str) -> dict[str, Any]:
    done = run_here(folder, "cost", "simulate", "ranks", "--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def sixty_four(folder: Path) -> dict[str, Any]:
    return simulated(folder, "--ranks", "64")


def test_the_measured_number_of_ranks_is_as_fast_as_it_was(
    folder: Path, sixty_four: dict[str, Any]
):
    measured = read_steps(open_records(folder / "runs" / "ranks")).samples_per_s
    assert measured is not None
    two = next(job for job in sixty_four["jobs"] if job["ranks"] == 2)
    assert two["samples_per_s"]["value"] == pytest.approx(measured, rel=0.03)
    assert two["hosts"] == 1
    assert sixty_four["simulated"] is True
    assert sixty_four["measured_ranks"] == 2


def test_more_ranks_do_more_and_each_of_them_less(sixty_four: dict[str, Any]):
    jobs = sixty_four["jobs"]
    assert [job["ranks"] for job in jobs] == [1, 2, 4, 8, 16, 32, 64]
    assert [job["hosts"] for job in jobs] == [1, 1, 2, 4, 8, 16, 32]
    assert jobs[0]["efficiency"]["value"] == pytest.approx(1.0)
    for fewer, more in pairwise(jobs):
        assert more["efficiency"]["value"] < fewer["efficiency"]["value"]
        assert more["samples_per_s"]["value"] > fewer["samples_per_s"]["value"]
        assert more["data_ready"]["samples_per_s"] > fewer["data_ready"]["samples_per_s"]
    for job in jobs:
        efficiency, speed = job["efficiency"], job["samples_per_s"]
        assert efficiency["low"] <= efficiency["value"] <= efficiency["high"] <= 1
        assert speed["low"] <= speed["value"] <= speed["high"]
        shares = [job[f"{name}_share"] for name in ("wait", "straggler", "sync")]
        assert min(shares) >= 0
        assert sum(shares) < 1
        # Two hosts of one price with twice the ranks: by sample it costs what efficiency takes.
        rate = job["hosts"] * 5.672 / 3.6 / speed["value"]
        assert job["usd_per_1k_samples"] == pytest.approx(rate)
        assert job["read_bytes_per_s"] / speed["value"] == pytest.approx(
            jobs[0]["read_bytes_per_s"] / jobs[0]["samples_per_s"]["value"]
        )


def test_a_storage_limit_is_what_is_had_at_most(folder: Path, sixty_four: dict[str, Any]):
    wanted = sixty_four["jobs"][4]["read_bytes_per_s"]
    found = simulated(folder, "--ranks", "64", "--storage-limit", str(int(wanted)))
    for limited, free in zip(found["jobs"], sixty_four["jobs"], strict=True):
        assert limited["read_bytes_per_s"] <= wanted
        is_limited = limited["ranks"] > 16 or limited["is_limited_by_storage"]
        assert limited["is_limited_by_storage"] == is_limited
        if is_limited:
            assert limited["samples_per_s"]["value"] <= free["samples_per_s"]["value"]
            assert limited["wait_share"] >= free["wait_share"]
        else:
            assert limited == free
    # With less than one rank needs, all are fed as badly as that one alone: by their number.
    least = simulated(folder, "--ranks", "4", "--storage-limit", "1")["jobs"]
    assert [job["efficiency"]["value"] for job in least] == pytest.approx(
        [1, 1 / 2, 1 / 4], rel=0.02
    )
    assert [job["data_ready"]["efficiency"] for job in least] == pytest.approx(
        [1, 1 / 2, 1 / 4], rel=0.02
    )
    assert found["jobs"][-1]["efficiency"]["value"] < sixty_four["jobs"][-1]["efficiency"]["value"]


def test_hosts_and_auxiliary_cores_change_what_the_ranks_have(
    folder: Path, sixty_four: dict[str, Any]
):
    apart = simulated(folder, "--ranks", "4", "--hosts", "4")["jobs"]
    crowded = simulated(folder, "--ranks", "4", "--hosts", "1")["jobs"]
    assert [job["hosts"] for job in apart] == [1, 2, 4]
    assert [job["hosts"] for job in crowded] == [1, 1, 1]
    # One rank has a host to itself, however many there are on each in the end.
    rates = [jobs[0]["samples_per_s"]["value"] for jobs in (apart, crowded, sixty_four["jobs"])]
    assert rates == pytest.approx([rates[0]] * 3)
    assert crowded[1] == sixty_four["jobs"][1]  # two on one host, as in the run
    assert crowded[2]["samples_per_s"]["value"] < apart[2]["samples_per_s"]["value"]
    assert crowded[2]["efficiency"]["value"] < apart[2]["efficiency"]["value"]
    helped = simulated(folder, "--ranks", "4", "--auxiliary-cores", "8")["jobs"]
    assert helped[-1]["samples_per_s"]["value"] > sixty_four["jobs"][2]["samples_per_s"]["value"]
    assert helped[-1]["wait_share"] <= sixty_four["jobs"][2]["wait_share"]


@pytest.mark.parametrize("part", [0.25, 0.5])
def test_a_part_of_an_auxiliary_core_gives_that_part_of_what_it_would_give(
    folder: Path, part: float
):
    measured = measure(CachedTables(open_records(folder / "runs" / "ranks")))
    assert measured is not None
    of_a_worker = max(Simulator(measured).costs.busy_cores, 1.0)

    def rate(workers: float) -> float:
        cores = str(workers * of_a_worker)
        last = simulated(folder, "--ranks", "2", "--auxiliary-cores", cores)["jobs"][-1]
        assert last["samples_per_s"]["low"] <= last["samples_per_s"]["value"]
        return float(last["samples_per_s"]["value"])

    one, two = rate(1), rate(2)
    assert two > one
    assert rate(1 + part) == pytest.approx(one + part * (two - one))


def test_auxiliary_hosts_cost_too_and_hosts_that_do_not_exist_have_no_price(
    folder: Path, tmp_path: Path, sixty_four: dict[str, Any]
):
    price = sixty_four["jobs"][-1]["usd_per_1k_samples"]
    assert sixty_four["unpriced"] == ""
    shutil.copytree(folder / "runs" / "ranks", tmp_path / "runs" / "ranks")
    file = tmp_path / "runs" / "ranks" / "run.json"
    content = json.loads(file.read_text())
    (group,) = content["attempts"][-1]["groups"]
    cpu = {"name": "cpu", "hosts": 3, "instance_type": "c5.4xlarge", "role": "auxiliary"}
    content["attempts"][-1]["groups"] = [group, cpu]
    file.write_text(json.dumps(content))
    rates = ("--price", "gpu=5", "--price", "cpu=2")
    helped = simulated(tmp_path, "--ranks", "64", *rates)["jobs"][-1]["usd_per_1k_samples"]
    alone = simulated(folder, "--ranks", "64", *rates[:2])["jobs"][-1]["usd_per_1k_samples"]
    assert helped == pytest.approx(alone * (5 + 3 * 2) / 5)
    for words, why in (
        (("--auxiliary-cores", "8"), "--auxiliary-cores have no price"),
        (("--hosts", "8"), "g5.12xlarge has 4 accelerators, and a host is to have 8 ranks"),
        (("--hosts", "8", "--price", "5"), "g5.12xlarge has 4 accelerators"),
    ):
        found = simulated(folder, "--ranks", "64", *words)
        assert why in found["unpriced"]
        assert found["jobs"][-1]["usd_per_1k_samples"] is None
    assert price is not None


def test_of_one_rank_sync_and_stragglers_are_between_bounds(tmp_path: Path):
    shutil.copytree(RECORDED / "alone", tmp_path / "runs" / "ranks")
    found = simulated(tmp_path, "--ranks", "8")
    assert found["measured_ranks"] == 1
    assert any("gradient sync, not measured" in text for text in found["assumptions"])
    last = found["jobs"][-1]
    assert last["efficiency"]["high"] - last["efficiency"]["low"] > 0.01
    assert last["usd_per_1k_samples"] is None
    assert "give it with --instance-type" in found["unpriced"]


def test_what_is_printed_says_that_it_is_simulated_and_fits(folder: Path):
    done = run_here(folder, "cost", "simulate", "ranks", "--ranks", "64", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    text = " ".join(done.stdout.split())
    assert text.startswith("Simulated, not measured: 64 ranks would train at ")
    assert "Storage must give" in text
    assert "more than the 5,500 a second that S3 answers" in text
    assert "Assumed: hosts exchange gradients as fast as" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ranks", "6", "--hosts", "4"), "6 ranks are not shared among them evenly"),
        (("--ranks", "5000"), "it is 1 to 4096"),
        (("--price", "gpuu=1.2"), "the run has no gpuu, but g5.12xlarge, gpu"),
        (("--instance-type", "gpux=g5.xlarge"), "the run has no gpux, but gpu"),
        (("--storage-limit", "fast"), "is not a size"),
        (("--storage-limit", "0"), "--storage-limit"),
        (("--ranks", "0"), "greater than or equal to 1"),
        (("--auxiliary-cores", "inf"), "--auxiliary-cores inf: give a number of cores"),
        (("--auxiliary-cores", "nan"), "should be greater than or equal"),
    ],
)
def test_bad_input_is_refused(folder: Path, words: tuple[str, ...], message: str):
    done = run_here(folder, "cost", "simulate", "ranks", *words)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
