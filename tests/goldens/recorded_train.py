"""A script that waits for its data: recorded by make_artefacts.py."""

from __future__ import annotations

import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Slow(Dataset[torch.Tensor]):
    """Samples that cost some milliseconds of a core."""

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> torch.Tensor:
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 8_000)
        return torch.full((16,), float(index))


def main() -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    model: nn.Module = nn.Linear(16, 4)
    sampler = None
    if ranks > 1:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(Slow(), shuffle=False)
    loader = DataLoader(Slow(), batch_size=4, num_workers=1, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for values in loader:
            optimizer.zero_grad()
            model(values).square().mean().backward()
            optimizer.step()
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
