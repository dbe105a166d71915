"""Train on batches from a generator of the script's own."""

import argparse

import torch
from emulated import DEVICE, Network
from torch import nn


def moving_average(values, width):
    """Return the average over each window."""
    ends = range(width, len(values))
    return [sum(values[end - width : end]) / width for end in ends]  # at fault


def batches(count, size):
    """Yield batches of smoothed random walks."""
    walks = torch.randn(size, 100).cumsum(1)
    for _ in range(count):
        smooth = [moving_average(walk, 12) for walk in walks.tolist()]
        yield torch.tensor(smooth), torch.randint(0, 10, (size,))


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--lr", type=float, default=0.001)
    args = parser.parse_args()
    model = Network(step_ms=12).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for x, y in batches(args.steps, 320):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
