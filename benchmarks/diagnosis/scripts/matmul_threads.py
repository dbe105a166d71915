"""Train on signals that are decomposed by NumPy in an iterable data set's workers."""

import argparse

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Signals(IterableDataset):
    """Signals as the sums of their strongest parts."""

    def __init__(self, count, size):
        self.count = count
        generator = np.random.default_rng(9)
        self.signals = generator.normal(size=(4, size, size)).astype(np.float32)
        self.filters = generator.normal(size=(size, size)).astype(np.float32)

    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, self.count, info.num_workers):
            filtered = self.signals[number % 4] @ self.filters
            energy = filtered.T @ filtered
            yield torch.from_numpy(energy[0, :64].copy()) / len(energy), number % 10


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--samples", type=int, default=640)
    args = parser.parse_args()
    loader = DataLoader(
        Signals(args.samples, 448), batch_size=8, num_workers=args.workers, persistent_workers=True
    )
    model = Network(step_ms=12).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
