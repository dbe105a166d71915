"""Train a deep, narrow network on eight rows at a time: kernels are launched more than run."""

import argparse
import time

import torch
from emulated import DEVICE
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    count = options.steps * options.batch_size
    rows = TensorDataset(torch.rand(count, 64), torch.randint(10, (count,)))
    loader = DataLoader(rows, options.batch_size, num_workers=2, prefetch_factor=16)
    layers = [layer for _ in range(24) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(64, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader):
        if step == 10:
            began = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    loss.item()  # the device has done its work
    rows_done = options.batch_size * (step - 9)
    print(f"{rows_done / (time.perf_counter() - began):.1f} rows/s")


if __name__ == "__main__":
    main()
