"""Trains a little with a delay in its data; fails, or waits, while a file is there."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from headrace import experiments


class Delayed(Dataset):
    """Random samples, each of which takes some time."""

    def __init__(self, delay_s):
        self.delay_s = delay_s

    def __len__(self):
        return 240

    def __getitem__(self, index):
        time.sleep(self.delay_s)
        return torch.randn(4)


parser = argparse.ArgumentParser()
parser.add_argument("--delay-ms", type=float, default=0.0)
parser.add_argument("--kind", default="plain")
args = parser.parse_args()
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step, x in enumerate(DataLoader(Delayed(args.delay_ms / 1000), batch_size=4)):
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    experiments.log_time_series_metrics({"loss": loss}, step=step)
if args.kind == "odd" and Path("fail").exists():
    raise SystemExit("this kind is not there yet")
if args.kind == "odd" and Path("wait").exists():
    Path("waiting").touch()
    time.sleep(600)
