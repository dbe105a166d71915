"""Resizing of images and masks: of arrays while training, of files while packing."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from headrace.core.errors import BadSampleError, UsageError
from headrace.data.transforms.decode import IMAGE_EXTENSIONS, decode_image, read_header


def resize_image(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Resize uint8[H, W, C] for training; the image itself where it has this size already.

    While it is at least twice too large both ways, 2x2 pixels are averaged into one; bilinear
    interpolation does the rest. That is free of aliasing like an area average, at a sixth of its
    time or better. A halving drops an odd last row or column: under half a pixel of the result.
    """
    resized: NDArray[Any] = image
    while resized.shape[0] >= 2 * height and resized.shape[1] >= 2 * width:
        half_height, half_width = resized.shape[0] // 2, resized.shape[1] // 2
        even = resized[: 2 * half_height, : 2 * half_width]
        resized = cv2.resize(even, (half_width, half_height), interpolation=cv2.INTER_AREA)
    if resized.shape[:2] != (height, width):
        resized = cv2.resize(resized, (width, height), interpolation=cv2.INTER_LINEAR)
    return resized.reshape(height, width, image.shape[2])


def shrink_image(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Shrink uint8[H, W, C] by averaging exact areas: the best quality, for files."""
    shrunk = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return shrunk.reshape(height, width, image.shape[2]).astype(np.uint8, copy=False)


def resize_mask(mask: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Resize uint8[H, W] or uint8[H, W, C]: each pixel takes the label under its centre."""
    resized = cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)
    return np.asarray(resized, dtype=np.uint8).reshape(height, width, *mask.shape[2:])


@dataclass(frozen=True, slots=True)
class Recode:
    """Shrink the images of a sample, so that a dataset is smaller and decodes faster.

    Images are only made smaller, never larger, and both sides by the same factor, so an image and
    its mask stay aligned. The format is the extension's:

    - jpg, jpeg: averaged by area and encoded again, with 4:2:0 colour;
    - mask.png (packing names all masks so): nearest pixel, exact labels; a palette's indices
    become the pixels, as losses need them, whatever the size;
    - any other png: averaged by area, with its colours where it has a palette;
    - every other member, and every image that is small enough: unchanged bytes.

    Attributes:
        resize_short: Greatest length of the shorter side in pixels.
        quality: JPEG quality, 1 to 100.
    """

    resize_short: int
    quality: int = 90

    def __post_init__(self) -> None:
        if self.resize_short < 1:
            raise UsageError(f"resize_short={self.resize_short} is no size; give 1 pixel or more.")
        if not 1 <= self.quality <= 100:
            raise UsageError(f"quality={self.quality} is not a JPEG quality; give 1 to 100.")

    def __call__(self, extension: str, data: bytes | memoryview) -> bytes:
        """Return the member's new bytes; raises BadSampleError where it cannot be decoded."""
        first, _, last = extension.lower().rpartition(".")
        is_mask = last == "png" and first.endswith("mask")
        if last not in IMAGE_EXTENSIONS:
            return bytes(data)
        header = read_header(data)
        factor = min(1.0, self.resize_short / min(header.height, header.width))
        height, width = round(header.height * factor), round(header.width * factor)
        if is_mask and header.palette:
            return _encode_png(resize_mask(_palette_indices(data), height, width))
        if factor == 1.0:
            return bytes(data)
        image = decode_image(data, shrink=_shrink(factor))
        if last == "png":
            resize = resize_mask if is_mask else shrink_image
            return _encode_png(resize(image, height, width))
        if last in {"jpg", "jpeg"}:
            return self._encode_jpeg(shrink_image(image, height, width))
        return bytes(data)

    def _encode_jpeg(self, image: NDArray[np.uint8]) -> bytes:
        if image.shape[2] == 1:  # a gray PNG with a JPEG's extension
            image = np.repeat(image, 3, axis=2)
        pixels = np.ascontiguousarray(image)
        return bytes(simplejpeg.encode_jpeg(pixels, quality=self.quality, colorsubsampling="420"))


def _shrink(factor: float) -> int:
    """Return the scaled decoding that leaves the image at least as large as needed."""
    return max(shrink for shrink in (1, 2, 4, 8) if shrink == 1 or shrink * factor <= 1)


def _palette_indices(data: bytes | memoryview) -> NDArray[np.uint8]:
    from PIL import Image

    decode_image(data)  # refuses truncated and damaged files
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image, dtype=np.uint8)


def _encode_png(image: NDArray[np.uint8]) -> bytes:
    colour = image.ndim == 3 and image.shape[2] == 3
    ready, encoded = cv2.imencode(
        ".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR) if colour else image
    )
    if not ready:
        raise BadSampleError(f"OpenCV cannot write a PNG of shape {image.shape}.")
    return encoded.tobytes()
