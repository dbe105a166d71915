"""Samples made by a pool of the script's own; no loader."""

import multiprocessing

import torch
from points import busy, model
from torch import nn


def load(number):
    busy(0.02)
    return [float(number)] * 16


if __name__ == "__main__":
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for sample in pool.imap(load, range(40)):
            x, y = torch.tensor([sample]), torch.tensor([1])
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
