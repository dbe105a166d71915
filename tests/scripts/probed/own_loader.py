"""Headrace's own loader, and a compiled model."""

import torch
from points import Points, model
from torch import nn

import headrace

if __name__ == "__main__":
    net = torch.compile(model(), backend="eager")
    optimizer = torch.optim.AdamW(net.parameters())
    for x, y in headrace.DataLoader(Points(80), 8, num_workers=2):
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
