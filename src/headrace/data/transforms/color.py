"""Colour changes on uint8."""

from __future__ import annotations

import random
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import UsageError

# ITU-R BT.601 luma, as Pillow and torchvision weigh the channels to gray.
_LUMA = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Change brightness, contrast, saturation and hue at random: torchvision's, in one pass.

    Brightness, contrast and saturation are affine in (R, G, B), so their product is one 3x4 matrix
    and one pass over the image (30 us for 224x224). Each factor is uniform in [max(0, 1 - x),
    1 + x]; the order of the three is random. Values are clipped once at the end, where torchvision
    clips after each: the two differ only in pixels that leave 0..255 on the way. Hue, where asked
    for, is turned last, uniform in [-hue, hue] of a full circle.

    Attributes:
        brightness: Greatest change of the factor, 0 for none.
        contrast: Likewise, about the image's mean gray.
        saturation: Likewise, about each pixel's gray.
        hue: Greatest turn, at most 0.5.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        """Refuse negative strengths and turns of more than half a circle; raises UsageError."""
        if min(self.brightness, self.contrast, self.saturation, self.hue) < 0 or self.hue > 0.5:
            raise UsageError(f"{self}: strengths are 0 or more, and hue is at most 0.5.")

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return uint8[H, W, 3] with changed colours."""
        matrix = self._draw_matrix(np.array(cv2.mean(image)[:3]))
        changed = np.asarray(cv2.transform(image, matrix), dtype=np.uint8)
        return turn_hue(changed, random.uniform(-self.hue, self.hue)) if self.hue else changed

    def _draw_matrix(self, mean_rgb: NDArray[np.float64]) -> NDArray[np.float64]:
        """Draw the factors and their order; return the map of (R, G, B, 1) as float64[3, 4]."""
        factors = [
            ("brightness", _draw_factor(self.brightness)),
            ("contrast", _draw_factor(self.contrast)),
            ("saturation", _draw_factor(self.saturation)),
        ]
        random.shuffle(factors)
        linear, offset = np.eye(3), np.zeros(3)
        for name, factor in factors:
            match name:
                case "brightness":
                    linear, offset = factor * linear, factor * offset
                case "contrast":
                    gray = _LUMA @ (linear @ mean_rgb + offset)
                    linear, offset = factor * linear, factor * offset + (1 - factor) * gray
                case _:
                    blend = factor * np.eye(3) + (1 - factor) * np.tile(_LUMA, (3, 1))
                    linear, offset = blend @ linear, blend @ offset
        return np.column_stack([linear, offset])


def turn_hue(image: NDArray[np.uint8], turn: float) -> NDArray[np.uint8]:
    """Turn the hue of uint8[H, W, 3] by a share of the full circle."""
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)  # here a full circle is 256, so uint8 wraps
    hsv[:, :, 0] += np.uint8(round(turn * 256) % 256)
    return np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL), dtype=np.uint8)


def _draw_factor(strength: float) -> float:
    return random.uniform(max(0.0, 1 - strength), 1 + strength)
