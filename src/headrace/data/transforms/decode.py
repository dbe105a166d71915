"""Decoders of members: images to uint8[H, W, C], labels, JSON, text.

Images go through a chain: simplejpeg (JPEG only, the fastest), then OpenCV, then Pillow. The next
decoder is tried only for files that are unusual but complete. Damage is an error at once, because
the lenient decoders would silently fill the missing part with grey:

- a JPEG or PNG that is truncated;
- a JPEG whose scan data is broken, as libjpeg reports it.

Pixels stay as they are stored. The EXIF orientation is not applied, so that an image and its mask
stay aligned; torchvision and Pillow do the same.
"""

from __future__ import annotations

import io
import json
import re
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from headrace.core.errors import BadSampleError, UsageError

MAX_PIXELS = 178_956_970
"""An image of more pixels is refused from its header alone. Pillow's own limit: 512 MiB as RGB."""

IMAGE_EXTENSIONS = frozenset({"bmp", "jpeg", "jpg", "png", "webp"})
"""Extensions of members that `decode_member` decodes as images, of any format by content."""

# libjpeg's warnings (jerror.h) that mean lost pixels. Others, such as extraneous bytes before a
# marker, which some cameras write, leave the image whole.
_DAMAGE = (
    "premature end",
    "bad huffman code",
    "bad arithmetic code",
    "found marker",
    "inconsistent progression",
)

_PNG_END = b"IEND\xaeB`\x82"  # the last chunk's name and checksum

Kind = Literal["jpeg", "png", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """The fields of an image's header."""

    kind: Kind  # the file format, as far as the decoders distinguish it
    height: int  # in pixels
    width: int
    gray: bool = False  # a PNG without colour, which decodes to one channel
    palette: bool = False  # a PNG whose pixels are indices into a table of colours
    cmyk: bool = False  # a JPEG in printing inks, which only Pillow converts faithfully
    depth_bits: int = 8  # of one channel


def decode_image(
    data: bytes | memoryview, *, first_decoder: int = 0, shrink: int = 1
) -> NDArray[np.uint8]:
    """Decode an image.

    Args:
        data: The whole file: JPEG or PNG, or another format that OpenCV or Pillow reads.
        first_decoder: Where in the chain simplejpeg, OpenCV, Pillow to start (0, 1, 2): for the
            second try of a bad sample.
        shrink: 2, 4 or 8: simplejpeg may decode a JPEG at this fraction of its size, rounded up,
            which saves time. Other decoders give the full size.

    Returns:
        uint8[H, W, 3] as RGB. A PNG without colour (a mask) is uint8[H, W, 1]; a palette becomes
        RGB, as everywhere; transparency is dropped. Gray JPEGs become RGB.

    Raises:
        BadSampleError: No decoder accepts it (the message has each one's error), it is damaged, it
            has 16 bits a channel, or more than MAX_PIXELS.
        UsageError: There is no such decoder.
    """
    if not 0 <= first_decoder < len(DECODERS):
        names = ", ".join(name for name, _ in DECODERS)
        raise UsageError(f"first_decoder={first_decoder} is not one of 0..2, for {names}.")
    header = read_header(data)
    reasons = []
    for name, decode in DECODERS[first_decoder:]:
        try:
            image = decode(data, header, shrink)
        except (ValueError, OSError, SyntaxError, cv2.error) as error:
            reasons.append(f"{name}: {_one_line(error)}")
            continue
        if image is not None:
            return image
    raise BadSampleError(
        f"No decoder accepts this image of {len(data)} bytes, {header.width}x{header.height} by "
        f"its header ({'; '.join(reasons)}). Replace the file, or leave it out when packing."
    )


def decode_member(extension: str, data: bytes | memoryview, *, first_decoder: int = 0) -> Any:
    """Decode one member of a sample by its extension.

    Args:
        extension: The name after the key, without the dot: "jpg", "cls", or of several parts,
            "mask.png".
        data: The member's bytes.
        first_decoder: See `decode_image`.

    Returns:
        An array for images, int for cls, dict or list (or scalar) for json, str for txt, and the
        bytes themselves for everything else.

    Raises:
        BadSampleError: The bytes do not fit the extension.
    """
    last = extension.lower().rpartition(".")[2]
    if last in IMAGE_EXTENSIONS:
        return decode_image(data, first_decoder=first_decoder)
    try:
        match last:
            case "cls":
                return int(bytes(data))
            case "json":
                return json.loads(bytes(data))
            case "txt":
                return bytes(data).decode()
    except (ValueError, RecursionError) as error:
        raise BadSampleError(
            f"Member .{extension} does not hold what its extension says: {_one_line(error)}. "
            "Correct the file, or leave it out when packing."
        ) from None
    return bytes(data)


def read_header(data: bytes | memoryview) -> ImageHeader:
    """Read size and kind of an image in about 2 us; BadSampleError: none, 16 bits, or too large."""
    start = bytes(data[:32])
    if start.startswith(b"\xff\xd8"):
        header = _read_jpeg_header(data)
    elif start.startswith(b"\x89PNG\r\n\x1a\n"):
        header = _read_png_header(start)
    else:
        header = _read_other_header(data)
    if header.height * header.width > MAX_PIXELS:
        raise BadSampleError(
            f"The header promises {header.width}x{header.height} pixels, above the limit of "
            f"{MAX_PIXELS} that guards memory. Shrink the image (`headrace data pack "
            "--resize-short`), or leave it out."
        )
    if header.depth_bits > 8:  # all transforms are for uint8
        raise BadSampleError(
            f"The image has {header.depth_bits} bits a channel; images are uint8 here. Convert it "
            "to 8 bits before packing, or store the values under an extension of your own, which "
            "arrives as bytes, and decode them in the transform."
        )
    return header


def _read_jpeg_header(data: bytes | memoryview) -> ImageHeader:
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:  # such as arithmetic coding: Pillow reads more kinds
        return _read_other_header(data)
    cmyk = colorspace in {"CMYK", "YCCK"}
    return ImageHeader(kind="jpeg", height=height, width=width, cmyk=cmyk)


def _read_png_header(start: bytes) -> ImageHeader:
    # PNG specification, 11.2.1: IHDR is the first chunk, its fields at fixed places.
    if len(start) < 26 or start[12:16] != b"IHDR":
        raise BadSampleError("A PNG cut short in its header. Replace the file.")
    width, height, depth_bits, colour_type = struct.unpack(">IIBB", start[16:26])
    return ImageHeader(
        kind="png",
        height=height,
        width=width,
        gray=colour_type in {0, 4},  # gray, gray with transparency
        palette=colour_type == 3,
        depth_bits=depth_bits,
    )


def _read_other_header(data: bytes | memoryview) -> ImageHeader:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images: the caller has its own limit
            with Image.open(io.BytesIO(data)) as image:
                width, height = image.size
                depth_bits = 16 if image.mode.startswith(("I", "F")) else 8
                kind: Kind = "jpeg" if image.format == "JPEG" else "other"
                cmyk = image.mode == "CMYK"
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadSampleError(
            f"{len(data)} bytes are no image that any decoder knows ({_one_line(error)}). "
            "Replace the file, or leave it out when packing."
        ) from None
    return ImageHeader(kind=kind, height=height, width=width, cmyk=cmyk, depth_bits=depth_bits)


def _decode_simplejpeg(
    data: bytes | memoryview, header: ImageHeader, shrink: int
) -> NDArray[np.uint8] | None:
    if header.kind != "jpeg" or header.cmyk:
        return None
    height, width = -(-header.height // shrink), -(-header.width // shrink)
    try:
        return np.asarray(
            simplejpeg.decode_jpeg(data, colorspace="RGB", min_height=height, min_width=width),
            dtype=np.uint8,
        )
    except ValueError as error:
        refuse_damage(error)
        raise


def _decode_opencv(
    data: bytes | memoryview, header: ImageHeader, _shrink: int
) -> NDArray[np.uint8] | None:
    if header.cmyk:
        return None
    if header.kind == "jpeg":
        check_jpeg(data)
    flags = cv2.IMREAD_GRAYSCALE if header.gray else cv2.IMREAD_COLOR_RGB
    image = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), flags | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None:
        raise ValueError("unreadable or cut short")
    return np.asarray(image if image.ndim == 3 else image[:, :, np.newaxis], dtype=np.uint8)


def _decode_pillow(
    data: bytes | memoryview, header: ImageHeader, _shrink: int
) -> NDArray[np.uint8] | None:
    from PIL import Image

    if header.kind == "jpeg":
        check_jpeg(data)
    if header.kind == "png" and _PNG_END not in bytes(data):
        raise ValueError("cut short: the end chunk is missing")
    with Image.open(io.BytesIO(data)) as image:
        pixels = np.array(image.convert("L" if header.gray else "RGB"))
    return np.asarray(pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis], dtype=np.uint8)


Decoder = Callable[[bytes | memoryview, ImageHeader, int], NDArray[np.uint8] | None]

DECODERS: tuple[tuple[str, Decoder], ...] = (
    ("simplejpeg", _decode_simplejpeg),
    ("OpenCV", _decode_opencv),
    ("Pillow", _decode_pillow),
)
"""The chain; a decoder returns None for a file that it does not support."""


def check_jpeg(data: bytes | memoryview) -> None:
    """Check a JPEG for libjpeg's warnings, which OpenCV and Pillow hide; raises BadSampleError.

    Decodes at an eighth of the size, which still reads all of the scan data.
    """
    try:
        simplejpeg.decode_jpeg(data, min_height=1, min_width=1)
    except ValueError as error:
        refuse_damage(error)


def refuse_damage(error: ValueError) -> None:
    """Raise BadSampleError where libjpeg's message means that pixels are missing."""
    if any(words in str(error).lower() for words in _DAMAGE):
        raise BadSampleError(
            f"A damaged JPEG ({_one_line(error)}): some of its pixels are missing. Replace the "
            "file, or leave it out when packing."
        ) from None


def _one_line(error: BaseException) -> str:
    # Pillow's messages contain the address of the buffer, which differs from run to run.
    text = re.sub(r"<_io\.BytesIO object at 0x[0-9a-f]+>", "", str(error))
    return " ".join(text.split()) or type(error).__name__
