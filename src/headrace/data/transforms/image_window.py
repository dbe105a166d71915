"""A window of an image, decoded from its file with as few other rows as possible.

Nearly all of the time of decoding a photograph is spent on its entropy code, which can only be read
from the top. So a crop that ends above the lower edge needs only the rows down to its end: the
height in the frame header is lowered to that, and the decoder stops there. The pixels are the same,
bit for bit.

That is for files known to be sound. Damage in the entropy code often shows only at the end of a
file, as missing data, and the end is not read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from headrace.data.transforms.decode import MAX_PIXELS, decode_image, read_header
from headrace.data.transforms.resize import resize_image

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
        image: uint8[H, W, C], or a whole image file. Of a JPEG file only the rows down to the
            window's end are decoded, with the same pixels. The file must be known to be sound: not
            all damage shows in its upper rows.
        choose: Returns the window.
        size: (height, width) of the result.
        exact: False: where the window is at least twice as large as the result both ways, a JPEG
            is decoded at a half, a quarter or an eighth of its size (libjpeg's scaled inverse
            DCT), which changes pixels by less than one level of 255 in the mean.

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


def _shrink(window: CropWindow, size: tuple[int, int]) -> int:
    shrink = 1
    while shrink < 8 and all(
        side >= 2 * shrink * target
        for side, target in zip((window.height, window.width), size, strict=True)
    ):
        shrink *= 2
    return shrink
