"""Street scenes with a class for each pixel, made when they are first needed; no download."""

from __future__ import annotations

import cv2
import numpy as np

CLASSES = 8


def scene(number: int, height: int = 256, width: int = 512) -> tuple[bytes, bytes]:
    """Return a scene as a JPEG and its classes as a PNG.

    Args:
        number: Which one; the same number gives the same bytes.
        height: In pixels.
        width: In pixels.
    """
    random = np.random.default_rng(number)
    classes = np.zeros((height, width), np.uint8)
    classes[height // 2 :] = 1  # the road below, the sky above
    for _ in range(24):
        kind = int(random.integers(2, CLASSES))
        x, y = int(random.integers(width)), int(random.integers(height // 4, height))
        size = tuple(int(side) for side in random.integers(10, 80, 2))
        cv2.rectangle(classes, (x, y), (x + size[0], y + size[1]), kind, -1)
    colours = random.integers(40, 216, (CLASSES, 3), dtype=np.uint8)
    noise = random.integers(0, 40, (height, width, 3), dtype=np.uint8)
    image = cv2.GaussianBlur(colours[classes] + noise, (3, 3), 0)
    return cv2.imencode(".jpg", image)[1].tobytes(), cv2.imencode(".png", classes)[1].tobytes()
