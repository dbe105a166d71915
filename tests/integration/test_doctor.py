"""A recorded run, diagnosed: the line that starves it is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HEADRACE = [sys.executable, "-m", "headrace.cli.main"]
SCRIPT = """
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Sharpen:
    def __call__(self, image):
        for _ in range(12):
            image = np.tanh(np.sort(image, axis=0) * 1.01)
        return image


class Images(Dataset):
    def __init__(self):
        self.transforms = [Sharpen(), torch.from_numpy]

    def __len__(self):
        return 320

    def __getitem__(self, index):
        image = np.random.default_rng(index).random((96, 96))
        for transform in self.transforms:
            image = transform(image)
        return image.float()


def main():
    torch.set_num_threads(1)
    loader = DataLoader(Images(), batch_size=8, num_workers=WORKERS)
    model = torch.nn.Linear(96, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images in loader:
        optimizer.zero_grad()
        model(images).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""


@pytest.mark.alone
@pytest.mark.parametrize("workers", [0, 1])
def test_the_line_that_starves_a_run_is_named(tmp_path: Path, workers: int):
    (tmp_path / "train.py").write_text(SCRIPT.replace("WORKERS", str(workers)))
    ran = subprocess.run(
        [*HEADRACE, "run", "--name", "slow", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "of step time waits for data" in ran.stderr
    told = subprocess.run(
        [*HEADRACE, "doctor", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    diagnosis = json.loads(told.stdout)
    assert diagnosis["verdict"]["bound"] == "data"
    worst = diagnosis["findings"][0]
    assert worst["rule"] in {"cpu-bound-worker", "too-few-workers"}
    assert worst["cause"]["transform"].endswith("Sharpen")
    line = SCRIPT.splitlines()[worst["cause"]["line"] - 1]
    assert "np.tanh(np.sort" in line
    shown = subprocess.run(
        [*HEADRACE, "doctor", "slow"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "train.py" in shown.stdout


SHORT_STEPS = """
import torch
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __len__(self):
        return 14_400

    def __getitem__(self, index):
        return torch.full((16,), float(index % 7)), index % 4


def main():
    torch.set_num_threads(1)
    loader = DataLoader(Points(), batch_size=16, num_workers=2, prefetch_factor=4)
    layers = [torch.nn.Linear(16, 400), torch.nn.ReLU(), torch.nn.Linear(400, 400)]
    model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(400, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for points, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(points), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""
AT_TIMES = """
import time

while True:
    began = time.perf_counter()
    while time.perf_counter() - began < 0.015:
        pass
    time.sleep(0.035)
"""


@contextmanager
def other_jobs() -> Iterator[None]:
    """Use three tenths of every core meanwhile."""
    command = [sys.executable, "-c", AT_TIMES]
    jobs = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for job in jobs:
            job.kill()
            job.wait()


@pytest.mark.alone
def test_steps_of_a_few_ms_beside_other_jobs_are_not_starved(tmp_path: Path):
    (tmp_path / "train.py").write_text(SHORT_STEPS)
    with other_jobs():
        subprocess.run(
            [*HEADRACE, "run", "--name", "short", "train.py"],
            cwd=tmp_path, capture_output=True, check=True,
        )  # fmt: skip
    told = subprocess.run(
        [*HEADRACE, "doctor", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    diagnosis = json.loads(told.stdout)
    assert diagnosis["verdict"]["steps"] > 800
    # The workers have nothing left to do: what the rank waits for is handing over, and a core.
    worst = {each["severity"] for each in diagnosis["findings"]}
    assert worst <= {"info", "warning"}, diagnosis["findings"]


def test_a_run_that_is_not_there_is_one_clear_sentence(tmp_path: Path):
    told = subprocess.run(
        [*HEADRACE, "doctor", "nothing"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert told.stderr.startswith("headrace: There is no run 'nothing'")
