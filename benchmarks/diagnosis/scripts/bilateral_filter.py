"""Train on denoised photographs."""

import argparse

import cv2
import torch
from emulated import DEVICE, Network
from photos import decode, jpeg
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Denoise:
    """Smooths noise and keeps edges."""

    def __init__(self, diameter):
        self.diameter = diameter

    def __call__(self, image):
        """Return the image, smoothed."""
        image = cv2.resize(image, (160, 120))
        return cv2.bilateralFilter(image, self.diameter, 60, 60)  # at fault


class Photos(Dataset):
    """Photographs and their classes."""

    def __init__(self, count, transform):
        self.files = [jpeg(number) for number in range(64)]
        self.count, self.transform = count, transform

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = decode(self.files[index % len(self.files)])
        image = self.transform(image)
        return torch.from_numpy(image).permute(2, 0, 1), index % 10


def one_thread(_worker):
    """Keep OpenCV to the worker's own thread."""
    cv2.setNumThreads(0)


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    data = Photos(args.steps * args.batch_size, Denoise(15))
    loader = DataLoader(data, args.batch_size, num_workers=args.workers, worker_init_fn=one_thread)
    model = Network(step_ms=12).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    criterion = nn.CrossEntropyLoss()
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images.to(DEVICE)), labels.to(DEVICE))
        loss.backward()
        optimizer.step()
    print(f"last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
