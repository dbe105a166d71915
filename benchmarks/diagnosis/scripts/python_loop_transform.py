"""Train a classifier on augmented photographs: salt and pepper noise, pixel by pixel."""

import random

import numpy as np
import torch
from emulated import DEVICE, Network
from photos import decode, jpeg
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Compose:
    """Several transforms, one after the other."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        """Return the image after all of them."""
        for transform in self.transforms:
            image = transform(image)
        return image


class SaltAndPepper:
    """Blackens or whitens some pixels."""

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, image):
        """Return the image with noise."""
        for row in range(image.shape[0]):
            for column in range(image.shape[1]):
                if random.random() < self.rate:  # at fault
                    image[row, column] = random.choice((0, 255))
        return image


class Flip:
    """Mirrors every other image."""

    def __call__(self, image):
        """Return the image or its mirror image."""
        return image[:, ::-1].copy() if random.random() < 0.5 else image


class ToTensor:
    """Makes a tensor of it."""

    def __call__(self, image):
        """Return it, between 0 and 1."""
        return torch.from_numpy(image).permute(2, 0, 1).float() / 255


class Photos(Dataset):
    """Photographs and their classes."""

    def __init__(self, transform):
        self.files = [jpeg(number) for number in range(64)]
        self.transform = transform

    def __len__(self):
        return 3120

    def __getitem__(self, index):
        image = np.ascontiguousarray(decode(self.files[index % 64]))
        return self.transform(image), index % 10


data = Photos(Compose([Flip(), SaltAndPepper(0.02), ToTensor()]))
loader = DataLoader(data, batch_size=26, num_workers=2, shuffle=True)
model = Network(step_ms=15).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _epoch in range(1):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to(DEVICE)), labels.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
