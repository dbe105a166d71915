"""The example of reference case B, both ways, small."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from headrace.records.reader import open_records
from jobs import run
from machine import needs
from network_hosts import NetworkHost, network_hosts, sagemaker

pytestmark = pytest.mark.timeout(600)  # Ray starts some twenty processes
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_vit"
GROUPS = {"cpu": ["algo-1"], "gpu": ["algo-2"]}
WAITS = """
import os, pathlib, time
_prepare = prepare


def prepare(image):
    # One host has this process's parent, the other has another; a sample waits for both.
    pathlib.Path(__file__).with_name(f"by-{os.getppid()}.mark").touch()
    deadline_s = time.monotonic() + 60
    while len(list(pathlib.Path(__file__).parent.glob("*.mark"))) < 2:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return _prepare(image)
"""
NOTHING_INSTALLED = ["--requirements", "none"]  # into the environment of the tests
SMALL = ["--batch-size", "2", "--steps", "4", "--every", "2", "--model", "tiny"]


@pytest.fixture
def hosts() -> Iterator[dict[str, NetworkHost]]:
    with network_hosts(["algo-1", "algo-2"]) as hosts:
        yield {host.name: host for host in hosts}


def recorded_steps(folder: Path) -> list[dict]:
    steps = open_records(folder).table("steps").to_pylist()
    return [row for row in steps if row["kind"] == "train"]


def test_the_blur_is_what_opencv_calls_by_that_name(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import images  # type: ignore[import-not-found]

    image = images.random_image()
    blurred = images.GaussianBlur(11, (1.3, 1.3))(torch.from_numpy(image).permute(2, 0, 1))
    expected = cv2.GaussianBlur(image, (11, 11), 1.3, borderType=cv2.BORDER_REFLECT_101)
    np.testing.assert_allclose(blurred.permute(1, 2, 0).numpy(), expected, atol=1e-5)
    assert images.prepare(image).shape == (3, 224, 224)
    del sys.modules["images"]


def test_the_plain_script_with_help_of_an_auxiliary_host(tmp_path: Path):
    example, work = tmp_path / "ray_vit", tmp_path / "work"
    shutil.copytree(EXAMPLE, example, ignore=shutil.ignore_patterns("__pycache__"))
    with (example / "images.py").open("a") as images:  # both hosts need it: it goes along
        images.write(WAITS)
    work.mkdir()
    ended = run(
        work, "--engine", "ray", "--group", "gpu=1:cpus=1", "--group", "cpu=1:cpus=1",
        "--offload", "cpu", *NOTHING_INSTALLED, "--run-dir", "r",
        str(example / "train.py"), "--workers", "1", *SMALL,
        OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "cpu-0 makes batches" in ended.stderr
    assert "step 4: " in ended.stdout
    assert len(recorded_steps(work / "r")) == 4
    arrivals = open_records(work / "r").table("arrivals").to_pylist()
    assert {row["host"] for row in arrivals if row["counted"]} == {"cpu-0"}


@needs("networks")
def test_ray_data_and_ray_train_on_the_hosts_of_a_sagemaker_job(
    hosts: dict[str, NetworkHost], tmp_path: Path
):
    shutil.copytree(EXAMPLE, tmp_path / "ray_vit", ignore=shutil.ignore_patterns("__pycache__"))
    jobs = {
        name: host.start(
            tmp_path, "cluster", "join", "--driver", *NOTHING_INSTALLED, "--run-dir", "r",
            "ray_vit/train_ray.py", *SMALL, HOME=str(tmp_path), OMP_NUM_THREADS="1",
            **sagemaker(host, GROUPS, "gpu"),
        )
        for name, host in hosts.items()
    }  # fmt: skip
    codes = {name: job.wait(300) for name, job in jobs.items()}
    output = hosts["algo-2"].output(tmp_path)
    assert codes == {"algo-1": 0, "algo-2": 0}, output
    assert "step 4: " in output
    assert f"- (ip={hosts['algo-2'].address}, pid=" in output  # it trains where the script runs
    assert "Reporting training result 2" in output
    # The worker of Ray Train is rank 0 of the run's records; its namespace is on this machine.
    steps = recorded_steps(tmp_path / "r")
    assert [row["samples"] for row in steps] == [2] * 4
    assert all(row["data_wait_ns"] and row["backward_ns"] for row in steps)
    (loader,) = open_records(tmp_path / "r").table("loaders").to_pylist()
    assert (loader["kind"], Path(loader["file"]).name) == ("ray", "train_ray.py")
