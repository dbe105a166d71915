"""Train and, now and then, render the embedding as a picture."""

import random

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def render(points):
    """Return a picture of the density of points."""
    picture = np.zeros((200, 200))
    across = np.linspace(-2, 2, 200)
    for x, y in points:
        picture += np.exp(-((across[:, None] - x) ** 2) - (across - y) ** 2)  # at fault
    return picture


def main():
    """Train."""
    random.seed(4)
    points = np.random.default_rng(0).normal(size=(1000, 2))
    data = TensorDataset(torch.randn(5760, 64), torch.randint(0, 10, (5760,)))
    model = Network(step_ms=20).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(data, batch_size=32, shuffle=True, num_workers=1):
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if random.random() < 0.04:
            render(points)


if __name__ == "__main__":
    main()
