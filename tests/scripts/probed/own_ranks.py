"""A script that starts its ranks itself; each has its loader before it knows which rank it is."""

import os
import sys

import torch
from points import Points, model
from torch import distributed, multiprocessing, nn
from torch.utils.data import DataLoader

RANKS = 2


def train(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    loader = DataLoader(Points(96), 8)
    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for x, y in loader:
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    multiprocessing.start_processes(train, (port,), nprocs=RANKS, start_method=sys.argv[1])
