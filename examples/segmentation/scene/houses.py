"""Buildings along the street and where it ends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .canvas import BUILDING, Canvas, Color, Paint
from .noise import noise_patch
from .street import FAR_M, Street

WALLS: tuple[Color, ...] = (
    (165, 150, 130), (140, 80, 65), (200, 195, 185), (120, 118, 115), (185, 160, 110),
    (95, 90, 100), (175, 175, 180),
)  # fmt: skip


def facade(
    rng: np.random.Generator, floors: int, columns: int, *, night: bool, far: bool = False
) -> NDArray[np.uint8]:
    """Return the picture of a wall with windows; each takes 24x20 pixels, 12x10 far away."""
    floors, columns, fine = min(floors, 21), min(columns, 25), 1 if far else 2
    base = np.array(WALLS[rng.integers(len(WALLS))]) * rng.uniform(0.6, 1.1)
    noise = 9 * noise_patch(floors * 12 * fine, columns * 10 * fine, rng)[:, :, np.newaxis]
    wall = noise + base.astype(np.float32)
    if rng.random() < 0.4:  # bricks
        wall[::4] -= 10
    panes = np.array((70, 85, 105)) * rng.uniform(0.4, 1.5, (floors, columns, 1))
    if night:
        panes[rng.random((floors, columns)) < 0.3] = (250, 215, 140)
    left, right, top = rng.integers(3, 8, 3)
    low = np.full(floors, 24 - rng.integers(3, 7))
    low[-1] += 10 * (rng.random() < 0.5)  # doors and shop windows reach the ground
    row = np.arange(floors * 12 * fine) % (12 * fine) * (2 / fine)
    column = np.arange(columns * 10 * fine) % (10 * fine) * (2 / fine)
    low = low.repeat(12 * fine)
    for margin, color in ((1, base * 1.2), (0, panes.repeat(12 * fine, 0).repeat(10 * fine, 1))):
        rows = (row >= top - margin) & (row < low + margin)
        across = (column >= left - margin) & (column < 20 - right + margin)
        window = rows[:, np.newaxis] & across
        wall[window] = color[window] if color.ndim == 3 else color
    return np.clip(wall, 0, 255).astype(np.uint8)


def buildings(street: Street, rng: np.random.Generator) -> list[Paint]:
    """Place a row of buildings on either side, and blocks that close the street."""
    tall, filled = rng.uniform(4, 18), rng.uniform(0.5, 1)
    placed = []
    for side in (-1, 1):
        z = float(rng.uniform(1.5, 4))
        while z < FAR_M:
            length = float(rng.uniform(6, 22))
            if street.crossed(z, z + length):
                length = max(0.0, street.crossing_m[0] - z) if street.crossing_m else length
            if length > 3 and rng.random() < filled:
                x = street.edge(side) + side * float(rng.exponential(0.7))
                height = float(tall * rng.uniform(0.6, 1.6))
                placed.append(building(street, rng, x, side, (z, z + length), height))
            z += length + (float(rng.uniform(1, 8)) if rng.random() < 0.35 else 0)
            if street.crossed(z - 0.1, z + 3) and street.crossing_m:
                z = street.crossing_m[1]
    for _ in range(rng.integers(3, 9)):
        middle, half = float(rng.normal(0, 35)), float(rng.uniform(4, 15))
        z, height = FAR_M + float(rng.uniform(0, 60)), float(rng.uniform(6, 30))
        placed.append(block(street, rng, (middle - half, middle + half), z, height))
    return placed


def building(
    street: Street,
    rng: np.random.Generator,
    x: float,
    side: int,
    reach: tuple[float, float],
    height: float,
) -> Paint:
    """Return a building: the wall along the street, and the one that faces the camera."""
    near, far = reach
    floors, night = max(1, round(height / 3)), street.weather in {"night", "dusk"}
    wall = facade(rng, floors, max(1, round((far - near) / 2.5)), night=night, far=near > 25)
    front = facade(rng, floors, 4, night=night, far=near > 25)
    roof = float(rng.uniform(1.5, 4)) if rng.random() < 0.4 else 0.0
    light = 1 - 0.25 * side * street.sun

    def paint(canvas: Canvas) -> None:
        left, right = sorted((x, x + side * 9))
        peak = [(left, height), (left + 4.5, height + roof), (right, height)]
        canvas.polygon(street.outline(peak, near), (95, 55, 50), BUILDING, near)
        face = [(left, height), (right, height), (right, 0.0), (left, 0.0)]
        canvas.texture(street.outline(face, near), shaded(front, 0.85), BUILDING, near)
        first, last = reach if side < 0 else (far, near)  # left and right in the picture
        along = [(height, first), (height, last), (0.0, last), (0.0, first)]
        quad = [street.project(x, y, z) for y, z in along]
        canvas.texture(quad, shaded(wall, light), BUILDING, (near + far) / 2)

    return far, paint  # what stands before its wall is painted later


def block(
    street: Street,
    rng: np.random.Generator,
    reach: tuple[float, float],
    z: float,
    height: float,
) -> Paint:
    """Return a distant building that faces the camera."""
    (left, right), night = reach, street.weather in {"night", "dusk"}
    face = [(left, height), (right, height), (right, 0.0), (left, 0.0)]
    wall = facade(
        rng, max(1, round(height / 3)), max(1, round((right - left) / 3)), night=night, far=True
    )
    return z, lambda canvas: canvas.texture(street.outline(face, z), wall, BUILDING, z)


def shaded(pixels: NDArray[np.uint8], light: float) -> NDArray[np.uint8]:
    """Return the pixels darker or brighter."""
    return np.asarray(np.clip(pixels * light, 0, 255), np.uint8)
