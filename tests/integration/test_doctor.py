"""A recorded run, diagnosed: the line that starves it is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs import run_here
from recorded import SCRIPTS

SCRIPT = """
import numpy as np
import torch
from points import Descent
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
        return 1600  # some seconds: enough looks at the lines, on a fast machine, too

    def __getitem__(self, index):
        image = np.random.default_rng(index).random((96, 96))
        for transform in self.transforms:
            image = transform(image)
        return image.float()


def main():
    torch.set_num_threads(1)
    loader = DataLoader(Images(), batch_size=8, num_workers=WORKERS)
    model = torch.nn.Linear(96, 1)
    optimizer = Descent(model.parameters())
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
    ended = run_here(tmp_path, "run", "--name", "slow", "train.py", PYTHONPATH=str(SCRIPTS))
    assert ended.returncode == 0, ended.stderr
    assert "of step time waits for data" in ended.stderr
    diagnosis = json.loads(run_here(tmp_path, "doctor", "--json").stdout)
    assert diagnosis["verdict"]["bound"] == "data"
    worst = diagnosis["findings"][0]
    assert worst["rule"] in {"cpu-bound-worker", "too-few-workers"}
    assert worst["cause"]["transform"].endswith("Sharpen")
    line = SCRIPT.splitlines()[worst["cause"]["line"] - 1]
    assert "np.tanh(np.sort" in line
    shown = run_here(tmp_path, "doctor", "slow")
    assert shown.returncode == 0
    assert "train.py" in shown.stdout


def test_a_run_that_is_not_there_is_one_clear_sentence(tmp_path: Path):
    ended = run_here(tmp_path, "doctor", "nothing")
    assert ended.returncode == 2
    assert ended.stderr.startswith("headrace: There is no run 'nothing'")
