"""Train on sentences of different lengths, padded to the longest of the batch."""

import random

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    """Lists of token numbers."""

    def __init__(self, count):
        source = random.Random(5)
        self.samples = [
            [source.randrange(30_000) for _ in range(source.randrange(200, 400))]
            for _ in range(400)
        ]
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.samples[index % len(self.samples)], index % 10


def pad(samples):
    """Return padded tokens and labels."""
    longest = max(len(tokens) for tokens, _ in samples)
    batch = torch.zeros(len(samples), longest)
    for row, (tokens, _) in enumerate(samples):
        for column, token in enumerate(tokens):
            batch[row, column] = token  # at fault
    return batch, torch.tensor([label for _, label in samples])


def main():
    """Train one epoch."""
    loader = DataLoader(Sentences(4800), batch_size=32, shuffle=True, num_workers=2, collate_fn=pad)
    model = Network(step_ms=10).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for tokens, labels in loader:
        loss = nn.functional.cross_entropy(model(tokens.to(DEVICE)), labels.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
