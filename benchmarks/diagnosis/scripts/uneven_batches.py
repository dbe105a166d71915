"""Train on documents of very different lengths, sorted into batches of like length."""

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset


def count_letters(text):
    """Return how often each letter occurs."""
    counts = [0] * 64
    for letter in text:
        counts[ord(letter) % 64] += 1
    return counts


class Documents(Dataset):
    """Documents; every sixteenth batch has long ones."""

    def __init__(self, batches, batch_size):
        self.batches, self.batch_size = batches, batch_size

    def __len__(self):
        return self.batches * self.batch_size

    def __getitem__(self, index):
        long = (index // self.batch_size) % 16 == 15
        counts = count_letters("the mill wheel " * (14_000 if long else 20))
        return torch.tensor(counts, dtype=torch.float32), index % 10


def main():
    """Train one epoch."""
    loader = DataLoader(Documents(160, 16), batch_size=16, num_workers=2)
    model = Network(step_ms=22).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
