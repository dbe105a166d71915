"""Train on a data set whose index each worker builds when it starts."""

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Indexed(Dataset):
    """Samples that are looked up by the hash of their name."""

    def __init__(self, names):
        self.names = names
        self.index = None

    def __len__(self):
        return 2560

    def __getitem__(self, index):
        if self.index is None:
            self.index = self.build_index()
        return torch.full((64,), float(self.index[index % 1000] % 7)), index % 10

    def build_index(self):
        """Go through all names, several times as hashes collide."""
        index = {}
        for attempt in range(24):
            for number in range(self.names):
                index[number % 1000] = hash((attempt, number))
        return index


if __name__ == "__main__":
    loader = DataLoader(Indexed(3_000_000), batch_size=32, num_workers=2)
    model = Network(step_ms=20).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
