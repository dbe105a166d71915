import os

import cv2
import numpy as np
import torch
from torch.utils.data import Dataset

cv2.setNumThreads(0)


def paint(root, n, size=64, classes=6, seed=8):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, size=n)
    images = rng.integers(0, 60, size=(n, size, size, 3), dtype=np.uint8)
    for image, label in zip(images, labels.tolist()):
        x, y = rng.integers(8, size - 24, size=2).tolist()
        image[y : y + 16, x : x + 16, label % 3] += np.uint8(100 + 60 * (label // 3))
    np.save(os.path.join(root, "images.npy"), images)
    np.save(os.path.join(root, "labels.npy"), labels)


class MosaicDataset(Dataset):
    """An index is (image, side); a mosaic is made of it and three others."""

    def __init__(self, root, classes=6, mosaic=True):
        self.images = np.load(os.path.join(root, "images.npy"), mmap_mode="r")
        self.labels = np.load(os.path.join(root, "labels.npy"))
        self.classes, self.mosaic = classes, mosaic

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, key):
        index, side = key
        target = np.zeros(self.classes, dtype=np.float32)
        if self.mosaic:
            image = self._mosaic(index, side, target)
        else:
            image = cv2.resize(np.asarray(self.images[index]), (side, side))
            target[self.labels[index]] = 1
        image = self._jitter(image)
        return torch.from_numpy(image.transpose(2, 0, 1).copy()), torch.from_numpy(target)

    def _mosaic(self, index, side, target):
        canvas = np.empty((side, side, 3), dtype=np.uint8)
        xc, yc = np.random.randint(side // 3, 2 * side // 3, size=2).tolist()
        boxes = ((0, 0, xc, yc), (xc, 0, side, yc), (0, yc, xc, side), (xc, yc, side, side))
        for i, (x0, y0, x1, y1) in zip([index, *np.random.randint(len(self), size=3).tolist()], boxes):
            canvas[y0:y1, x0:x1] = cv2.resize(np.asarray(self.images[i]), (x1 - x0, y1 - y0))
            target[self.labels[i]] = 1
        return canvas

    @staticmethod
    def _jitter(image):
        hue, sat, val = cv2.split(cv2.cvtColor(image, cv2.COLOR_RGB2HSV))
        gain = np.random.uniform(0.8, 1.2, size=2)
        ramp = np.arange(256)
        sat = cv2.LUT(sat, np.clip(ramp * gain[0], 0, 255).astype(np.uint8))
        val = cv2.LUT(val, np.clip(ramp * gain[1], 0, 255).astype(np.uint8))
        return cv2.cvtColor(cv2.merge((hue, sat, val)), cv2.COLOR_HSV2RGB)
