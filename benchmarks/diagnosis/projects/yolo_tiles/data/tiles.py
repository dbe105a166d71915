from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset


def create_tiles(root, n, size=32, n_classes=12, seed=4):
    rng = np.random.default_rng(seed)
    frequency = 1.0 / np.arange(1, n_classes + 1)
    labels = rng.choice(n_classes, size=n, p=frequency / frequency.sum()).astype(np.int16)
    tiles = rng.integers(0, 256, size=(n, 3, size, size), dtype=np.uint8)
    tiles[np.arange(n), labels % 3, 8:24, 8:24] //= 3
    np.save(Path(root) / "tiles.npy", tiles)
    np.save(Path(root) / "labels.npy", labels)


class LoadTiles(Dataset):
    def __init__(self, root, hyp):
        self.tiles = np.load(Path(root) / "tiles.npy", mmap_mode="r")
        self.labels = np.load(Path(root) / "labels.npy")
        self.hyp = hyp

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        tile = self.tiles[i].astype(np.float32)
        if np.random.random() < self.hyp["fliplr"]:
            tile = tile[:, :, ::-1]
        tile = tile + np.random.standard_normal(tile.shape).astype(np.float32) * self.hyp["noise"]
        return torch.from_numpy(tile), int(self.labels[i])

    @staticmethod
    def collate_fn(batch):
        im, label = zip(*batch)
        return torch.stack(im, 0), torch.tensor(label)
