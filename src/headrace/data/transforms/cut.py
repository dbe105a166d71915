"""A window of an image, straight from its file: the rest is decoded as little as can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.data.transforms.decode import decode_image, read_header
from headrace.data.transforms.jpeg_rows import decode_rows, read_frame
from headrace.data.transforms.resize import resize_image


class Window(NamedTuple):
    """A rectangle of an image, in pixels from its upper left corner."""

    top: int
    left: int
    height: int
    width: int

    @property
    def bottom(self) -> int:
        """The first row below it."""
        return self.top + self.height

    def cut(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return this part of an image[H, W, ...] without copying."""
        return image[self.top : self.bottom, self.left : self.left + self.width]


ChooseWindow = Callable[[int, int], Window]
"""(height, width) of an image -> the window to cut."""


def cut_and_resize(
    image: NDArray[np.uint8] | bytes | memoryview,
    choose: ChooseWindow,
    size: tuple[int, int],
    *,
    exact: bool = True,
) -> NDArray[np.uint8]:
    """Cut a window out of an image and resize it.

    Args:
        image: uint8[H, W, C], or a whole image file. Of a JPEG's file only the rows down to the
            window's end are decoded: the same pixels, for less. The file must be known to be
            sound: not all damage shows in its upper rows.
        choose: Says which window.
        size: (height, width) of the result.
        exact: False: where the window is at least twice as large as the result both ways, a JPEG
            is decoded at a half, a quarter or an eighth of its size (libjpeg's scaled inverse
            DCT), which changes pixels by less than one level of 255 in the mean.

    Returns:
        uint8[height, width, C].

    Raises:
        BadSampleError: The file cannot be decoded.
    """
    if isinstance(image, np.ndarray):
        window = choose(image.shape[0], image.shape[1])
        return resize_image(window.cut(image), *size)
    frame = read_frame(image)
    header = frame or read_header(image)
    window = choose(header.height, header.width)
    shrink = 1 if exact else _shrink(window, size)
    pixels = decode_rows(image, frame, window.bottom) if frame and shrink == 1 else None
    if pixels is None:
        pixels = decode_image(image, shrink=shrink)
        if pixels.shape[:2] != (header.height, header.width):
            down, across = pixels.shape[0] / header.height, pixels.shape[1] / header.width
            window = scaled(window, down, across)
    return resize_image(window.cut(pixels), *size)


def scaled(window: Window, down: float, across: float) -> Window:
    """Return the window on an image scaled by these factors, rounded inwards."""
    top, left = round(window.top * down), round(window.left * across)
    return Window(
        top=top,
        left=left,
        height=max(1, round(window.bottom * down) - top),
        width=max(1, round((window.left + window.width) * across) - left),
    )


def _shrink(window: Window, size: tuple[int, int]) -> int:
    shrink = 1
    while shrink < 8 and all(
        side >= 2 * shrink * wanted
        for side, wanted in zip((window.height, window.width), size, strict=True)
    ):
        shrink *= 2
    return shrink
