"""A script that starts its ranks itself; each has its loader before it knows which rank it is."""

import os
import tempfile

os.environ["HEADRACE_DRIVES"] = "1"  # as a cluster's host sets it for a script under --driver

import torch
from points import Descent, Points, model
from torch import distributed, multiprocessing, nn
from torch.utils.data import DataLoader

METHODS = ("fork", "spawn")  # of the first rank, and of the second


def train(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    loader = DataLoader(Points(96), 8)
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}/place", rank=rank, world_size=len(METHODS)
    )
    net = model()
    optimizer = Descent(net.parameters())
    for x, y in loader:
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert "HEADRACE_DRIVES" not in os.environ  # what this rank starts works for a rank


if __name__ == "__main__":
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    list(DataLoader(Points(8)))  # a look at the data: that is no training
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            multiprocessing.get_context(method).Process(target=train, args=(rank, folder))
            for rank, method in enumerate(METHODS)
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
        raise SystemExit(sum(each.exitcode for each in ranks))
