"""How many images a core decodes in a second: a program that prints it, to be run once a core.

    python -m headrace.data.transforms.decode_speed SECONDS

The image is a JPEG of 500 x 400 pixels and about 110 KB, as those of ImageNet are, made alike
everywhere.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import simplejpeg

_HEIGHT, _WIDTH, _QUALITY, _SEED = 400, 500, 90, 7
_AT_ONCE = 8
"""Images between two looks at the clock."""


def sample_image() -> bytes:
    """Return the JPEG: smooth areas, edges and noise."""
    random = np.random.default_rng(_SEED)
    coarse = random.integers(0, 256, (_HEIGHT // 20, _WIDTH // 20, 3))
    noise = random.normal(0, 14, (_HEIGHT, _WIDTH, 3))
    pixels = coarse.repeat(20, axis=0).repeat(20, axis=1) + noise
    image = np.ascontiguousarray(np.clip(pixels, 0, 255).astype(np.uint8))
    return bytes(simplejpeg.encode_jpeg(image, quality=_QUALITY))


def images_per_s(seconds: float) -> float:
    """Return how many images this process decodes in a second of the clock, measured for a time."""
    data, count = sample_image(), 0
    simplejpeg.decode_jpeg(data)
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        for _ in range(_AT_ONCE):
            simplejpeg.decode_jpeg(data)
        count += _AT_ONCE
    return count / passed


if __name__ == "__main__":
    sys.stdout.write(f"{images_per_s(float(sys.argv[1]))}\n")
