"""A folder of small PNG "glyph" images, one sub-folder per class."""
import os

import numpy as np
from PIL import Image
from torch.utils.data import Dataset


def make_glyphs(root, n_images, size, n_classes=8, seed=0):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:size, 0:size].astype(np.float32) / size
    for k in range(n_classes):
        os.makedirs(os.path.join(root, "class_%02d" % k), exist_ok=True)
    for i in range(n_images):
        k = i % n_classes
        fx, fy = 2 + k, 3 + (k * 5) % 7
        phase = rng.uniform(0, 6.28, size=3)
        img = np.stack(
            [127 + 90 * np.sin(fx * 6.28 * xx + p) * np.cos(fy * 6.28 * yy + p) for p in phase],
            axis=-1,
        )
        img += rng.normal(0, 4, size=img.shape)
        arr = np.clip(img, 0, 255).astype(np.uint8)
        Image.fromarray(arr).save(
            os.path.join(root, "class_%02d" % k, "%05d.png" % i), compress_level=1
        )


class GlyphFolder(Dataset):
    def __init__(self, root, transform=None):
        self.samples = []
        for label, name in enumerate(sorted(os.listdir(root))):
            folder = os.path.join(root, name)
            for fn in sorted(os.listdir(folder)):
                self.samples.append((os.path.join(folder, fn), label))
        self.transform = transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        with open(path, "rb") as f:
            image = Image.open(f).convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        return image, label
