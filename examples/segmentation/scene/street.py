"""The place and the light: one street, and how its metres become pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .canvas import HEIGHT, WIDTH, Color, Points

FAR_M = 110.0
"""Where the street ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Street:
    """The place and the light: lengths in metres, x to the right of the camera, z ahead."""

    focal_px: float
    camera_m: float
    horizon_px: float
    vanishing_px: float
    bend: float  # the street's middle lies at x = bend * z^2
    left_m: float  # road's edges
    right_m: float
    pavement_m: tuple[float, float]  # widths, left and right
    crossing_m: tuple[float, float] | None  # a side street from z to z
    weather: str
    sun: float  # -1 from the left ... 1 from the right
    green: Color

    def project(self, x: float, y: float, z: float) -> tuple[float, float]:
        """Return the pixel (column, row) of a point `y` above the ground."""
        column = self.vanishing_px + self.focal_px * (x + self.bend * z * z) / z
        return column, self.horizon_px + self.focal_px * (self.camera_m - y) / z

    def outline(self, points: Points, z: float) -> list[tuple[float, float]]:
        """Return points (x, y) that stand upright at `z`, as pixels."""
        return [self.project(x, y, z) for x, y in points]

    def edge(self, side: int) -> float:
        """Return where the pavement ends, on the left (-1) or the right (1)."""
        if side < 0:
            return self.left_m - self.pavement_m[0]
        return self.right_m + self.pavement_m[1]

    def crossed(self, near: float, far: float) -> bool:
        """Tell whether a side street runs through a stretch."""
        return self.crossing_m is not None and (
            near < self.crossing_m[1] and far > self.crossing_m[0]
        )


def draw_street(rng: np.random.Generator) -> Street:
    """Draw the camera, the street's shape, its weather and its season."""
    lanes = rng.integers(1, 4)
    width = float(lanes * rng.uniform(2.8, 3.6) + rng.uniform(0, 3))
    middle = float(rng.uniform(-0.3, 0.3) * width)
    crossing = float(rng.uniform(9, 30))
    weather = rng.choice(["clear", "overcast", "rain", "fog", "night", "dusk"],
                         p=[0.34, 0.24, 0.12, 0.1, 0.12, 0.08])  # fmt: skip
    greens = [(60, 95, 40), (75, 105, 45), (45, 80, 45), (120, 100, 35), (130, 75, 35)]
    return Street(
        focal_px=float(rng.uniform(380, 560)),
        camera_m=float(rng.uniform(1.2, 2.2)),
        horizon_px=HEIGHT * float(rng.uniform(0.36, 0.52)),
        vanishing_px=WIDTH * float(rng.uniform(0.35, 0.65)),
        bend=float(rng.normal(0, 0.0012)),
        left_m=middle - width / 2,
        right_m=middle + width / 2,
        pavement_m=(float(rng.uniform(1.2, 4.5)), float(rng.uniform(1.2, 4.5))),
        crossing_m=(crossing, crossing + float(rng.uniform(6, 11))) if rng.random() < 0.4 else None,
        weather=str(weather),
        sun=float(rng.uniform(-1, 1)),
        green=greens[rng.choice(5, p=[0.3, 0.3, 0.2, 0.1, 0.1])],
    )
