"""Train on a stream with persistent workers and gradient accumulation."""

import argparse

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    """Rows, shared out among the workers."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, self.count, info.num_workers):
            generator = torch.Generator().manual_seed(number)
            yield torch.randn(64, generator=generator), number % 10


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=2)
    args = parser.parse_args()
    loader = DataLoader(Stream(1920), batch_size=32, num_workers=2, persistent_workers=True)
    model = Network(step_ms=30).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(args.epochs):
        for number, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
            (loss / args.accumulate).backward()
            if number % args.accumulate == args.accumulate - 1:
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
