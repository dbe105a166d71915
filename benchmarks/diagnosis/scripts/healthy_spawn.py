"""Train with workers that are spawned once."""

import torch
from emulated import DEVICE, Network
from photos import decode, jpeg
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """Photographs and their classes."""

    def __init__(self):
        self.files = [jpeg(number) for number in range(64)]

    def __len__(self):
        return 1600

    def __getitem__(self, index):
        return torch.from_numpy(decode(self.files[index % 64])), index % 10


if __name__ == "__main__":
    loader = DataLoader(
        Photos(),
        batch_size=16,
        num_workers=2,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    model = Network(step_ms=40).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
