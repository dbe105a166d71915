"""Train on molecules; a batch carries how many bonds lie between any two atoms."""

import argparse
from functools import partial

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Molecules(Dataset):
    """Chains of atoms with a few rings: bonds as pairs of atoms, and the number of atoms."""

    def __init__(self, count):
        random = np.random.default_rng(2)
        self.molecules = []
        for _ in range(count):
            atoms = int(random.integers(50, 90))
            chain = np.stack([np.arange(atoms - 1), np.arange(1, atoms)])
            rings = random.integers(0, atoms, (2, 4))
            self.molecules.append((np.concatenate([chain, rings], axis=1), atoms))

    def __len__(self):
        return len(self.molecules)

    def __getitem__(self, index):
        bonds, atoms = self.molecules[index]
        return bonds, atoms, float(atoms % 7)


def with_distances(molecules, *, most_atoms, unreachable):
    """Return a batch: distances between atoms, padded, and targets."""
    distances = np.full((len(molecules), most_atoms, most_atoms), unreachable, np.int64)
    for place, (bonds, atoms, _) in enumerate(molecules):
        distances[place, bonds[0], bonds[1]] = distances[place, bonds[1], bonds[0]] = 1
        distances[place, np.arange(atoms), np.arange(atoms)] = 0
    for via in range(most_atoms):
        detour = distances[:, :, via, None] + distances[:, None, via]  # at fault
        distances = np.minimum(distances, detour)  # at fault
    targets = torch.tensor([target for _, _, target in molecules])
    return torch.from_numpy(distances).float(), targets


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--molecules", type=int, default=15_360)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    loader = DataLoader(
        Molecules(args.molecules),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=2,
        collate_fn=partial(with_distances, most_atoms=96, unreachable=99),
    )
    model = Network(step_ms=10).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(args.epochs):
        for distances, targets in loader:
            energy = model(distances.to(DEVICE)).mean(1)
            loss = nn.functional.smooth_l1_loss(energy, targets.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
