"""Train on sliding windows of prices in the training process: they are cheap to cut."""

import argparse
import csv
import io
import random

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

torch.set_num_threads(1)


def prices(days):
    """Return closing prices from a table in text."""
    source, price, table = random.Random(7), 100.0, io.StringIO()
    writer = csv.writer(table)
    for day in range(days):
        price *= 1 + source.gauss(0, 0.01)
        writer.writerow([day, f"{price:.2f}"])
    table.seek(0)
    return [float(close) for _, close in csv.reader(table)]


class Windows(Dataset):
    """Prices of some days, relative to the first, and whether they rise on the next."""

    def __init__(self, closes, length=256):
        self.closes, self.length = closes, length

    def __len__(self):
        return len(self.closes) - self.length

    def __getitem__(self, index):
        window = self.closes[index : index + self.length]
        relative = [close / window[0] - 1 for close in window]
        return torch.tensor(relative), int(self.closes[index + self.length] > window[-1])


def accuracy(model, loader):
    """Return the share of windows that are told right."""
    model.eval()
    with torch.no_grad():
        right = [(model(x.to(DEVICE)).argmax(1).cpu() == y).float().mean() for x, y in loader]
    model.train()
    return torch.stack(right).mean().item()


def main():
    """Train and evaluate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=6_400)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=2)
    args = parser.parse_args()
    data = Windows(prices(args.days))
    split = len(data) - 320
    train = DataLoader(Subset(data, range(split)), args.batch_size, shuffle=True)
    test = DataLoader(Subset(data, range(split, len(data))), 64)
    model = Network(step_ms=40).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number, (x, y) in enumerate(train, start=1):
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        (loss / args.accumulate).backward()
        if number % args.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"{accuracy(model, test):.1%} right")


if __name__ == "__main__":
    main()
