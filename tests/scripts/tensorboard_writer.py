"""Trains, and writes for TensorBoard in the ways that people do; see test_tracked_jobs.py."""

import sys

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

again = "--again" in sys.argv
first, folder = (20, "version_1") if again else (0, "version_0")  # as Lightning's logger names them
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
train, val = SummaryWriter(folder), SummaryWriter("events/val")
for step in range(first, first + 20):
    loss = net(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    train.add_scalar("loss", step / 2, step)
    train.add_histogram("weights", net.weight, step)
    if step % 10 == 0:
        val.add_scalar("loss", step, step, new_style=True)
train.add_hparams({"momentum": 0.5, "amp": True, "model": "linear"}, {"accuracy": 0.75})
train.close()
val.close()
