"""A recorded run, diagnosed: the line that starves it is named."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace import open_run
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


LOOPS = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, batches, seconds):
        self.batches, self.seconds = batches, seconds

    def __len__(self):
        return self.batches * 2

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.randn(64)

torch.set_num_threads(1)
net = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
"""
ZIPPED = """
labelled, unlabelled = DataLoader(Rows(120, 0.02), 2), DataLoader(Rows(120, 0), 2)
for number, (a, b) in enumerate(zip(labelled, unlabelled)):
    time.sleep(0.01)
    (net(a).pow(2).mean() + net(b).pow(2).mean()).backward()
    if (number + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
ATTACKED = """
train, test = DataLoader(Rows(12, 0), 2), DataLoader(Rows(20, 0.02), 2)

def robust():
    for x in test:
        x.requires_grad_()
        net(x).pow(2).mean().backward()
        with torch.no_grad():
            net(x + 0.1 * x.grad.sign())

for epoch in range(5):
    for x in train:
        time.sleep(0.02)
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()
    robust()
"""


def looped(folder: Path, loop: str) -> tuple[dict[str, Any], Any]:
    """Return the diagnosis of a loop, and its rows of `steps` in which there were batches."""
    (folder / "train.py").write_text(LOOPS + loop)
    ended = run_here(folder, "run", "--name", "looped", "train.py")
    assert ended.returncode == 0, ended.stderr
    diagnosis = json.loads(run_here(folder, "doctor", "--json").stdout)
    steps = open_run(folder / "runs" / "looped").steps
    return diagnosis, steps[steps["batches"] > 0]


def test_two_loaders_that_gradients_are_accumulated_over_are_waited_for(tmp_path: Path):
    diagnosis, steps = looped(tmp_path, ZIPPED)
    assert set(steps["kind"]) == {"train"}
    assert set(steps["batches"]) == {4}
    assert (steps["data_wait_ns"] >= 4 * 40_000_000).all()
    assert diagnosis["verdict"]["bound"] == "data"
    assert "evaluation" not in {finding["rule"] for finding in diagnosis["findings"]}


def test_an_evaluation_that_calls_backward_is_in_no_step(tmp_path: Path):
    diagnosis, steps = looped(tmp_path, ATTACKED)
    assert Counter(steps["kind"]) == {"train": 5 * 12, "eval": 5 * 20}
    assert set(steps["batches"]) == {1}
    finding = diagnosis["findings"][0]
    assert finding["rule"] == "evaluation"
    assert finding["evidence"]["batches"] == 100


def test_a_run_that_is_not_there_is_one_clear_sentence(tmp_path: Path):
    ended = run_here(tmp_path, "doctor", "nothing")
    assert ended.returncode == 2
    assert ended.stderr.startswith("headrace: There is no run 'nothing'")
