"""Train on samples of one archive that all workers read through one lock."""

import multiprocessing
import pathlib
import tempfile
import zlib

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Archive(Dataset):
    """Compressed records in one file; the reader of it must not be used twice at a time."""

    def __init__(self, path, count):
        self.path, self.count = path, count
        self.lock = multiprocessing.Lock()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with self.lock:  # at fault
            record = self.read(index)
        return torch.from_numpy(record[:4096] / 255.0), index % 10

    def read(self, index):
        """Return a record, which lies at one of many places."""
        with self.path.open("rb") as file:
            file.seek((index % 16) * 8)
            data = file.read()
        return np.frombuffer(zlib.decompress(data[-self.size :]), np.uint8)

    @property
    def size(self):
        """Bytes of the record."""
        return SIZE


record = zlib.compress(np.random.default_rng(1).integers(0, 8, 1_200_000, np.uint8).tobytes())
SIZE = len(record)
with tempfile.NamedTemporaryFile() as archive:
    archive.write(bytes(1024) + record)
    archive.flush()
    loader = DataLoader(
        Archive(pathlib.Path(archive.name), 960), batch_size=8, shuffle=True, num_workers=4
    )
    model = Network(step_ms=12).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
