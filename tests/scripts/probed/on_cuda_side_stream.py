"""Trains on a CUDA device; each batch is copied on another stream, beside the step before it."""

import torch
from points import Points
from torch import nn
from torch.utils.data import DataLoader

VOLUME = torch.rand(25_000_000).pin_memory()  # 100 MB: the device copies it for two milliseconds


class Prefetcher:
    """The batches of a loader on the device: the next one is copied while one is in use."""

    def __init__(self, loader):
        self.batches = iter(loader)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        """Copy the next batch on the prefetcher's stream."""
        self.next = next(self.batches, None)
        if self.next is not None:
            with torch.cuda.stream(self.stream):
                x, y = self.next
                self.next = [each.cuda(non_blocking=True) for each in (x, y, VOLUME)]

    def __iter__(self):
        while self.next is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.next
            for tensor in batch:
                tensor.record_stream(torch.cuda.current_stream())
            self.preload()
            yield batch


net = nn.Sequential(nn.Linear(16, 8192), nn.Linear(8192, 8192), nn.Linear(8192, 3)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    for x, y, _ in Prefetcher(DataLoader(Points(320), 8, num_workers=1, pin_memory=True)):
        for _ in range(40):  # longer than the copy
            loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.cuda.synchronize()
