"""Train on samples from a cache on disk that a file lock guards."""

import fcntl
import pathlib
import tempfile

import numpy as np
import torch
from emulated import DEVICE, Network
from servers import row_store
from socket_rows import RowClient
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Cache(Dataset):
    """Rows of a store; only one process may talk to it at a time."""

    def __init__(self, folder, port, count):
        self.folder, self.port, self.count = pathlib.Path(folder), port, count
        self.client = None

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.client is None:
            self.client = RowClient(self.port)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # at fault
            row = self.client.get(index)
        return torch.from_numpy(np.frombuffer(row, np.uint8) / 255.0), index % 10


def main():
    """Train one epoch."""
    with tempfile.TemporaryDirectory() as folder, row_store(latency_s=0.003) as port:
        data = Cache(folder, port, 1000)
        loader = DataLoader(data, batch_size=10, num_workers=4, persistent_workers=True)
        model = Network(step_ms=15).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
