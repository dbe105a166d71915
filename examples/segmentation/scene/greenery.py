"""Trees, bushes and the wood where the street ends."""

from __future__ import annotations

import numpy as np

from .canvas import HEIGHT, VEGETATION, WIDTH, Canvas, Paint
from .noise import noise_at
from .street import FAR_M, Street


def greenery(street: Street, rng: np.random.Generator) -> list[Paint]:
    """Place rows of trees on the pavements, bushes behind them, and a distant wood."""
    placed = []
    for side in (-1, 1):
        kerb = street.left_m if side < 0 else street.right_m
        if rng.random() < 0.55:
            z, step = float(rng.uniform(4, 14)), float(rng.uniform(6, 16))
            while z < FAR_M:
                if not street.crossed(z - 2, z + 2) and rng.random() < 0.8:
                    x = kerb + side * float(rng.uniform(0.5, 1.2))
                    placed.append(tree(street, rng, x, z))
                z += step * float(rng.uniform(0.8, 1.2))
        for _ in range(rng.integers(0, 5)):
            z, x = float(rng.uniform(6, 60)), street.edge(side) + side * float(rng.uniform(-0.4, 4))
            if not street.crossed(z - 2, z + 2):
                placed.append(bush(street, rng, x, z))
    if rng.random() < 0.7:
        placed.extend(
            bush(street, rng, float(x), FAR_M + 5, size=float(rng.uniform(4, 12)))
            for x in rng.normal(0, 60, rng.integers(2, 14))
        )
    return placed


def tree(street: Street, rng: np.random.Generator, x: float, z: float) -> Paint:
    """Return a tree: trunk and crown, both vegetation as in Cityscapes."""
    height, trunk = float(rng.uniform(5, 11)), float(rng.uniform(0.12, 0.3))
    across, up = float(rng.uniform(1.3, 3.2)), float(rng.uniform(0.28, 0.4)) * height
    state = rng.spawn(1)[0]

    def paint(canvas: Canvas) -> None:
        stem = [(x - trunk, 0.0), (x - trunk * 0.6, height * 0.7), (x + trunk * 0.6, height * 0.7),
                (x + trunk, 0.0)]  # fmt: skip
        canvas.polygon(street.outline(stem, z), (75, 62, 50), VEGETATION, z)
        crown(canvas, street, state, (x, height - up, z), (across, up))

    return z, paint


def bush(
    street: Street, rng: np.random.Generator, x: float, z: float, size: float | None = None
) -> Paint:
    """Return a bush, or a group of distant trees where it is large."""
    radius = size or float(rng.uniform(0.5, 1.4))
    radii, state = (radius * float(rng.uniform(1, 2.5)), radius), rng.spawn(1)[0]
    return z, lambda canvas: crown(canvas, street, state, (x, radius * 0.6, z), radii)


def crown(
    canvas: Canvas,
    street: Street,
    rng: np.random.Generator,
    center: tuple[float, float, float],
    radii: tuple[float, float],
) -> None:
    """Paint foliage: an ellipse with a ragged edge and holes, by noise."""
    x, y, z = center
    scale = street.focal_px / z
    column, row = street.project(x, y, z)
    across, down = radii[0] * scale, radii[1] * scale
    left, right = np.clip((column - 1.25 * across, column + 1.25 * across), 0, WIDTH).astype(int)
    top, low = np.clip((row - 1.25 * down, row + 1.25 * down), 0, HEIGHT).astype(int)
    if right <= left or low <= top:
        return
    rows, columns = np.mgrid[top:low, left:right].astype(np.float32)
    shape = noise_at(columns * 14 / scale, rows * 14 / scale, rng)
    leaves = noise_at(columns * 90 / scale, rows * 90 / scale, rng)
    distance = ((columns - column) / across) ** 2 + ((rows - row) / down) ** 2
    ground = street.project(x, 0, z)[1]
    inside = (distance + 0.3 * shape + 0.12 * leaves < 0.9) & (rows < ground)
    lit = (columns - column) / across * street.sun - (rows - row) / down
    light = (0.85 + 0.25 * lit + 0.18 * leaves + 0.12 * shape)[:, :, np.newaxis]
    color = np.clip(np.array(street.green) * light, 0, 255).astype(np.uint8)
    window = np.s_[top:low, left:right]
    canvas.picture[window][inside] = color[inside]
    canvas.labels[window][inside] = VEGETATION
    canvas.depth_m[window][inside] = z
