"""Two workers that take an exact CPU time: they feed one rank, but not one a core of the host."""

import time

import torch
from points import Descent, Points, model
from torch import nn
from torch.utils.data import DataLoader

torch.set_num_threads(1)  # threads that spin beside the workers would take CPU time of no account
net = model()
optimizer = Descent(net.parameters())
for x, y in DataLoader(Points(400, busy_s=0.0075), batch_size=4, num_workers=2):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
    time.sleep(0.02)  # the accelerator
