"""The samples of the example: random images, and a preparation that keeps a core busy.

Nothing here knows who calls it: a torch Dataset, or Ray Data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch.utils.data import Dataset

SIDE, CLASSES, BLURS = 224, 1000, 10


class GaussianBlur:
    """What torchvision's GaussianBlur(kernel_size) does to a tensor, in the same operations.

    torchvision has no build beside torch's CPU build, so its few lines stand here: a standard
    deviation drawn anew at each call, one dense kernel for each channel, borders reflected.

    Args:
        kernel_size: Pixels of the kernel's side; odd.
        sigma: The least and the greatest standard deviation, in pixels.
    """

    def __init__(self, kernel_size: int, sigma: tuple[float, float] = (0.1, 2.0)) -> None:
        self.kernel_size = kernel_size
        self.sigma = sigma

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Blur float32[channels, height, width]."""
        sigma = torch.empty(1).uniform_(*self.sigma).item()
        reach = self.kernel_size // 2
        places = torch.linspace(-reach, reach, self.kernel_size)
        weights = torch.exp(-0.5 * (places / sigma) ** 2)
        weights /= weights.sum()
        channels = image.shape[0]
        kernel = torch.outer(weights, weights).expand(channels, 1, -1, -1)
        padded = functional.pad(image[None], [reach] * 4, mode="reflect")
        return functional.conv2d(padded, kernel, groups=channels)[0]


def random_image() -> NDArray[np.float32]:
    """Return float32[height, width, 3] in [0, 1)."""
    return np.random.default_rng().random((SIDE, SIDE, 3), dtype=np.float32)


def prepare(image: NDArray[np.float32]) -> torch.Tensor:
    """Return float32[3, height, width]: ToTensor, and ten blurs."""
    tensor = torch.from_numpy(image).permute(2, 0, 1).contiguous()
    blur = GaussianBlur(11)
    for _ in range(BLURS):
        tensor = blur(tensor)
    return tensor


class RandomImages(Dataset[tuple[torch.Tensor, int]]):
    """Prepared images for a torch DataLoader.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        """Return how many there are."""
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return an image and its label."""
        return prepare(random_image()), index % CLASSES


def make_batch(batch: Any) -> Any:
    """Return images and labels for the ids of a Ray Dataset's batch."""
    images = np.stack([random_image() for _ in batch["id"]])
    return {"image": images, "label": batch["id"] % CLASSES}


def prepare_batch(batch: Any) -> Any:
    """Return a Ray Dataset's batch, its images float32[samples, 3, height, width] now."""
    torch.set_num_threads(1)  # Ray gives a task one core; a loader's worker has one thread, too
    return {**batch, "image": torch.stack([prepare(image) for image in batch["image"]]).numpy()}
