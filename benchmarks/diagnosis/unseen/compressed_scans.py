"""Train on patches of scans of two hospitals, which lie compressed on the disk."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

torch.set_num_threads(1)

PATCH = 16


def write_scans(folder, count, brightness):
    """Write scans as a hospital would and return where they are."""
    random = np.random.default_rng(brightness)
    paths = [folder / f"{brightness}-{number}.npz" for number in range(count)]
    for path in paths:
        scan = random.normal(brightness, 25, (40, 128, 128)).astype(np.int16)
        np.savez_compressed(path, scan=scan, spacing=np.array([2.5, 0.7, 0.7]))
    return paths


class Patches(Dataset):
    """Random cubes of the scans of one hospital."""

    def __init__(self, paths, per_scan, label):
        self.paths, self.per_scan, self.label = paths, per_scan, label

    def __len__(self):
        return len(self.paths) * self.per_scan

    def __getitem__(self, index):
        with np.load(self.paths[index % len(self.paths)]) as file:
            scan = file["scan"]  # at fault
        corner = torch.randint(0, 16, (3,)).tolist()
        cube = scan[tuple(slice(start, start + PATCH) for start in corner)]
        return torch.from_numpy((cube / 1000).astype(np.float32)), self.label


def train(loader, model, optimizer):
    """Train one epoch."""
    model.train()
    for cubes, labels in loader:
        cubes, labels = cubes.to(DEVICE), labels.to(DEVICE)  # noqa: PLW2901
        loss = nn.functional.cross_entropy(model(cubes), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


with tempfile.TemporaryDirectory() as root:
    hospitals = ConcatDataset(
        [
            Patches(write_scans(Path(root), 4, 300), per_scan=300, label=0),
            Patches(write_scans(Path(root), 4, 500), per_scan=300, label=1),
        ]
    )
    known = Subset(hospitals, [number for number in range(len(hospitals)) if number % 5])
    network = Network(step_ms=15).to(DEVICE)
    adam = torch.optim.Adam(network.parameters(), lr=1e-3)
    train(DataLoader(known, batch_size=12, shuffle=True, num_workers=2), network, adam)
