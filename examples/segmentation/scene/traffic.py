"""Cars: parked, driving, and crossing."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from .canvas import CAR, ROAD, Canvas, Color, Paint
from .street import Street

PAINTS: tuple[Color, ...] = (
    (200, 200, 205), (235, 235, 235), (30, 30, 34), (95, 98, 105), (150, 25, 25), (30, 50, 120),
    (50, 85, 60), (190, 160, 60), (110, 80, 60), (60, 110, 150),
)  # fmt: skip

# Outlines from the side, as (share of the length, share of the height), clockwise from below the
# tail; and which stretch between two points is glass.
SALOON = ((0, 0.17), (0, 0.55), (0.03, 0.62), (0.2, 0.66), (0.33, 1), (0.62, 0.98), (0.8, 0.64),
          (0.97, 0.52), (1, 0.4), (1, 0.17))  # fmt: skip
HATCHBACK = ((0, 0.17), (0, 0.5), (0.03, 0.62), (0.1, 0.66), (0.16, 0.98), (0.55, 1), (0.76, 0.64),
             (0.97, 0.54), (1, 0.4), (1, 0.17))  # fmt: skip
VAN = ((0, 0.13), (0, 0.5), (0.01, 0.6), (0.01, 0.62), (0.04, 0.98), (0.72, 1), (0.86, 0.6),
       (0.98, 0.48), (1, 0.36), (1, 0.13))  # fmt: skip
GLASS: Color = (60, 69, 81)
TAIL_GLASS, FRONT_GLASS = 3, 5  # stretches that begin at these points


@dataclass(frozen=True, slots=True, kw_only=True)
class Car:
    """One car: where its left tail corner stands, and what it looks like."""

    x: float
    z: float
    length: float
    width: float
    height: float
    outline: tuple[tuple[float, float], ...]
    color: Color
    across: bool  # it crosses our street
    facing: bool  # we see its front

    def place(self, street: Street, along: float, side: float, up: float) -> tuple[float, float]:
        """Return the pixel of a point in shares of length, width and height."""
        narrow = 0.12 * max(0.0, up - 0.62) / 0.38  # the cabin is narrower than the body
        inward = narrow + side * (1 - 2 * narrow)
        along = 1 - along if self.facing else along
        if self.across:
            x, z = self.x + along * self.length, self.z + inward * self.width
        else:
            x, z = self.x + inward * self.width, self.z + along * self.length
        return street.project(x, up * self.height, max(z, 0.5))

    def paint(self, street: Street, canvas: Canvas) -> None:
        """Paint the shadow, then the skin from far to near, then the end and the side we see."""
        corners = ((-0.03, -0.06), (1.03, -0.06), (1.03, 1.06), (-0.03, 1.06))
        shadow = [self.place(street, along, across, 0) for along, across in corners]
        canvas.polygon(shadow, (38, 38, 42), ROAD, self.z)
        stretches = range(len(self.outline) - 1)
        far_first = sorted(
            stretches, key=lambda index: self.outline[index][0], reverse=not self.facing
        )
        for index in far_first:
            (a, low), (b, high) = self.outline[index : index + 2]
            ring = ((a, 0.0, low), (b, 0.0, high), (b, 1.0, high), (a, 1.0, low))
            upright = abs(b - a) < 0.05
            color = (
                GLASS
                if index in {TAIL_GLASS, FRONT_GLASS}
                else self._tone(0.8 if upright else 1.08)
            )
            canvas.polygon([self.place(street, *point) for point in ring], color, CAR, self.z)
        if not self.across and self.z < 45:
            self._paint_end(street, canvas)
        self._paint_side(street, canvas)

    def _paint_end(self, street: Street, canvas: Canvas) -> None:
        """Paint lamps, number plate and bumper of the end that faces us."""
        end, night = (1.0 if self.facing else 0.0), street.weather in {"night", "dusk"}
        lamps: Color = (255, 250, 225) if self.facing else (245 if night else 170, 25, 25)
        top = 0.44 if self.facing else 0.52
        for first, last, low, high, color in (
            (0.06, 0.24, top - 0.09, top, lamps),
            (0.76, 0.94, top - 0.09, top, lamps),
            (0.38, 0.62, 0.32, 0.39, (215, 215, 200)),
            (0.0, 1.0, 0.17, 0.27, (40, 40, 44)),
        ):
            ring = ((first, high), (last, high), (last, low), (first, low))
            points = [self.place(street, end, across, up) for across, up in ring]
            canvas.polygon(points, color, CAR, self.z)

    def _paint_side(self, street: Street, canvas: Canvas) -> None:
        """Paint the near side of a crossing car, or the inner one of a car along the street."""
        side = 0.0 if self.across or self.x + self.width / 2 > 0 else 1.0
        (a, _), (b, top), (c, _), (d, _) = self.outline[3:7]
        top, middle = top - 0.06, (b + c) / 2
        tail = ((a + 0.06, 0.67), (b + 0.02, top), (middle - 0.02, top), (middle - 0.02, 0.67))
        front = ((middle + 0.02, 0.67), (middle + 0.02, top), (c - 0.02, top), (d - 0.05, 0.67))
        shapes: list[tuple[Any, Color]] = [(self.outline, self._tone(0.92))]
        shapes += [(tail, GLASS), (front, GLASS)]
        wheels = (0.2, 0.8) if self.z < 45 else ()  # farther away they are smaller than a pixel
        turns = np.linspace(0, 2 * np.pi, 13)
        rims: tuple[tuple[float, Color], ...] = ((0.085, (24, 24, 26)), (0.045, (120, 122, 126)))
        for hub, (size, color) in itertools.product(wheels, rims):
            along = hub + size * np.cos(turns)
            up = 0.2 + size * self.length / self.height * np.sin(turns)
            shapes.append((zip(along, up, strict=True), color))
        for ring, shade in shapes:
            points = [self.place(street, float(a), side, float(u)) for a, u in ring]
            canvas.polygon(points, shade, CAR, self.z)

    def _tone(self, light: float) -> Color:
        red, green, blue = self.color
        return red * light, green * light, blue * light


def traffic(street: Street, rng: np.random.Generator) -> list[Paint]:
    """Place parked cars along the kerbs, some on the lanes, and some on the side street."""
    placed = []
    width = street.right_m - street.left_m
    for side in (-1, 1):
        if width > 5 and rng.random() < 0.65:
            z, dense = float(rng.uniform(2.5, 12)), float(rng.uniform(0.3, 0.95))
            while z < 90:
                if rng.random() < dense and not street.crossed(z - 1, z + 6):
                    x = street.left_m + 0.15 if side < 0 else street.right_m - 2.05
                    placed.append(car(street, rng, x, z, facing=side < 0))
                z += float(rng.uniform(5.2, 7))
    for _ in range(rng.integers(0, 4)):
        x = float(rng.uniform(street.left_m + 0.3, max(street.left_m + 0.4, street.right_m - 2.3)))
        placed.append(car(street, rng, x, float(rng.uniform(7, 60)), facing=x < -2))
    if street.crossing_m:
        for _ in range(rng.integers(0, 4)):
            x = float(rng.uniform(-25, 22))
            z = float(rng.uniform(street.crossing_m[0] + 0.5, street.crossing_m[1] - 2.5))
            placed.append(car(street, rng, x, z, facing=bool(rng.random() < 0.5), across=True))
    return placed


def car(
    street: Street,
    rng: np.random.Generator,
    x: float,
    z: float,
    *,
    facing: bool,
    across: bool = False,
) -> Paint:
    """Return one car of random make."""
    shape = rng.choice(3, p=[0.4, 0.42, 0.18])
    paint = np.array(PAINTS[rng.integers(len(PAINTS))]) * rng.uniform(0.8, 1.15)
    chosen = Car(
        x=x,
        z=z,
        length=float(rng.uniform(3.7, 4.9)) + (0.6 if shape == 2 else 0),
        width=float(rng.uniform(1.65, 1.9)),
        height=float(rng.uniform(1.38, 1.6)) * (1.35 if shape == 2 else 1),
        outline=(SALOON, HATCHBACK, VAN)[shape],
        color=(float(paint[0]), float(paint[1]), float(paint[2])),
        across=across,
        facing=facing,
    )
    return z, functools.partial(chosen.paint, street)
