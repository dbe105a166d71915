"""Augmentations: crops, flips and colour of an image, joint crops of an image and its mask."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import UsageError
from headrace.data.transforms.resize import (
    CropWindow,
    check_pixels,
    cut_and_resize,
    resize_image,
    resize_mask,
)

_Number = TypeVar("_Number", bound=np.generic)

# ITU-R BT.601 luma, as Pillow and torchvision weigh the channels to gray.
_LUMA = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Change brightness, contrast, saturation and hue at random like torchvision, in one pass.

    Brightness, contrast and saturation are affine in (R, G, B), so their product is one 3x4 matrix
    and one pass over the image (30 us for 224x224). Each factor is uniform in [max(0, 1 - x),
    1 + x]; the order of the three is random. Values are clipped once at the end, where torchvision
    clips after each: the two differ only in pixels that leave 0..255 in between. Hue, if any, is
    turned last, uniform in [-hue, hue] of a full circle.

    Attributes:
        brightness: Greatest change of the factor, 0 for none.
        contrast: Greatest change of the factor, about the image's mean gray.
        saturation: Greatest change of the factor, about each pixel's gray.
        hue: Greatest turn, at most 0.5.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        if min(self.brightness, self.contrast, self.saturation, self.hue) < 0 or self.hue > 0.5:
            raise UsageError(f"{self}: strengths are 0 or more, and hue is at most 0.5.")

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return uint8[H, W, 3] with changed colours; of uint8[H, W, 1], gray, changed as well.

        UsageError: pixels of another type, whose white is not 255, or of other channels.
        """
        check_pixels(image)
        channels = 1 if image.ndim == 2 else image.shape[2]
        if image.dtype != np.uint8 or channels not in {1, 3}:
            raise UsageError(
                f"ColorJitter got {image.dtype}{list(image.shape)}; it takes uint8[H, W, 3], or "
                "one channel. Put it before what converts the image."
            )
        if channels == 1:
            coloured = self(np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2))
            return np.ascontiguousarray(coloured[:, :, 0]).reshape(image.shape)
        matrix = self._draw_matrix(np.array(cv2.mean(image)[:3]))
        changed = np.asarray(cv2.transform(image, matrix), dtype=np.uint8)
        return turn_hue(changed, random.uniform(-self.hue, self.hue)) if self.hue else changed

    def _draw_matrix(self, mean_rgb: NDArray[np.float64]) -> NDArray[np.float64]:
        """Draw the factors and their order; return the map of (R, G, B, 1) as float64[3, 4]."""
        names = ("brightness", "contrast", "saturation")
        strengths = [(name, getattr(self, name)) for name in names]
        factors = [(name, random.uniform(max(0.0, 1 - x), 1 + x)) for name, x in strengths]
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


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """Cut a random part of random shape and resize it: `torchvision.transforms.RandomResizedCrop`.

    The window is drawn as in torchvision: area uniform in `scale`, aspect ratio uniform in its
    logarithm within `ratio`, ten tries, then the centre. For resizing, see `resize_image`.

    It takes pixels, or the bytes of an image file that is known to be sound. `ShardDataset` passes
    bytes where it is the first transform of a member and every file was decoded when the dataset
    was packed: then a JPEG's rows below the window are not decoded, for the same result. That saves
    an eighth of the time of decoding on average.

    Attributes:
        size: Pixels of the result: a side, or (height, width).
        scale: Least and greatest share of the image's area.
        ratio: Least and greatest width / height.
        exact: False allows decoding large JPEGs at a smaller size, which saves another tenth for
            photos of 1000x750 and a quarter for 2000x1500 when cropping 224 pixels; see
            `cut_and_resize`.
        decodes_sound_files: It accepts bytes, where the dataset guarantees sound files.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    exact: bool = True
    decodes_sound_files: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_size(self.size)
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < low <= high:
                raise UsageError(f"{name}=({low}, {high}) is not a range of positive numbers.")

    def __call__(self, image: NDArray[np.uint8] | bytes | memoryview) -> NDArray[np.uint8]:
        """Cut and resize uint8[H, W, C], or a file, to uint8[size, size, C]."""
        return cut_and_resize(image, self.draw, height_and_width(self.size), exact=self.exact)

    def draw(self, height: int, width: int) -> CropWindow:
        """Draw the window for an image of this size."""
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = height * width * random.uniform(*self.scale)
            aspect = math.exp(random.uniform(low, high))
            crop_width = round(math.sqrt(area * aspect))
            crop_height = round(math.sqrt(area / aspect))
            if 0 < crop_width <= width and 0 < crop_height <= height:
                top = random.randint(0, height - crop_height)
                left = random.randint(0, width - crop_width)
                return CropWindow(top, left, crop_height, crop_width)
        # The largest centred window with an allowed ratio.
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        size = round(width / aspect), round(height * aspect)
        return CropWindow.central((height, width), *size)


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip:
    """Mirror an image left to right with a probability."""

    probability: float = 0.5

    def __call__(self, image: NDArray[_Number]) -> NDArray[_Number]:
        """Return an image[H, W, C], mirrored or unchanged."""
        check_pixels(image)
        return mirror(image) if random.random() < self.probability else image


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """Resize so that the shorter side is `resize`, then cut the middle: for evaluation.

    Attributes:
        size: Pixels of the result: a side, or (height, width).
        resize: Pixels of the shorter side before the cut; None for 256/224 of the size.
        decodes_sound_files: It accepts a file's bytes, too, like `RandomResizedCrop`.
    """

    size: int | tuple[int, int]
    resize: int | None = None
    decodes_sound_files: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_size(self.size)
        if self.resize is not None and self.resize < max(height_and_width(self.size)):
            raise UsageError(f"resize={self.resize} is smaller than the crop, {self.size}.")

    def __call__(self, image: NDArray[np.uint8] | bytes | memoryview) -> NDArray[np.uint8]:
        """Return the middle of uint8[H, W, C], or of a file, as uint8[size, size, C].

        Cuts first and resizes the window, which gives the same to within a pixel and is cheaper.
        """
        return cut_and_resize(image, self.window, height_and_width(self.size))

    def window(self, height: int, width: int) -> CropWindow:
        """Return the window for an image of this size."""
        high, wide = height_and_width(self.size)
        short = self.resize or round(max(high, wide) * 256 / 224)
        factor = min(height, width) / short  # pixels of the image in one of the result
        return CropWindow.central((height, width), round(high * factor), round(wide * factor))


def mirror(image: NDArray[_Number]) -> NDArray[_Number]:
    """Return an image[H, W, C] or [H, W] mirrored left to right, contiguous."""
    if image.dtype != np.uint8:  # OpenCV knows few types
        return np.ascontiguousarray(image[:, ::-1])
    pixels: NDArray[Any] = image
    flipped: NDArray[Any] = cv2.flip(pixels, 1)  # 20 times the speed of a copied NumPy view
    return flipped.reshape(image.shape)


def check_size(size: int | tuple[int, int]) -> None:
    """Raise UsageError where a size is not one or two whole numbers above 0."""
    sides: Any = [size, size] if isinstance(size, Integral) else size
    is_pair = isinstance(sides, Sequence) and len(sides) == 2
    if not (is_pair and all(isinstance(side, Integral) and int(side) > 0 for side in sides)):
        raise UsageError(f"size={size!r} is not a size; give a side or (height, width), in pixels.")


def height_and_width(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return a size as (height, width)."""
    sides: Any = (size, size) if isinstance(size, Integral) else size
    height, width = sides
    return int(height), int(width)


Pair = tuple[NDArray[Any], NDArray[Any]]
_Resize = Callable[[NDArray[Any], int, int], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class JointScaleCropFlip:
    """Scale, cut and mirror an image and its mask with the same random draws.

    The usual augmentation for segmentation: scale by a factor, cut `size`, mirror. Only the window
    is resized, never the whole image. Where the scaled image is smaller than `size`, it is put at a
    random place and the rest is filled: the image with `fill`, the mask with `ignore_index`.

    Attributes:
        size: (height, width) of the result in pixels, or a side.
        scale: Least and greatest factor, drawn uniformly.
        flip: Share of pairs that are mirrored.
        fill: Value of the image's filled pixels; the middle of the range by default.
        ignore_index: Label of the mask's filled pixels, which loss and metric ignore.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.5, 2.0)
    flip: float = 0.5
    fill: int = 128
    ignore_index: int = 255

    def __post_init__(self) -> None:
        check_size(self.size)
        if not 0 < self.scale[0] <= self.scale[1]:
            raise UsageError(f"scale={self.scale} is not a range of positive numbers.")

    def __call__(self, image: NDArray[Any], mask: NDArray[Any]) -> Pair:
        """Return image and mask of the configured size, of the types that they have.

        Args:
            image: uint8[H, W, 3].
            mask: uint8[H, W] or uint8[H, W, 1], or labels of another type, such as int32; the
                result's mask has as many dimensions.

        Raises:
            UsageError: The two differ in size, the mask has several channels, or its type cannot
                hold `ignore_index`.
        """
        check_pair(image, mask)
        _check_fill("fill", self.fill, image)
        _check_fill("ignore_index", self.ignore_index, mask)
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
    """One axis of a window: its range in the source and its range in the result."""

    source: slice
    target: slice
    length: int


def _draw_span(available: int, length: int, factor: float) -> _Span:
    """Draw the start of a window of `length / factor` source pixels; it may reach outside."""
    window = max(1, round(length / factor))
    spare = available - window
    begin = random.randint(min(0, spare), max(0, spare))
    first, last = max(0, begin), min(available, begin + window)
    to_target = length / window
    target = slice(round((first - begin) * to_target), round((last - begin) * to_target))
    if target.start == target.stop:  # a sliver that rounds to nothing gets one pixel
        target = slice(min(target.start, length - 1), min(target.start, length - 1) + 1)
    return _Span(slice(first, last), target, length)


def _check_fill(name: str, value: int, pixels: NDArray[Any]) -> None:
    """Raise UsageError where an array of this type would hold another number."""
    kind = pixels.dtype.kind
    if kind in "iu":
        bounds = np.iinfo(pixels.dtype)
        low, high = int(bounds.min), int(bounds.max)
    else:
        low, high = (0, 1) if kind == "b" else (value, value)
    if not low <= value <= high:
        raise UsageError(
            f"{name}={value} does not fit into {pixels.dtype}, which holds {low} to {high}: give "
            "one that does, or convert before, as mask.astype(np.int64) does."
        )


def _place(
    pixels: NDArray[Any], rows: _Span, columns: _Span, fill: int, resize: _Resize
) -> NDArray[Any]:
    """Resize the spans' part of `pixels` into a frame filled with `fill`."""
    part = pixels[rows.source, columns.source]
    height = rows.target.stop - rows.target.start
    width = columns.target.stop - columns.target.start
    resized = resize(part, height, width)
    if (height, width) == (rows.length, columns.length):
        return resized
    frame = np.full((rows.length, columns.length, *pixels.shape[2:]), fill, dtype=pixels.dtype)
    frame[rows.target, columns.target] = resized
    return frame


def check_pair(image: NDArray[Any], mask: NDArray[Any]) -> None:
    """Raise UsageError where image and mask do not fit each other."""
    check_pixels(image)
    check_pixels(mask)
    if image.shape[:2] != mask.shape[:2]:
        turned = image.shape[:2] == mask.shape[1::-1]
        hint = " Was the mask drawn on the image as its EXIF orientation turns it, which is not "
        raise UsageError(
            f"The image is {image.shape[1]}x{image.shape[0]} and its mask {mask.shape[1]}x"
            f"{mask.shape[0]} pixels. A pair has one size: check how image and mask were matched."
            + (f"{hint}applied here?" if turned else "")
        )
    if mask.ndim == 3 and mask.shape[2] != 1:
        raise UsageError(
            f"The mask has {mask.shape[2]} channels, not one label a pixel. A palette decodes to "
            "its indices where the member is a mask by its name: `png` beside `jpg` or "
            "`image.png`, or `mask.png`. Turn other colours into labels before packing."
        )
