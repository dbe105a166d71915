"""In the place of the example's module of this name: preparation that waits, and needs no core.

It imports no torch: that would keep a small machine busy for as long as 20 processes start.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

PREPARE_S = 0.040
SIDE, CLASSES = 224, 1000


def image() -> np.ndarray:
    """Return a random image, as large as the example's are when they are prepared."""
    return np.random.default_rng().random((3, SIDE, SIDE), dtype=np.float32)


class RandomImages:
    """Images for a torch DataLoader.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        time.sleep(PREPARE_S)
        return image(), index % CLASSES


def make_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """Return images and labels for the ids of a Ray Dataset's batch."""
    images = np.stack([image() for _ in batch["id"]])
    return {"image": images, "label": batch["id"] % CLASSES}


def prepare_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """Take as long over a batch as a loader's worker does over its samples."""
    time.sleep(PREPARE_S * len(batch["label"]))
    return batch
