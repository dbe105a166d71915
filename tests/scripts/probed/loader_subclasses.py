"""Loaders that libraries derive from torch's, and batches whose size their first shape hides."""

import time

import torch
from points import Descent, Points, model
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

net = model()
optimizer = Descent(net.parameters())


def train() -> None:
    optimizer.zero_grad()
    net(torch.ones(1, 16)).sum().backward()
    optimizer.step()


class OwnIterator(_MultiProcessingDataLoaderIter):
    """An iterator like that of torchdata's StatefulDataLoader."""


class Independent(DataLoader):
    """Constructs itself and its iterators, as torchdata's StatefulDataLoader does."""

    def __init__(self, dataset, batch_size: int, num_workers: int) -> None:
        like = DataLoader([0], batch_size, num_workers=num_workers)
        sampler = torch.utils.data.BatchSampler(SequentialSampler(dataset), batch_size, False)
        self.dataset = dataset
        known = {**vars(like), "dataset": dataset, "batch_sampler": sampler}
        for name, value in known.items():
            if not name.startswith("_headrace"):
                object.__setattr__(self, name, value)

    def _get_iterator(self) -> OwnIterator:
        return OwnIterator(self)

    def __iter__(self) -> OwnIterator:
        return self._get_iterator()


class Endless(DataLoader):
    """Keeps one iterator over all epochs, and makes another one in `reset`."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))
        self.iterator = super().__iter__()

    def __iter__(self):
        for _ in range(len(self.batch_sampler.batches)):
            yield next(self.iterator)

    def reset(self) -> None:
        self.iterator = self._get_iterator()


class Forever:
    def __init__(self, batches) -> None:
        self.batches = batches

    def __iter__(self):
        while True:
            yield from self.batches


class Ragged:
    """A batch sampler that takes its time."""

    def __iter__(self):
        for size in (3, 1, 2, 3, 1, 2):
            time.sleep(0.01)
            yield list(range(size))


class Stream(IterableDataset):
    def __iter__(self):
        return iter([torch.zeros(16)] * 10)


def time_first(samples: list) -> torch.Tensor:
    return torch.stack([sample[0] for sample in samples], dim=1)


independent = Independent(Points(32), 8, num_workers=2)
for _ in range(2):
    for _ in independent:
        train()
endless = Endless(Points(32), 8, num_workers=1)
for epoch in range(2):
    if epoch:
        endless.reset()
    for _ in endless:
        train()
del endless
for workers in (0, 1):
    for _ in DataLoader(
        Points(3), batch_sampler=Ragged(), collate_fn=time_first, num_workers=workers
    ):
        train()
for _ in DataLoader(Stream(), 4, collate_fn=torch.stack, num_workers=1):
    train()
