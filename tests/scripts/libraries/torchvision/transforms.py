"""Transforms of a library, one of which takes nearly all of the time."""

import time
import warnings

import torch


class Compose:
    """Several transforms, one after another."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, img):
        for transform in self.transforms:
            img = transform(img)
        return img


class RandomResizedCrop(torch.nn.Module):
    """A crop that computes for a while."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, img):
        return resized_crop(img, self.size)


class ToTensor:
    """A conversion that warns."""

    def __call__(self, pic):
        warnings.warn("nothing to convert", stacklevel=2)
        return pic.clone()


def resized_crop(img, size):
    end = time.process_time() + 0.003
    while time.process_time() < end:
        pass
    return img[:, :size, :size]
