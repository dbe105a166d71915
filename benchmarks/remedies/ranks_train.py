"""Train on one rank or several whose loaders share the cores of one host; `ranks.py` runs it."""

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

sys.path.append(str(Path(__file__).parents[1] / "diagnosis" / "scripts"))

from emulated import DEVICE, Network
from photos import decode, jpeg


class Samples(Dataset):
    """Samples of one kind of work."""

    def __init__(self, count, kind, amount):
        self.count, self.kind, self.amount = count, kind, amount
        self.files = [jpeg(number, 300, 400) for number in range(16)]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return getattr(self, self.kind)(index), index % 10

    def photo(self, index):
        """Decode and scale a photograph, several times."""
        for _ in range(self.amount):
            image = cv2.resize(decode(self.files[index % 16]), (96, 96))
        return torch.from_numpy(image).permute(2, 0, 1).float() / 255

    def digest(self, index):
        """Mix digits in a loop of Python's."""
        digest = bytes(64)
        for step in range(self.amount):
            digest = hashlib.blake2b(digest, digest_size=64, salt=bytes([step % 256])).digest()
        return torch.frombuffer(bytearray(digest), dtype=torch.uint8).float() / 255 + index % 2

    def sort(self, index):
        """Sort numbers."""
        numbers = np.random.default_rng(index).random(self.amount)
        return torch.from_numpy(np.sort(numbers)[:64]).float()

    def distant(self, index):
        """Wait for a store."""
        time.sleep(self.amount / 1000)
        return torch.full((64,), float(index % 7))


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["photo", "digest", "sort", "distant"])
    parser.add_argument("--amount", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--own-work", type=int, default=0, help="products of matrices in a step")
    options = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    torch.set_num_threads(1)
    data = Samples(options.batch * options.steps * ranks, options.kind, options.amount)
    loader = DataLoader(
        data,
        batch_size=options.batch,
        sampler=DistributedSampler(data) if ranks > 1 else None,
        num_workers=options.workers,
        worker_init_fn=lambda _: cv2.setNumThreads(0),
    )
    model = Network(step_ms=options.step_ms).to(DEVICE)
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    matrix = torch.ones(256, 256)
    for x, y in loader:
        for _ in range(options.own_work):
            matrix = (matrix @ matrix).clamp(max=1.0)
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
