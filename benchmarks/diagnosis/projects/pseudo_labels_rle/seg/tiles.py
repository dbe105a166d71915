from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

SIDE = 256


def write(folder, kinds=48):
    path = Path(folder) / "tiles.u8"
    np.random.default_rng(0).integers(0, 255, (kinds, SIDE, SIDE), dtype=np.uint8).tofile(path)
    return path


class Tiles(Dataset):
    def __init__(self, path, count):
        self.pixels = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, SIDE, SIDE)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return {"name": f"tile_{i:05d}", "image": torch.from_numpy(np.array(self.pixels[i % len(self.pixels)]))}
