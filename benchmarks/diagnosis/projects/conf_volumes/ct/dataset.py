import numpy as np
import torch
from torch.utils.data import Dataset


class RandomCrops(Dataset):
    def __init__(self, store, crop, repeats):
        self.store, self.crop, self.repeats = store, crop, repeats

    def __len__(self):
        return len(self.store) * self.repeats

    def __getitem__(self, index):
        k = index % len(self.store)
        volume = self.store.read(k)
        corner = [np.random.randint(0, s - c + 1) for s, c in zip(volume.shape, self.crop)]
        window = volume[tuple(slice(a, a + c) for a, c in zip(corner, self.crop))]
        crop = np.clip(window.astype(np.float32) / 500.0, -1.0, 2.0)
        return torch.from_numpy(crop[None]), self.store.label(k)
