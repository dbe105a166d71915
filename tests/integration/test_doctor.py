"""A recorded run, diagnosed: the line that starves it is named."""

from __future__ import annotations

import json
import subprocess
import sys
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
        return 2560  # some seconds: enough looks at the lines, on a fast machine, too

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


def test_a_run_that_is_not_there_is_one_clear_sentence(tmp_path: Path):
    told = subprocess.run(
        [*HEADRACE, "doctor", "nothing"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert told.stderr.startswith("headrace: There is no run 'nothing'")
