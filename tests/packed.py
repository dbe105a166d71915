"""Small packed datasets for tests."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions


def write_images(root: Path, count: int, classes: int = 4) -> None:
    """Write `count` JPEGs of 48x64 pixels in class folders; image i has brightness i mod 200."""
    for i in range(count):
        folder = root / f"class_{i % classes}"
        folder.mkdir(parents=True, exist_ok=True)
        image = np.full((48, 64, 3), i % 200, np.uint8)
        assert cv2.imwrite(str(folder / f"{i:05d}.jpg"), image)


def pack_images(root: Path, destination: str, count: int, shard_bytes: int = 20_000) -> str:
    """Pack `count` small images to `destination`; return it."""
    write_images(root, count)
    pack(str(root), destination, PackOptions(shard_bytes=shard_bytes))
    return destination
