"""Train with headrace's own loader on samples that are checked byte by byte."""

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import Dataset

import headrace


class Checked(Dataset):
    """Records with a checksum."""

    def __init__(self, count):
        self.count = count
        self.records = [bytes(range(256)) * 64 for _ in range(16)]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        record = self.records[index % 16]
        checked = self.checksum(record)
        return torch.full((64,), float(checked % 7)), index % 10

    @staticmethod
    def checksum(record):
        """Return the sum of a record's bytes, each times its place."""
        total = 0
        for place, byte in enumerate(record):
            total = (total + place * byte) % 65_521  # at fault
        return total


if __name__ == "__main__":
    loader = headrace.DataLoader(Checked(2880), batch_size=32, shuffle=True, num_workers=2)
    model = Network(step_ms=8).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
