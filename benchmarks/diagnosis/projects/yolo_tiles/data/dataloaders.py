import numpy as np
from torch.utils.data import DataLoader

from data.samplers import SAMPLERS
from data.tiles import LoadTiles


class InfiniteDataLoader(DataLoader):
    """Dataloader that reuses workers. Uses same syntax as vanilla DataLoader."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", _RepeatSampler(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class _RepeatSampler:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


def create_dataloader(path, hyp, batch_size, num_samples, workers, sampling="draw"):
    dataset = LoadTiles(path, hyp)
    counts = np.bincount(dataset.labels)
    weights = (1.0 / counts[dataset.labels]) ** hyp["rare_power"]
    return InfiniteDataLoader(
        dataset,
        batch_size=batch_size,
        sampler=SAMPLERS[sampling](weights, num_samples),
        num_workers=workers,
        drop_last=True,
        collate_fn=LoadTiles.collate_fn,
    )
