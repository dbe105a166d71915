"""Decoding the upper rows of a JPEG and leaving the rest.

Nearly all of the time of decoding a photograph goes into its entropy code, which can only be read
from the top on. So a crop that ends above the lower edge needs no more than the rows down to its
end: the height in the frame header is lowered to that, and the decoder stops there by itself. The
pixels are the same, bit for bit.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray

# Where colour has half the rows, a pixel blends its own colour row with the next one.
_CONTEXT_ROWS = 2
# What the decoder says of the data that it leaves. It tells of the first fault alone, so where
# this is the message, nothing was wrong in the rows that were read.
_LEFT_DATA = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd[0-79]")

_START_OF_SCAN = 0xDA
_SEQUENTIAL_FRAMES = {0xC0, 0xC1}
_OTHER_FRAMES = set(range(0xC2, 0xD0)) - {0xC4, 0xC8, 0xCC}  # progressive, lossless, arithmetic
_WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD8)}


class Frame(NamedTuple):
    """What a sequential JPEG of one scan says of itself.

    Attributes:
        height_at: Where its height lies in the file, two bytes, big-endian.
        height: Pixels.
        width: Pixels.
        unit_rows: Rows that are coded together.
    """

    height_at: int
    height: int
    width: int
    unit_rows: int


def decode_rows(data: bytes | memoryview, rows: int) -> NDArray[np.uint8] | None:
    """Decode at least the first `rows` rows of a JPEG, where that takes less than all of it.

    Returns:
        uint8[H, W, 3] as RGB with `rows` <= H; None where nothing is gained, where the rows are
        damaged, or where it is a JPEG of another kind: then decode all of it.
    """
    frame = read_frame(data)
    if frame is None:
        return None
    wanted = rows + _CONTEXT_ROWS
    if -(-wanted // frame.unit_rows) >= -(-frame.height // frame.unit_rows):
        return None
    shortened = bytearray(data)
    struct.pack_into(">H", shortened, frame.height_at, wanted)
    image = np.empty((wanted, frame.width, 3), np.uint8)
    try:
        simplejpeg.decode_jpeg(shortened, colorspace="RGB", buffer=image)
    except ValueError as error:
        if _LEFT_DATA.fullmatch(str(error)) is None:
            return None
    return image


def read_frame(data: bytes | memoryview) -> Frame | None:
    """Return the frame of a sequential JPEG whose scan holds all colours; None for all others."""
    found, components, position = None, 0, 2
    try:
        while True:
            if data[position] != 0xFF:
                return None
            marker = data[position + 1]
            if marker == 0xFF or marker in _WITHOUT_LENGTH:  # 0xFF: padding before a marker
                position += 1 if marker == 0xFF else 2
                continue
            if marker == _START_OF_SCAN:
                return found if data[position + 4] == components else None
            if marker in _SEQUENTIAL_FRAMES:
                height, width, components = struct.unpack_from(">HHB", data, position + 5)
                factors = data[position + 11 : position + 11 + 3 * components : 3]
                unit_rows = 8 * max(factor & 15 for factor in factors)
                found = Frame(position + 5, height, width, unit_rows) if height else None
            elif marker in _OTHER_FRAMES:
                return None
            position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    except (IndexError, ValueError, struct.error):  # cut short
        return None
