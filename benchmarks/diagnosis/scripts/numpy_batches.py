"""Train on volumes; the collate function leaves batches as arrays."""

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    """Volumes of 2 MB."""

    def __init__(self):
        self.volumes = np.random.default_rng(2).random((24, 80, 80, 80), dtype=np.float32)

    def __len__(self):
        return 1280

    def __getitem__(self, index):
        return self.volumes[index % 24], index % 10


def as_arrays(samples):
    """Return what the samples are, unstacked."""
    return [volume for volume, _ in samples], [label for _, label in samples]


if __name__ == "__main__":
    loader = DataLoader(Volumes(), batch_size=16, num_workers=2, collate_fn=as_arrays)
    model = Network(step_ms=12).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for volumes, labels in loader:
        x = torch.stack([torch.from_numpy(volume[:1, :1]) for volume in volumes])
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), torch.tensor(labels).to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
