"""Trains on a CUDA device, with batches copied from page-locked memory and from other memory."""

import torch
from points import Points
from torch import nn
from torch.utils.data import DataLoader

net = nn.Sequential(nn.Linear(16, 2048), nn.Linear(2048, 2048), nn.Linear(2048, 3)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    for x, y in DataLoader(Points(320), 8, num_workers=1, pin_memory=True):
        x, y = x.to("cuda", non_blocking=True), y.clone().cuda()  # noqa: PLW2901
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
torch.cuda.synchronize()
