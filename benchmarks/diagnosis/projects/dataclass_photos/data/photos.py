import os

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from data.views import random_view, scaled_views


def take_photos(folder, n, side, classes, seed):
    os.makedirs(folder)
    rng = np.random.default_rng(seed)
    for i in range(n):
        label = i % classes
        coarse = rng.integers(0, 256, size=(4 + 3 * label, 4 + 3 * label, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((side, side), Image.Resampling.BILINEAR)
        photo.save(os.path.join(folder, f"{i:05d}_{label}.jpg"), quality=88)


def to_tensor(photo):
    array = np.asarray(photo, dtype=np.float32) / 255.0
    return torch.from_numpy(array.transpose(2, 0, 1).copy())


class Photos(Dataset):
    def __init__(self, folder, size):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        self.size = size

    def __len__(self):
        return len(self.paths)

    def open(self, i):
        path = self.paths[i]
        return Image.open(path).convert("RGB"), int(path[-5])


class TrainPhotos(Photos):
    def __getitem__(self, i):
        photo, label = self.open(i)
        return to_tensor(random_view(photo, self.size)), label


class ValPhotos(Photos):
    def __getitem__(self, i):
        photo, label = self.open(i)
        return torch.stack([to_tensor(v) for v in scaled_views(photo, self.size)]), label
