"""A script that trains in processes, one after the other: a stage, and then another one twice."""

import sys

import torch
from points import Descent, Points, model
from torch import multiprocessing, nn
from torch.utils.data import DataLoader


def train(loader: DataLoader) -> None:
    torch.set_num_threads(1)
    net = model()
    optimizer = Descent(net.parameters())
    for x, y in loader:
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def pretrain() -> None:
    train(DataLoader(Points(96), 8))  # trained first


def finetune() -> None:
    train(DataLoader(Points(40), 4, num_workers=1))  # trained then


if __name__ == "__main__":
    for stage in (pretrain, finetune, finetune):
        process = multiprocessing.get_context(sys.argv[1]).Process(target=stage)
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(process.exitcode)
