"""Changes that an image and its mask must go through together."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import UsageError
from headrace.data.transforms.crop import check_size, height_and_width, mirror
from headrace.data.transforms.resize import resize_image, resize_mask

Pair = tuple[NDArray[np.uint8], NDArray[np.uint8]]
_Resize = Callable[[NDArray[np.uint8], int, int], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class JointScaleCropFlip:
    """Scale, cut and mirror an image and its mask by one draw.

    The usual augmentation for segmentation: scale by a factor, cut `size`, mirror. Only the window
    is resized, never the whole image. Where the scaled image is smaller than `size`, it is put at a
    random place and the rest is filled: the image with `fill`, the mask with `ignore_index`.

    Attributes:
        size: (height, width) of the result in pixels, or a side.
        scale: Least and greatest factor, drawn uniformly.
        flip: Share of pairs that are mirrored.
        fill: Value of the image's filled pixels; the middle of the range by default.
        ignore_index: Label of the mask's filled pixels, which the loss and the metric leave out.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.5, 2.0)
    flip: float = 0.5
    fill: int = 128
    ignore_index: int = 255

    def __post_init__(self) -> None:
        """Refuse a size or scale that is none; raises UsageError."""
        check_size(self.size)
        if not 0 < self.scale[0] <= self.scale[1]:
            raise UsageError(f"scale={self.scale} is not a range of positive numbers.")

    def __call__(self, image: NDArray[np.uint8], mask: NDArray[np.uint8]) -> Pair:
        """Return image and mask of the size asked for.

        Args:
            image: uint8[H, W, 3].
            mask: uint8[H, W] or uint8[H, W, 1]; the result's mask has as many dimensions.

        Raises:
            UsageError: The two differ in size, or the mask has several channels.
        """
        check_pair(image, mask)
        height, width = height_and_width(self.size)
        factor = random.uniform(*self.scale)
        rows = _draw_span(image.shape[0], height, factor)
        columns = _draw_span(image.shape[1], width, factor)
        result = _place(image, rows, columns, self.fill, resize_image)
        labels = _place(mask, rows, columns, self.ignore_index, resize_mask)
        if random.random() < self.flip:
            return mirror(result), mirror(labels)
        return result, labels


@dataclass(frozen=True, slots=True)
class _Span:
    """One axis of a window: what is read from the source and where it goes in the result."""

    source: slice
    target: slice
    length: int


def _draw_span(available: int, length: int, factor: float) -> _Span:
    """Draw where a window of `length / factor` source pixels begins; it may reach outside."""
    wanted = max(1, round(length / factor))
    spare = available - wanted
    begin = random.randint(min(0, spare), max(0, spare))
    first, last = max(0, begin), min(available, begin + wanted)
    to_target = length / wanted
    target = slice(round((first - begin) * to_target), round((last - begin) * to_target))
    if target.start == target.stop:  # a sliver that rounds to nothing still gets its pixel
        target = slice(min(target.start, length - 1), min(target.start, length - 1) + 1)
    return _Span(slice(first, last), target, length)


def _place(
    pixels: NDArray[np.uint8], rows: _Span, columns: _Span, fill: int, resize: _Resize
) -> NDArray[np.uint8]:
    """Resize the part of `pixels` that the spans read into a frame filled with `fill`."""
    part = pixels[rows.source, columns.source]
    height = rows.target.stop - rows.target.start
    width = columns.target.stop - columns.target.start
    resized = resize(part, height, width)
    if (height, width) == (rows.length, columns.length):
        return resized
    frame = np.full((rows.length, columns.length, *pixels.shape[2:]), fill, dtype=np.uint8)
    frame[rows.target, columns.target] = resized
    return frame


def check_pair(image: NDArray[np.uint8], mask: NDArray[np.uint8]) -> None:
    """Raise UsageError where these are not an image and its mask."""
    if image.shape[:2] != mask.shape[:2]:
        raise UsageError(
            f"The image is {image.shape[1]}x{image.shape[0]} and its mask {mask.shape[1]}x"
            f"{mask.shape[0]} pixels. A pair has one size: check how image and mask were matched."
        )
    if mask.ndim == 3 and mask.shape[2] != 1:
        raise UsageError(
            f"The mask has {mask.shape[2]} channels, not one label a pixel. A palette PNG decodes "
            "to its colours; `headrace data pack --resize-short` stores its indices instead."
        )
