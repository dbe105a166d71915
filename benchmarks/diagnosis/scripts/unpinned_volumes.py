"""Train on volumes of 48 MB a batch, copied to the device from ordinary memory, while it waits.

With `--pinned` they are copied from pinned memory, asynchronously.
"""

import argparse
import time

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    """Volumes that lie in memory, and whether each is of a patient."""

    def __init__(self, count):
        self.count = count
        self.volumes = torch.rand(8, 3_000_000)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.volumes[index % 8], index % 2


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pinned", action="store_true")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    pinned, rows = options.pinned, Volumes(4 * options.steps)
    loader = DataLoader(rows, batch_size=4, shuffle=True, num_workers=2, pin_memory=pinned)
    model = Network(step_ms=20).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for step, (volumes, labels) in enumerate(loader):
        if step == 10:
            began = time.perf_counter()
        volumes = volumes.to(DEVICE, non_blocking=pinned)  # noqa: PLW2901  # at fault
        loss = nn.functional.cross_entropy(model(volumes), labels.to(DEVICE, non_blocking=pinned))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    loss.item()  # the device has done its work
    print(f"{4 * (step - 9) / (time.perf_counter() - began):.1f} volumes/s")


if __name__ == "__main__":
    main()
