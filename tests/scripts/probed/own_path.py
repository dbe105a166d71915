"""A spawned worker, where the script says itself what is on PYTHONPATH."""

import os
from pathlib import Path

import torch
from points import Points, model
from torch import nn
from torch.utils.data import DataLoader

if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for x, y in DataLoader(Points(160), 8, num_workers=1, multiprocessing_context="spawn"):
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
