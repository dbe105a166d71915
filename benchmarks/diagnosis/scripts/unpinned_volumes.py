"""Train on volumes of 48 MB a batch, copied to the device from ordinary memory, while it waits."""

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
    loader = DataLoader(Volumes(1600), batch_size=4, shuffle=True, num_workers=2)
    model = Network(step_ms=20).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for volumes, labels in loader:
        volumes = volumes.to(DEVICE)  # noqa: PLW2901  # at fault
        loss = nn.functional.cross_entropy(model(volumes), labels.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
