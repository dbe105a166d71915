"""Loaders that are made anew all the time, in the ways that people do it."""

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    """Numbers from a first one on."""

    def __init__(self, first):
        self.first = first

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((4,), float(self.first + index))


def train(net, optimizer, loader):
    """Train on what a loader gives."""
    for batch in loader:
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()


def round_of(net, optimizer, number, *, shuffle):
    """Make a loader and train on it: it is gone when the function is over."""
    loader = DataLoader(Numbers(number), batch_size=4, num_workers=1, shuffle=shuffle)
    train(net, optimizer, loader)


def main():
    """Train."""
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for number in range(3):
        round_of(net, optimizer, number, shuffle=True)
    for number in range(2):
        loader = DataLoader(Numbers(number), batch_size=4)  # lives until there is another
        train(net, optimizer, loader)
    for shuffle in (False, True, False, True):
        round_of(net, optimizer, 0, shuffle=shuffle)
    sets = {"train": Numbers(0), "val": Numbers(50)}
    for phase in ("train", "val", "train", "val"):
        loader = DataLoader(sets[phase], batch_size=4)
        train(net, optimizer, loader)
    iterators = [iter(DataLoader(Numbers(number), batch_size=4)) for number in range(2)]
    for pair in zip(*iterators, strict=True):
        train(net, optimizer, pair)


if __name__ == "__main__":
    main()
