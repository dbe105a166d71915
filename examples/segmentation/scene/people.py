"""People on the pavements, on zebra crossings and between cars."""

from __future__ import annotations

import numpy as np

from .canvas import PERSON, Canvas, Color, Paint
from .street import Street

SKINS: tuple[Color, ...] = ((232, 190, 160), (200, 150, 115), (140, 95, 65), (90, 60, 45))


def people(street: Street, rng: np.random.Generator) -> list[Paint]:
    """Place groups of one to four people."""
    placed = []
    for _ in range(rng.integers(1, 8)):
        z, where = float(rng.uniform(4.5, 35)), rng.random()
        if street.crossing_m and where < 0.3:
            z = street.crossing_m[0] - float(rng.uniform(0.8, 2.8))
            x = float(rng.uniform(street.left_m, street.right_m))
        elif where < 0.55:
            x = float(rng.uniform(street.edge(-1), street.left_m))
        elif where < 0.95:
            x = float(rng.uniform(street.right_m, street.edge(1)))
        else:
            x = float(rng.uniform(street.left_m, street.right_m))
        for _ in range(rng.integers(1, 5)):
            offset = rng.normal(0, 0.6, 2)
            placed.append(person(street, rng, x + float(offset[0]), max(4, z + float(offset[1]))))
    return placed


def person(street: Street, rng: np.random.Generator, x: float, z: float) -> Paint:
    """Return one person, standing or walking; lengths are shares of the height."""
    height = float(rng.uniform(1.5, 1.95)) * (0.65 if rng.random() < 0.12 else 1)
    stride, turn = float(rng.uniform(0, 0.17)), float(rng.choice([-1, 1]))
    broad, swing = float(rng.uniform(0.1, 0.15)), float(rng.uniform(-0.08, 0.1))
    tops = rng.uniform(20, 230, 3) if rng.random() < 0.6 else rng.uniform(20, 90) * np.ones(3)
    top: Color = (float(tops[0]), float(tops[1]), float(tops[2]))
    trousers = np.array((45, 50, 75)) * rng.uniform(0.5, 1.9)
    legs: Color = (float(trousers[0]), float(trousers[1]), float(trousers[2]))
    skin = SKINS[rng.integers(len(SKINS))]
    hair: Color = (60, 45, 35) if rng.random() < 0.7 else (190, 170, 130)
    hem = float(rng.choice([0.47, 0.32], p=[0.8, 0.2]))  # a jacket or a coat
    bag = rng.random() < 0.25

    def limb(
        canvas: Canvas, begin: tuple[float, float], end: tuple[float, float], thick: float,
        color: Color,
    ) -> None:  # fmt: skip
        ring = [(begin[0] - thick, begin[1]), (begin[0] + thick, begin[1]),
                (end[0] + thick * 0.7, end[1]), (end[0] - thick * 0.7, end[1])]  # fmt: skip
        shape(canvas, ring, color)

    def shape(canvas: Canvas, ring: list[tuple[float, float]], color: Color) -> None:
        points = [(x + turn * across * height, up * height) for across, up in ring]
        canvas.polygon(street.outline(points, z), color, PERSON, z)

    def paint(canvas: Canvas) -> None:
        limb(canvas, (0.03, 0.5), (stride, 0.0), 0.05, legs)
        limb(canvas, (-0.03, 0.5), (-stride, 0.0), 0.05, dim(legs))
        limb(canvas, (-broad * 0.9, 0.8), (-broad - swing, 0.46), 0.03, dim(top))
        shape(canvas, [(-broad, 0.8), (-0.06, 0.85), (0.06, 0.85), (broad, 0.8),
                       (broad * 0.85, hem), (-broad * 0.85, hem)], top)  # fmt: skip
        limb(canvas, (broad * 0.9, 0.8), (broad + swing, 0.46), 0.03, dim(top))
        if bag:
            shape(canvas, [(broad, 0.55), (broad + 0.1, 0.55), (broad + 0.1, 0.4), (broad, 0.4)],
                  (90, 60, 40))  # fmt: skip
        limb(canvas, (0, 0.84), (0, 0.9), 0.03, skin)
        size = height * street.focal_px / z
        head = street.project(x, 0.925 * height, z)
        canvas.ellipse(
            (head[0], head[1] - 0.012 * size), (0.055 * size, 0.07 * size), hair, PERSON, z
        )
        canvas.ellipse((head[0] + turn * 0.008 * size, head[1] + 0.012 * size),
                       (0.043 * size, 0.055 * size), skin, PERSON, z)  # fmt: skip

    return z, paint


def dim(color: Color) -> Color:
    """Return the colour of what is turned away from the light."""
    return 0.82 * color[0], 0.82 * color[1], 0.82 * color[2]
