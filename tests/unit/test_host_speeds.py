"""How fast hosts are: files of the user's, families with a source, and what may be compared."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from headrace.core.errors import UsageError
from headrace.decide.cost.host_speeds import CALIBRATED, HostSpeeds, add_speed


def row(name: str, rate: float) -> dict[str, object]:
    return {
        "InstanceType": name, "ImagesPerCore": rate, "Cores": 4, "Method": CALIBRATED,
        "Day": "2026-11-27", "Source": "a CPU",
    }  # fmt: skip


def test_measured_hosts_are_compared_and_come_before_families(tmp_path: Path):
    file = tmp_path / "speeds.csv"
    add_speed(file, row("g5.xlarge", 400))
    add_speed(file, row("c5.4xlarge", 300))
    add_speed(file, row("g5.xlarge", 500))  # measured anew
    add_speed(file, row("c3d-standard-4", 700))
    speeds = HostSpeeds([file])
    low, high = speeds.relative("c5.4xlarge", "g5.xlarge") or (0, 0)
    assert (low, high) == (pytest.approx(0.6 / 1.05), pytest.approx(0.6 * 1.05))
    assert speeds.relative("g5.xlarge", "g5.xlarge") == (1, 1)
    assert speeds.relative("c5.9xlarge", "g5.xlarge") is None
    # One host of a family was measured here, the others by somebody else in another way.
    assert speeds.relative("c3d-standard-8", "c3d-standard-4") is None


def test_hosts_that_calibrate_at_once_all_stand_in_the_file(tmp_path: Path):
    file, names = tmp_path / "speeds.csv", [f"c5.{number}xlarge" for number in range(24)]
    with ProcessPoolExecutor(8, mp_context=get_context("fork")) as hosts:
        for each in [hosts.submit(add_speed, file, row(name, 300)) for name in names]:
            each.result(timeout=60)
    speeds = HostSpeeds([file])
    found = {name: speed.source for name in names if (speed := speeds.find(name))}
    assert found == dict.fromkeys(names, "a CPU")


def test_families_have_a_source_and_are_compared_among_each_other():
    speeds = HostSpeeds([])
    low, high = speeds.relative("c4d-standard-8", "c3d-standard-4") or (0, 0)
    assert low < 857 / 690 < high
    known = speeds.find("c4a-highmem-4")
    assert known is not None
    assert known.source.startswith("github.com/")
    assert speeds.find("ml.m5.large") is None
    assert speeds.find("c4-standard-8") is not None
    assert speeds.find("c4.xlarge") is None  # EC2's, of another decade


def test_blanks_around_cells_mean_nothing(tmp_path: Path):
    file = tmp_path / "speeds.csv"
    file.write_text("InstanceType, ImagesPerCore ,Method\n c5.large, 300 ,m\ng5.xlarge ,600, m \n")
    low, high = HostSpeeds([file]).relative("c5.large", "g5.xlarge") or (0, 0)
    assert low < 0.5 < high


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("InstanceType\na\n", "has no column ImagesPerCore"),
        ("InstanceType,ImagesPerCore,Speed\na,1,2\n", "column Speed"),
        ("InstanceType,ImagesPerCore\na,fast\n", "line 2"),
        ("InstanceType,ImagesPerCore\na,1\nb,0\n", "line 3"),
        ("InstanceType,ImagesPerCore\na,1\n,2\n", "line 3"),
        ("InstanceType,ImagesPerCore\na,nan\n", "line 2"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, words: str):
    file = tmp_path / "speeds.csv"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        HostSpeeds([file])
    with pytest.raises(UsageError, match="cannot be read"):
        HostSpeeds([tmp_path / "absent.csv"])
