import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Shapes(Dataset):
    """Discs and squares on a noisy ground, drawn once into the memory."""

    def __init__(self, n, size=64, seed=6):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 2, size=n)
        self.images = rng.integers(0, 90, size=(n, 3, size, size), dtype=np.uint8)
        yy, xx = np.mgrid[0:size, 0:size]
        for image, label in zip(self.images, self.labels):
            cx, cy = rng.integers(16, size - 16, size=2)
            dx, dy = np.abs(xx - cx), np.abs(yy - cy)
            inside = (dx**2 + dy**2 < 144) if label else (np.maximum(dx, dy) < 11)
            image[int(rng.integers(3))][inside] += 120

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = torch.from_numpy(self.images[i]).float().div_(255)
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return image, int(self.labels[i])


def make_loader(n, batch_size, rank, world, workers):
    dataset = Shapes(n)
    sampler = DistributedSampler(dataset, num_replicas=world, rank=rank, shuffle=True, drop_last=True)
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
    )
    return loader, sampler
