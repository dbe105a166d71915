import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from emulated import Accelerated
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Transform:
    def __init__(self, p=0.5):
        self.p = p

    def __call__(self, image, mask):
        if random.random() < self.p:
            image, mask = self.apply(image, mask)
        return {"image": image, "mask": mask}


class HorizontalFlip(Transform):
    def apply(self, image, mask):
        return image[:, ::-1], mask[:, ::-1]


class RandomBrightness(Transform):
    def apply(self, image, mask):
        return np.clip(image * random.uniform(0.8, 1.2), 0, 255).astype(np.uint8), mask


class GridDistortion(Transform):
    def __init__(self, steps=6, limit=8.0, p=0.5):
        super().__init__(p)
        self.steps, self.limit = steps, limit

    def apply(self, image, mask):
        height, width = mask.shape
        shift = np.random.uniform(-self.limit, self.limit, (2, self.steps, self.steps))
        zoom = (height / self.steps, width / self.steps)
        rows, columns = (ndimage.zoom(part, zoom, order=1) for part in shift)
        grid = np.mgrid[:height, :width] + np.stack([rows, columns])
        channels = [
            ndimage.map_coordinates(image[..., c], grid, order=1, mode="reflect") for c in range(3)
        ]
        mask = ndimage.map_coordinates(mask, grid, order=0, mode="reflect")
        return np.stack(channels, axis=-1), mask


class Normalize(Transform):
    def __init__(self):
        super().__init__(p=1.0)

    def apply(self, image, mask):
        return image.astype(np.float32) / 127.5 - 1, mask


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image, mask):
        for transform in self.transforms:
            done = transform(image=image, mask=mask)
            image, mask = done["image"], done["mask"]
        return {"image": image, "mask": mask}


class SceneDataset(Dataset):
    def __init__(self, images_dir, augmentation=None):
        self.images = sorted(Path(images_dir).glob("*_image.npy")) * 4
        self.augmentation = augmentation

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = np.load(self.images[i])
        mask = np.load(str(self.images[i]).replace("_image", "_mask"))
        sample = self.augmentation(image=image, mask=mask)
        image = np.ascontiguousarray(sample["image"].transpose(2, 0, 1))
        return torch.from_numpy(image), torch.from_numpy(sample["mask"].astype(np.int64))


def get_training_augmentation(distortion):
    return Compose(
        [
            HorizontalFlip(p=0.5),
            RandomBrightness(p=0.3),
            GridDistortion(p=distortion),
            Normalize(),
        ]
    )


def iou(logits, mask, classes):
    prediction = logits.argmax(1)
    scores = []
    for c in range(classes):
        both = ((prediction == c) & (mask == c)).sum()
        either = ((prediction == c) | (mask == c)).sum()
        scores.append((both / either.clamp(min=1)).item())
    return sum(scores) / classes


def main():
    parser = argparse.ArgumentParser(description="Semantic segmentation")
    parser.add_argument("--data", required=True)
    parser.add_argument("--classes", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--distortion", type=float, default=0.8, help="its probability")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = SceneDataset(args.data, get_training_augmentation(args.distortion))
    loader = DataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, num_workers=2, persistent_workers=True
    )
    net = nn.Sequential(nn.AvgPool2d(8), nn.Conv2d(3, args.classes, 1))
    model = Accelerated(net, step_ms=35).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    start = time.time()
    for epoch in range(args.epochs):
        for image, mask in loader:
            mask = mask[:, 4::8, 4::8].to(device)
            logits = model(image.to(device))
            loss = criterion(logits, mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"Epoch {epoch}: loss {loss:.3f}, IoU {iou(logits, mask, args.classes):.3f}")
    images = args.epochs * len(dataset)
    print(f"{images / (time.time() - start):.1f} images/s")


if __name__ == "__main__":
    main()
