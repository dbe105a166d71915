"""Curriculum in rounds: each makes its loader and leaves it after some steps."""
import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from library import index
from library.dataset import Shelf

ROWS = 300_000


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(48, 1)

    def forward(self, x):
        time.sleep(0.03)
        return self.body(x)


def loader_for(round_number, path, batch_size):
    data = Shelf(path, ROWS, difficulty=round_number)
    return DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=2)


def run_round(model, optimizer, loader, max_steps):
    for step, x in enumerate(loader):
        if step >= max_steps:
            break
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--steps-per-round", type=int, default=25)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = Scorer()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.jsonl"
        index.write(path, ROWS)
        for number in range(args.rounds):
            run_round(model, optimizer, loader_for(number, path, 8), args.steps_per_round)


if __name__ == "__main__":
    main()
