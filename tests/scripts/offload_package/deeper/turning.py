"""What a dataset imports as it makes its first sample."""

from __future__ import annotations

from typing import TypeVar

Pixels = TypeVar("Pixels")


def turned(image: Pixels) -> Pixels:
    return image.swapaxes(-1, -2)
