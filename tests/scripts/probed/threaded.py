"""Trains in a thread, with workers from a fork server, and copies each batch to another device."""

import multiprocessing
import os
import threading
from types import SimpleNamespace

import torch
from points import Points, busy, model
from torch import nn
from torch.utils.data import DataLoader


class Watchful(Points):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        assert "HEADRACE_LOADER" not in os.environ
        return super().__getitem__(index)


def train() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    DataLoader(Points(8), num_workers=1)  # another loader, which is not used
    assert multiprocessing.get_start_method(allow_none=True) is None  # may still be chosen
    for x, y in DataLoader(Watchful(120), 8, num_workers=2, multiprocessing_context="forkserver"):
        assert "HEADRACE_LOADER" not in os.environ
        x.to("meta")
        y.to(torch.device("meta"), non_blocking=True)
        busy(0.02)
        nn.functional.cross_entropy(net(x.to(torch.float32)), y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    # As a package of an accelerator does; `meta` stands for its memory.
    torch.utils.rename_privateuse1_backend("simulated")
    torch._register_device_module("simulated", SimpleNamespace(is_available=lambda: False))
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
