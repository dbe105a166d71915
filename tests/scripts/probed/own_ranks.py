"""A script that starts its ranks itself; each has its loader before it knows which rank it is."""

import os
import sys
import tempfile

import torch
from points import Points, model
from torch import distributed, multiprocessing, nn
from torch.utils.data import DataLoader

RANKS = 2


def train(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    loader = DataLoader(Points(96), 8)
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}/place", rank=rank, world_size=RANKS
    )
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for x, y in loader:
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(train, (folder,), nprocs=RANKS, start_method=sys.argv[1])
