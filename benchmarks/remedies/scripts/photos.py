"""Photographs: decoded, sharpened by a loop over rows, scaled. The cores are what it needs."""

import cv2
import numpy as np
import torch
from options import loader_for, options, train
from torch.utils.data import Dataset


class Sharpen:
    """Sharpen an image row by row."""

    def __init__(self, effort):
        self.rows = int(160 * effort)

    def __call__(self, image):
        """Return it."""
        for row in range(1, self.rows):
            blurred = image[row - 1].astype(np.float32) * 0.5 + image[row] * 0.5
            image[row] = np.clip(1.5 * image[row] - 0.5 * blurred, 0, 255).astype(np.uint8)
        return image


class Photos(Dataset):
    """Photographs."""

    def __init__(self, count, effort):
        self.count = count
        random = np.random.default_rng(0)
        images = random.integers(0, 256, (32, 24, 32, 3), dtype=np.uint8)
        large = [cv2.resize(image, (256, 192), interpolation=cv2.INTER_CUBIC) for image in images]
        self.files = [cv2.imencode(".jpg", image)[1] for image in large]
        self.transforms = [Sharpen(effort)] if effort else []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = cv2.imdecode(self.files[index % 32], cv2.IMREAD_COLOR)
        for transform in self.transforms:
            image = transform(image)
        image = cv2.resize(image, (128, 96), interpolation=cv2.INTER_AREA)
        return torch.from_numpy(image).permute(2, 0, 1).float().div(255), index % 10


cv2.setNumThreads(0)
chosen = options()
train(loader_for(Photos(chosen.steps * chosen.batch_size, chosen.effort), chosen), chosen)
