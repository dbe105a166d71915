"""One scene from its seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .camera import photograph
from .canvas import EGO, HEIGHT, SKY, WIDTH, Canvas
from .furniture import furniture
from .greenery import greenery
from .ground import paint_ground, paint_sky
from .houses import buildings
from .people import people
from .street import draw_street
from .traffic import traffic


def render(seed: list[int]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return picture uint8[256, 512, 3] (RGB) and Cityscapes label ids uint8[256, 512]."""
    rng = np.random.default_rng(seed)
    street = draw_street(rng)
    canvas = Canvas(
        picture=np.zeros((HEIGHT, WIDTH, 3), np.uint8),
        labels=np.full((HEIGHT, WIDTH), SKY, np.uint8),
        depth_m=np.full((HEIGHT, WIDTH), 1000, np.float32),
    )
    paint_sky(canvas, street, rng)
    paint_ground(canvas, street, rng)
    objects = [
        *buildings(street, rng),
        *greenery(street, rng),
        *traffic(street, rng),
        *people(street, rng),
        *furniture(street, rng),
    ]
    for _, paint in sorted(objects, key=lambda item: -item[0]):
        paint(canvas)
    if rng.random() < 0.25:  # the bonnet of our own car
        canvas.ellipse((WIDTH / 2, HEIGHT + 8), (WIDTH * 0.6, 26), (30, 32, 40), EGO, 1)
    return photograph(canvas, street, rng), canvas.labels
