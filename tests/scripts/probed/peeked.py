"""A script that looks at a batch, and then starts the process that trains; that one evaluates."""

import sys

import torch
from points import Descent, Points, model
from torch import multiprocessing, nn
from torch.utils.data import DataLoader


def evaluate() -> None:
    assert len(list(DataLoader(Points(16), 8))) == 2  # evaluated here


def train() -> None:
    torch.set_num_threads(1)
    net = model()
    optimizer = Descent(net.parameters())
    for x, y in DataLoader(Points(96), 8, num_workers=1):  # trained here
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    evaluation = multiprocessing.get_context("fork").Process(target=evaluate)
    evaluation.start()
    evaluation.join()
    raise SystemExit(evaluation.exitcode)


if __name__ == "__main__":
    next(iter(DataLoader(Points(8), 8)))  # looked here
    process = multiprocessing.get_context(sys.argv[1]).Process(target=train)
    process.start()
    process.join()
    list(DataLoader(Points(24), 8))  # after it: this process is the rank again
    raise SystemExit(process.exitcode)
