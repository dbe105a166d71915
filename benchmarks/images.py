"""ImageNet-like JPEGs: 500x375, textured, about 80 to 110 kB, in class folders."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cv2
import numpy as np

WIDTH, HEIGHT = 500, 375
CLASSES = 10
QUALITY = 90


def make_folder(root: Path, count: int) -> list[Path]:
    """Make root/class_NN/IMAGE.jpg hold `count` JPEGs, no more and no less; return their paths."""
    paths = [root / f"class_{i % CLASSES:02d}" / f"{i:06d}.jpg" for i in range(count)]
    for path in set(root.glob("class_*/*.jpg")) - set(paths):
        path.unlink()  # an earlier run's, with more images
    missing = [(i, path) for i, path in enumerate(paths) if not path.exists()]
    for path in paths[:CLASSES]:
        path.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(_write, missing, chunksize=32))
    return paths


def _write(numbered: tuple[int, Path]) -> None:
    number, path = numbered
    done, jpeg = cv2.imencode(".jpg", textured(number), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    assert done
    path.write_bytes(jpeg.tobytes())


def textured(seed: int) -> np.ndarray:
    """Return a uint8[375, 500, 3] image with the spectrum of a photograph: noise in octaves."""
    rng = np.random.default_rng(seed)
    image = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    for octave in range(1, 9):
        cells = 2**octave
        noise = rng.normal(0, 1, (cells, cells, 3)).astype(np.float32)
        resized = cv2.resize(noise, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
        image += resized * 60 / octave
    image += rng.normal(0, rng.uniform(9, 14), image.shape).astype(np.float32)
    for _ in range(rng.integers(3, 9)):
        colour = tuple(float(c) for c in rng.uniform(-90, 90, 3))
        centre = (int(rng.integers(0, WIDTH)), int(rng.integers(0, HEIGHT)))
        shape = np.zeros_like(image)
        cv2.circle(shape, centre, int(rng.integers(15, 120)), colour, -1)
        image += shape
    return np.clip(image + 128, 0, 255).astype(np.uint8)
