"""Trains on shards of JSON lines. One line of the second shard was cut off by a full disk."""
import json
import random
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from shardio import ShardStream


def write_shards(folder, rows=8000, broken_at=1000):
    pick = random.Random(0)
    paths = [Path(folder) / f"part-{n}.jsonl" for n in range(2)]
    for number, path in enumerate(paths):
        with open(path, "w") as out:
            for row in range(rows):
                line = json.dumps({"x": [round(pick.random(), 3) for _ in range(16)], "y": row % 2})
                out.write((line[:40] if number == 1 and row == broken_at else line) + "\n")
    return paths


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        time.sleep(0.04)
        return self.head(x)


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(ShardStream(write_shards(folder)), batch_size=8, num_workers=2)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
