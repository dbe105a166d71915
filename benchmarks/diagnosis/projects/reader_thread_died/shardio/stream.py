import torch
from torch.utils.data import IterableDataset, get_worker_info

from .reader import ThreadedReader


class ShardStream(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def _mine(self):
        info = get_worker_info()
        return self.paths if info is None else self.paths[info.id :: info.num_workers]

    def __iter__(self):
        for path in self._mine():
            for record in ThreadedReader(path):
                yield self._decode(record)

    def _decode(self, record):
        return torch.tensor(record["x"]), record["y"]
