import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def write_patches(folder, n, size, seed=11):
    rng = np.random.default_rng(seed)
    path = os.path.join(folder, "patches.npy")
    np.save(path, rng.integers(0, 256, size=(n, 3, size, size), dtype=np.uint8))
    return path


class TwoCropPatches(Dataset):
    def __init__(self, path, crop):
        self.patches = np.load(path, mmap_mode="r")
        self.crop = crop

    def __len__(self):
        return len(self.patches)

    def _view(self, patch):
        top, left = torch.randint(patch.shape[1] - self.crop, (2,)).tolist()
        view = patch[:, top : top + self.crop, left : left + self.crop].astype(np.float32) / 255
        if torch.rand(1) < 0.5:
            view = view[:, :, ::-1].copy()
        return torch.from_numpy(view)

    def __getitem__(self, index):
        patch = self.patches[index]
        return self._view(patch), self._view(patch)


def build_loader(path, crop, batch_size, workers):
    return DataLoader(
        TwoCropPatches(path, crop),
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
