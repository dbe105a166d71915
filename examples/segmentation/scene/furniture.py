"""Lamp posts, bollards and traffic signs."""

from __future__ import annotations

import numpy as np

from .canvas import POLE, SIGN, Canvas, Color, Paint
from .street import Street

RED, BLUE, YELLOW, WHITE, BLACK = (
    (200, 25, 30), (20, 70, 170), (240, 190, 20), (240, 240, 240), (25, 25, 25),
)  # fmt: skip

# (corners, rim, inside): 0 corners is a disc; the triangle stands on its side or on its tip.
KINDS: tuple[tuple[int, Color, Color], ...] = (
    (0, RED, WHITE), (0, BLUE, BLUE), (3, RED, WHITE), (-3, RED, WHITE), (4, BLUE, BLUE),
    (8, RED, RED), (-4, WHITE, YELLOW), (2, BLUE, BLUE), (2, YELLOW, YELLOW),
)  # fmt: skip


def furniture(street: Street, rng: np.random.Generator) -> list[Paint]:
    """Place lamp posts in a row, signs near the kerbs, and bollards."""
    placed = []
    for side in (-1, 1):
        kerb = street.left_m if side < 0 else street.right_m
        if rng.random() < 0.65:
            z, step, height = float(rng.uniform(5, 16)), rng.uniform(12, 26), rng.uniform(4.5, 8.5)
            arm, thick = float(rng.uniform(0.4, 2)), float(rng.uniform(0.07, 0.13))
            while z < 90:
                if not street.crossed(z - 1, z + 1):
                    x = kerb + side * 0.4
                    placed.append(lamp(street, (x, z), -side * arm, float(height), thick))
                z += float(step)
        for _ in range(rng.integers(0, 4)):
            x, z = kerb + side * float(rng.uniform(0.2, 0.9)), float(rng.uniform(5.5, 32))
            placed.append(sign(street, rng, x, z))
        if rng.random() < 0.2:
            placed.extend(
                bollard(street, kerb + side * 0.3, z)
                for z in np.arange(4, 40, float(rng.uniform(1.6, 3)))
                if not street.crossed(float(z), float(z))
            )
    return placed


def lamp(
    street: Street, place: tuple[float, float], arm: float, height: float, thick: float
) -> Paint:
    """Return a lamp post whose arm reaches over the road."""
    x, z = place
    night = street.weather in {"night", "dusk"}

    def paint(canvas: Canvas) -> None:
        bar(canvas, street, (x, 0.0), (x, height), thick, z)
        bar(canvas, street, (x, height), (x + arm, height + 0.25), thick * 0.8, z)
        glow: Color = (255, 240, 190) if night else (150, 150, 145)
        bulb = [(x + arm - 0.35, height + 0.3), (x + arm + 0.35, height + 0.3),
                (x + arm + 0.25, height + 0.12), (x + arm - 0.25, height + 0.12)]  # fmt: skip
        canvas.polygon(street.outline(bulb, z), glow, POLE, z)

    return z, paint


def sign(street: Street, rng: np.random.Generator, x: float, z: float) -> Paint:
    """Return a sign, at times two, on its post."""
    count = 2 if rng.random() < 0.3 else 1
    kinds = [KINDS[rng.integers(len(KINDS))] for _ in range(count)]
    radius, height = float(rng.uniform(0.32, 0.55)), float(rng.uniform(2.2, 3.2))
    back = rng.random() < 0.15

    def paint(canvas: Canvas) -> None:
        bar(canvas, street, (x, 0.0), (x, height + radius), 0.05, z)
        for index, (corners, rim, inside) in enumerate(kinds):
            middle = height - index * 2 * radius
            outer, inner = ((130, 132, 135), (130, 132, 135)) if back else (rim, inside)
            plate(canvas, street, (x, middle, z), radius, corners, outer)
            plate(canvas, street, (x, middle, z), radius * 0.72, corners, inner)
            if not back:
                mark = BLACK if inside in {WHITE, YELLOW} else WHITE
                plate(canvas, street, (x, middle, z), radius * 0.25, -4 if index else 2, mark)

    return z, paint


def plate(
    canvas: Canvas,
    street: Street,
    center: tuple[float, float, float],
    radius: float,
    corners: int,
    color: Color,
) -> None:
    """Paint a disc, a polygon, or a wide rectangle (2 corners)."""
    x, y, z = center
    if corners == 2:
        ring = [(x - 1.6 * radius, y - radius), (x + 1.6 * radius, y - radius),
                (x + 1.6 * radius, y + radius), (x - 1.6 * radius, y + radius)]  # fmt: skip
    else:
        count = abs(corners) or 20
        begin = (
            -np.pi / 2 if corners in {-3, -4} else np.pi / 2 + (np.pi / 4 if corners == 4 else 0)
        )
        begin += np.pi / 8 if corners == 8 else 0
        turns = begin + 2 * np.pi * np.arange(count) / count
        ring = [(x + radius * float(np.cos(t)), y + radius * float(np.sin(t))) for t in turns]
    canvas.polygon(street.outline(ring, z), color, SIGN, z)


def bollard(street: Street, x: float, z: float) -> Paint:
    """Return a short post against parking."""
    return z, lambda canvas: bar(canvas, street, (x, 0.0), (x, 0.95), 0.07, z)


def bar(
    canvas: Canvas,
    street: Street,
    begin: tuple[float, float],
    end: tuple[float, float],
    thick: float,
    z: float,
) -> None:
    """Paint a post or an arm; a bright edge makes it round."""
    across, up = (thick, 0.0) if abs(end[0] - begin[0]) < 0.01 else (0.0, thick)
    for share, color in ((1.0, (78, 80, 84)), (0.3, (125, 127, 130))):
        ring = [(begin[0] - across * share, begin[1] - up * share),
                (begin[0] + across * share, begin[1] + up * share),
                (end[0] + across * share, end[1] + up * share),
                (end[0] - across * share, end[1] - up * share)]  # fmt: skip
        canvas.polygon(street.outline(ring, z), color, POLE, z)
