"""Small JPEGs, made when they are first needed."""

from __future__ import annotations

import cv2
import numpy as np


def jpeg(number: int, height: int = 120, width: int = 160) -> bytes:
    """Return a textured photograph as a JPEG.

    Args:
        number: Which one; the same number gives the same bytes.
        height: In pixels.
        width: In pixels.
    """
    random = np.random.default_rng(number)
    coarse = random.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return cv2.imencode(".jpg", image)[1].tobytes()


def decode(data: bytes) -> np.ndarray:
    """Return a JPEG as an array: height, width, colour."""
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
