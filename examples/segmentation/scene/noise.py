"""Fractal noise, looked up wherever a surface needs texture."""

from __future__ import annotations

import functools
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray


@functools.cache
def noise_tile() -> NDArray[np.float32]:
    """Fractal noise float32[512, 512], mean 0 and deviation 1, that can be laid side by side."""
    rng = np.random.default_rng(0)
    tile = np.zeros((512, 512), np.float32)
    for cells in (4, 8, 16, 32, 64, 128, 256):
        grid = np.tile(rng.standard_normal((cells, cells), dtype=np.float32), (3, 3))
        large = cv2.resize(grid, (1536, 1536), interpolation=cv2.INTER_CUBIC)
        tile += large[512:1024, 512:1024] * np.float32(cells**-0.6)
    return np.asarray((tile - tile.mean()) / tile.std(), np.float32)


def noise_at(
    x: NDArray[np.floating[Any]], y: NDArray[np.floating[Any]], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Look the noise up at coordinates in pixels of the tile, from a random origin."""
    across, down = rng.integers(0, 512, 2)
    columns, rows = (x + across).astype(np.float32), (y + down).astype(np.float32)
    found = cv2.remap(noise_tile(), columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
    return np.asarray(found, np.float32)


def noise_patch(height: int, width: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return a piece of the noise as it is, float32[height, width], at most 512 each way."""
    down, across = rng.integers(0, 513 - height), rng.integers(0, 513 - width)
    return noise_tile()[down : down + height, across : across + width]
