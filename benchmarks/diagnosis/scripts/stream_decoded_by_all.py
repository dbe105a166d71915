"""Train on a stream whose workers each decode all of it and keep their part."""

import sys
import time
import zlib

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


def decode(packed):
    """Return an example from its bytes."""
    values = np.frombuffer(zlib.decompress(packed), dtype=np.float32)
    return torch.from_numpy(values.reshape(64, -1).mean(1))


class Readings(IterableDataset):
    """Compressed readings, in one stream.

    Args:
        first: Whether a worker decides whose part an example is before it decodes.
    """

    def __init__(self, first):
        noise = np.random.default_rng(0).normal(size=(16, 98_304)).astype(np.float32)
        self.packed, self.first = [zlib.compress(each, 1) for each in noise], first

    def examples(self):
        """Yield all examples, decoded."""
        for number in range(4800):
            yield decode(self.packed[number % 16]), number % 10

    def __iter__(self):
        info = get_worker_info()
        own, workers = (info.id, info.num_workers) if info else (0, 1)
        if self.first:
            for number in range(own, 4800, workers):
                yield decode(self.packed[number % 16]), number % 10
            return
        for number, example in enumerate(self.examples()):
            if number % workers != own:  # at fault
                continue
            yield example


def main():
    """Train; with `--first` each worker decodes its own part alone."""
    loader = DataLoader(Readings("--first" in sys.argv), batch_size=16, num_workers=2)
    model = Network(step_ms=12).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began = time.perf_counter()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{4800 / (time.perf_counter() - began):.1f} readings/s")


if __name__ == "__main__":
    main()
