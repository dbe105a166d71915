"""Resizing of images and masks, and of windows of image files decoded no further than needed.

Nearly all of the time of decoding a photograph is spent on its entropy code, which can only be read
from the top. So a crop that ends above the lower edge needs only the rows down to its end: the
height in the frame header is lowered to that, and the decoder stops there. The pixels are the same,
bit for bit. That is for files known to be sound: damage in the entropy code often shows only at the
end of a file, as missing data, and the end is not read.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from headrace.core.errors import BadSampleError, UsageError
from headrace.data.image_files import (
    IMAGE_EXTENSIONS,
    MAX_PIXELS,
    exif_of,
    read_header,
    read_orientation,
    with_orientation,
)
from headrace.data.transforms.decode import decode_image, decode_labels

_Number = TypeVar("_Number", bound=np.generic)

_INTERPOLATED = frozenset({"uint8", "uint16", "int16", "float32", "float64"})
"""The types of pixels that OpenCV averages and interpolates."""


def check_pixels(pixels: object) -> None:
    """Raise UsageError unless it is an array of pixels: [H, W, C], or [H, W]."""
    if not isinstance(pixels, np.ndarray):
        raise UsageError(
            f"A transform got a {type(pixels).__name__}; it takes arrays uint8[H, W, C], as the "
            "dataset decodes images. Convert with np.asarray; a tensor of torch's, C x H x W, with "
            "tensor.permute(1, 2, 0).numpy()."
        )
    if pixels.ndim not in {2, 3} or not pixels.size:
        raise UsageError(
            f"A transform got an array of shape {pixels.shape}; an image has H x W x C pixels."
        )


def resize_image(image: NDArray[_Number], height: int, width: int) -> NDArray[_Number]:
    """Resize uint8[H, W, C] for training; the image itself where it has this size already.

    Values of other types, and images of no channels, stay so. While it is at least twice too large
    both ways, 2x2 pixels are averaged into one; bilinear interpolation does the rest. That is free
    of aliasing like an area average, at a sixth of its time or better. A halving drops an odd last
    row or column: under half a pixel of the result.
    """
    resized: NDArray[Any] = image
    if image.shape[:2] != (height, width) and image.dtype.name not in _INTERPOLATED:
        raise UsageError(
            f"An image of {image.dtype} cannot be resized; {', '.join(sorted(_INTERPOLATED))} can. "
            "Convert it before, or after the resizing; labels go as the mask of a pair."
        )
    while resized.shape[0] >= 2 * height and resized.shape[1] >= 2 * width:
        half_height, half_width = resized.shape[0] // 2, resized.shape[1] // 2
        even = resized[: 2 * half_height, : 2 * half_width]
        resized = cv2.resize(even, (half_width, half_height), interpolation=cv2.INTER_AREA)
    if resized.shape[:2] != (height, width):
        resized = cv2.resize(resized, (width, height), interpolation=cv2.INTER_LINEAR)
    return resized.reshape(height, width, *image.shape[2:])


def shrink_image(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Shrink uint8[H, W, C] by averaging exact areas: the best quality, for files."""
    shrunk = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return shrunk.reshape(height, width, image.shape[2]).astype(np.uint8, copy=False)


def resize_mask(mask: NDArray[_Number], height: int, width: int) -> NDArray[_Number]:
    """Resize [H, W] or [H, W, C] of any type: each pixel takes the label under its centre."""
    if mask.dtype != np.uint8:  # OpenCV knows few types of labels
        rows, columns = _nearest(mask.shape[0], height), _nearest(mask.shape[1], width)
        return mask[rows[:, np.newaxis], columns]
    labels: NDArray[Any] = mask
    resized = cv2.resize(labels, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)
    return np.asarray(resized, dtype=mask.dtype).reshape(height, width, *mask.shape[2:])


def _nearest(length: int, target: int) -> NDArray[np.int32]:
    """Return for each of `target` pixels the one of `length` that OpenCV takes."""
    places = np.arange(length, dtype=np.int32)[:, np.newaxis]
    nearest: NDArray[Any] = cv2.resize(places, (1, target), interpolation=cv2.INTER_NEAREST_EXACT)
    return nearest.reshape(target)


@dataclass(frozen=True, slots=True)
class Recode:
    """Shrink the images of a sample, so that a dataset is smaller and decodes faster.

    Images are only made smaller, never larger, and both sides by the same factor, so an image and
    its mask stay aligned. Pixels stay as they are stored, and a shrunk file keeps its EXIF
    orientation, as the others do. The format is the extension's:

    - jpg, jpeg: averaged by area and encoded again, with 4:2:0 colour;
    - mask.png (packing names all masks so, whatever their format), unless it is a JPEG by name and
    content: nearest pixel, exact labels; a palette's indices become the pixels, as losses need
    them, whatever the size;
    - other images: averaged by area, with their colours where they have a palette;
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
        if last not in IMAGE_EXTENSIONS:
            return bytes(data)
        is_jpeg = last in {"jpg", "jpeg"}
        header = read_header(data)
        is_mask = first.endswith("mask") and not (is_jpeg and header.kind == "jpeg")
        factor = min(1.0, self.resize_short / min(header.height, header.width))
        height, width = round(header.height * factor), round(header.width * factor)
        if factor == 1.0 and not (is_mask and header.palette):
            return bytes(data)
        orientation = read_orientation(data)
        if is_mask:
            labels = resize_mask(decode_labels(data), height, width)
            return _encode(labels, last, None, orientation)
        # Decoding at a fraction of the size leaves the image at least as large as needed.
        shrink = max(each for each in (1, 2, 4, 8) if each == 1 or each * factor <= 1)
        image = shrink_image(decode_image(data, shrink=shrink), height, width)
        if not is_jpeg:
            return _encode(image, last, self.quality, orientation)
        if image.shape[2] == 1:  # a gray PNG with a JPEG's extension
            image = np.repeat(image, 3, axis=2)
        pixels = np.ascontiguousarray(image)
        encoded = simplejpeg.encode_jpeg(pixels, quality=self.quality, colorsubsampling="420")
        return with_orientation(bytes(encoded), orientation)


_PILLOW_FORMATS = {
    "bmp": "BMP",
    "gif": "GIF",
    "pgm": "PPM",
    "ppm": "PPM",
    "tif": "TIFF",
    "tiff": "TIFF",
    "webp": "WEBP",
}


def _encode(
    image: NDArray[np.uint8], extension: str, quality: int | None, orientation: int
) -> bytes:
    """Return an image file; `quality` None: without any loss, and without colours."""
    if extension == "png" or quality is None:  # decoders go by content
        return with_orientation(_encode_png(image), orientation)
    from PIL import Image

    options: dict[str, Any] = {}
    if extension == "webp":
        exif = exif_of(orientation) if orientation != 1 else b""
        options = {"quality": quality, "exif": exif}
    elif extension in {"tif", "tiff"}:  # its orientation is applied as it is decoded
        options = {"compression": "tiff_adobe_deflate"}
    sink = io.BytesIO()
    pixels = image[:, :, 0] if image.shape[2] == 1 else image
    Image.fromarray(pixels).save(sink, _PILLOW_FORMATS[extension], **options)
    return sink.getvalue()


def _encode_png(image: NDArray[np.uint8]) -> bytes:
    colour = image.ndim == 3 and image.shape[2] == 3
    ready, encoded = cv2.imencode(
        ".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR) if colour else image
    )
    if not ready:
        raise BadSampleError(f"OpenCV cannot write a PNG of shape {image.shape}.")
    return encoded.tobytes()


_HEIGHT = struct.Struct(">H")
_FRAME = struct.Struct(">BHHB")  # bits a sample, height, width, components
# Where colour has half the rows, a pixel blends its own colour row with the next one.
_CONTEXT_ROWS = 2
# The decoder's warning about the data that it did not read.
_UNREAD_DATA = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd9")

_SEQUENTIAL_FRAMES = frozenset({0xC0, 0xC1})
_START_OF_SCAN = 0xDA
# Other frames (progressive, arithmetic, ...), and restart intervals, whose markers would look like
# the end of the data.
_REFUSED = frozenset({*range(0xC2, 0xD0), 0xDD}) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xDA)})


class JpegFrame(NamedTuple):
    """The header of a sequential JPEG of one scan, gray or of three colours."""

    height: int  # in pixels
    width: int
    components: int  # 1 or 3 colours
    unit_rows: int  # rows that are coded together
    height_at: int  # offset of the height in the file, two bytes, big-endian


def decode_rows(data: bytes | memoryview, frame: JpegFrame, rows: int) -> NDArray[np.uint8] | None:
    """Decode at least the first `rows` rows of a JPEG that is known to be sound, as RGB.

    Returns None where that saves nothing, or where the decoder finds a fault: then decode all of
    it, which reports the fault.
    """
    decoded_rows = rows + _CONTEXT_ROWS
    if -(-decoded_rows // frame.unit_rows) >= -(-frame.height // frame.unit_rows):
        return None
    shortened = bytearray(data)
    _HEIGHT.pack_into(shortened, frame.height_at, decoded_rows)
    image = np.empty((decoded_rows, frame.width, 3), np.uint8)
    try:
        simplejpeg.decode_jpeg(shortened, colorspace="RGB", buffer=image)
    except ValueError as error:
        if _UNREAD_DATA.fullmatch(str(error)) is None:
            return None
    return image


def read_frame(data: bytes | memoryview) -> JpegFrame | None:
    """Return the frame of a sequential JPEG of one scan, gray or of three colours; else None."""
    position, frame = 2, None
    try:
        while data[position] == 0xFF:
            marker = data[position + 1]
            if marker == _START_OF_SCAN:
                return frame if frame and data[position + 4] == frame.components else None
            if marker in _SEQUENTIAL_FRAMES:
                frame = _frame_at(data, position)
            elif marker in _REFUSED:
                return None
            if marker == 0xFF:  # padding before a marker
                position += 1
            elif marker in _WITHOUT_LENGTH:
                position += 2
            else:
                position += 2 + data[position + 2] * 256 + data[position + 3]
    except (IndexError, struct.error):  # cut short
        return None
    return None


def _frame_at(data: bytes | memoryview, position: int) -> JpegFrame | None:
    depth_bits, height, width, components = _FRAME.unpack_from(data, position + 4)
    if depth_bits != 8 or components not in {1, 3} or not 0 < height * width <= MAX_PIXELS:
        return None
    factors = [data[position + 11 + 3 * each] & 15 for each in range(components)]
    return JpegFrame(height, width, components, 8 * max(factors), position + 5)


class CropWindow(NamedTuple):
    """A rectangle of an image, in pixels from its upper left corner."""

    top: int
    left: int
    height: int
    width: int

    @classmethod
    def central(cls, image_size: tuple[int, int], height: int, width: int) -> CropWindow:
        """Return the window in the middle of an image of (height, width), within its bounds."""
        height, width = (
            min(whole, max(1, side))
            for whole, side in zip(image_size, (height, width), strict=True)
        )
        return cls((image_size[0] - height) // 2, (image_size[1] - width) // 2, height, width)

    @property
    def bottom(self) -> int:
        """The first row below it."""
        return self.top + self.height

    def cut(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return this part of an image[H, W, ...] without copying."""
        return image[self.top : self.bottom, self.left : self.left + self.width]


ChooseWindow = Callable[[int, int], CropWindow]
"""(height, width) of an image -> the window to cut."""


def cut_and_resize(
    image: NDArray[np.uint8] | bytes | memoryview,
    choose: ChooseWindow,
    size: tuple[int, int],
    *,
    exact: bool = True,
) -> NDArray[np.uint8]:
    """Cut a window out of an image and resize it to (height, width): uint8[height, width, C].

    Args:
        image: uint8[H, W, C], or values of another type, or a whole image file. Of a JPEG file only
            the rows down to the window's end are decoded, with the same pixels. The file must be
            known to be sound: not all damage shows in its upper rows.
        choose: Returns the window.
        size: (height, width) of the result.
        exact: False: where the window is at least twice as large as the result both ways, a JPEG
            is decoded at a half, a quarter or an eighth of its size (libjpeg's scaled inverse
            DCT), which changes pixels by less than one level of 255 in the mean.

    Raises:
        BadSampleError: The file cannot be decoded.
    """
    if not isinstance(image, bytes | bytearray | memoryview):
        check_pixels(image)
        window = choose(image.shape[0], image.shape[1])
        return resize_image(window.cut(image), *size)
    frame = read_frame(image)
    header = frame or read_header(image)
    window = choose(header.height, header.width)
    shrink = 1 if exact else _shrink_for_window(window, size)
    pixels = decode_rows(image, frame, window.bottom) if frame and shrink == 1 else None
    if pixels is None:
        pixels = decode_image(image, shrink=shrink)
        if pixels.shape[:2] != (header.height, header.width):
            down, across = pixels.shape[0] / header.height, pixels.shape[1] / header.width
            window = scaled_window(window, down, across)
    return resize_image(window.cut(pixels), *size)


def scaled_window(window: CropWindow, down: float, across: float) -> CropWindow:
    """Return the window on an image scaled by these factors, rounded inwards."""
    top, left = round(window.top * down), round(window.left * across)
    return CropWindow(
        top=top,
        left=left,
        height=max(1, round(window.bottom * down) - top),
        width=max(1, round((window.left + window.width) * across) - left),
    )


def _shrink_for_window(window: CropWindow, size: tuple[int, int]) -> int:
    shrink = 1
    while shrink < 8 and all(
        side >= 2 * shrink * target
        for side, target in zip((window.height, window.width), size, strict=True)
    ):
        shrink *= 2
    return shrink
