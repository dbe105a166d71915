"""Optimizers whose step is compiled: torch's, and one of the script's own, in one graph."""

import torch
from points import Points, model
from torch import nn
from torch.utils.data import DataLoader


class Plain(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self):
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(0.01 * parameter.grad)


def train(optimizer, compiled):
    @compiled
    def step():
        optimizer.step()

    for x, y in DataLoader(Points(160), 8):
        nn.functional.cross_entropy(net(x), y).backward()
        step()
        optimizer.zero_grad()


net = model()
train(torch.optim.AdamW(net.parameters(), foreach=True), torch.compile(backend="eager"))
train(Plain(net.parameters()), torch.compile(backend="eager", fullgraph=True))
