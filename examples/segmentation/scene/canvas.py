"""What a scene is painted on: picture, labels and depth together, so that the mask is exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

HEIGHT, WIDTH = 256, 512
"""Size of the picture in pixels."""

# Cityscapes' label ids of what is drawn.
EGO, ROAD, SIDEWALK, BUILDING, POLE, SIGN = 1, 7, 8, 11, 17, 20
VEGETATION, SKY, PERSON, CAR = 21, 23, 24, 26

Color = tuple[float, float, float]
Points = Sequence[tuple[float, float]]


@dataclass(slots=True)
class Canvas:
    """Picture, labels and depth, painted over from far to near."""

    picture: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    depth_m: NDArray[np.float32]

    def polygon(self, points: Points, color: Color, label: int, depth_m: float) -> None:
        """Fill a polygon given in pixels."""
        corners = np.rint(np.asarray(points) * 16).clip(-64000, 64000).astype(np.int32)
        for plane, value in self._planes(color, label, depth_m):
            cv2.fillPoly(plane, [corners], value, shift=4)

    def ellipse(
        self, center: tuple[float, float], axes: tuple[float, float], color: Color, label: int,
        depth_m: float,
    ) -> None:  # fmt: skip
        """Fill an ellipse given in pixels."""
        middle = (round(center[0] * 16), round(center[1] * 16))
        radii = (max(8, round(axes[0] * 16)), max(8, round(axes[1] * 16)))
        for plane, value in self._planes(color, label, depth_m):
            cv2.ellipse(plane, middle, radii, 0, 0, 360, value, -1, shift=4)

    def texture(self, quad: Points, pixels: NDArray[np.uint8], label: int, depth_m: float) -> None:
        """Fill a quadrilateral with a picture; its corners clockwise from the upper left."""
        corners = np.clip(quad, -4000, 4000).astype(np.float32)
        left, top = np.floor(np.clip(corners.min(0), 0, (WIDTH, HEIGHT))).astype(int)
        right, bottom = np.ceil(np.clip(corners.max(0), 0, (WIDTH, HEIGHT))).astype(int)
        if right - left < 1 or bottom - top < 1:
            return
        rows, columns = pixels.shape[:2]
        source = np.array([(0, 0), (columns, 0), (columns, rows), (0, rows)], dtype=np.float32)
        matrix = cv2.getPerspectiveTransform(source, (corners - (left, top)).astype(np.float32))
        size = (int(right - left), int(bottom - top))
        warped = cv2.warpPerspective(pixels, matrix, size, borderMode=cv2.BORDER_REPLICATE)
        inside = np.zeros(size[::-1], np.uint8)
        shifted = np.round((corners - (left, top)) * 16).astype(np.int32)
        cv2.fillPoly(inside, [shifted], 1, shift=4)
        window = np.s_[top:bottom, left:right]
        cv2.copyTo(warped, inside, self.picture[window])
        self.labels[window][inside > 0] = label
        self.depth_m[window][inside > 0] = depth_m

    def _planes(self, color: Color, label: int, depth_m: float) -> list[tuple[Any, Any]]:
        shade = tuple(min(255.0, max(0.0, channel)) for channel in color)
        return [(self.picture, shade), (self.labels, label), (self.depth_m, depth_m)]


Paint = tuple[float, Callable[[Canvas], None]]
"""An object: how many metres away it is, and what paints it."""
