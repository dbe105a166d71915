"""Slow samples from as many workers as the first argument says; `keep`: workers that live on."""

import gc
import sys
import time
import weakref

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    """Samples that are slept for."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.05)
        return torch.zeros(1000), index


net = torch.nn.Linear(1000, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
workers, keep = int(sys.argv[1]), "keep" in sys.argv
batches = DataLoader(Slow(), batch_size=4, num_workers=workers, persistent_workers=keep)
for _ in range(2):
    for x, _ in batches:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
if keep:
    gc.disable()
    iterator = iter(DataLoader(Slow(), batch_size=4, num_workers=1))
    next(iterator)
    known = weakref.ref(iterator)
    del iterator
    gc.enable()
    assert known() is None, "an iterator that nobody has any more still has its workers"
