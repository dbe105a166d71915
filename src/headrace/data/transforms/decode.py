"""Decoders of members: images to uint8[H, W, C], labels, JSON, text.

Images go through a chain: simplejpeg (JPEG only, the fastest), then OpenCV, then Pillow. The next
decoder is tried only for files that are unusual but complete. Damage is an error at once, because
the lenient decoders would silently fill the missing part with grey:

- a JPEG or PNG that is truncated;
- a JPEG whose scan data is broken, as libjpeg reports it.

Pixels stay as they are stored: no EXIF orientation is applied (see `image_files`). Of an animation
it is the first picture. A palette means colours in an image, and labels in a mask.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from headrace.core.errors import BadSampleError, UsageError
from headrace.data.image_files import (
    IMAGE_EXTENSIONS,
    ImageHeader,
    is_mask_name,
    one_line,
    pnm_maximum,
    read_header,
    zero_is_white,
)

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

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
            reasons.append(f"{name}: {one_line(error)}")
            continue
        if image is not None:
            return image
    raise BadSampleError(
        f"No decoder accepts this image of {len(data)} bytes, {header.width}x{header.height} by "
        f"its header ({'; '.join(reasons)}). Replace the file, or leave it out when packing."
    )


def decode_labels(data: bytes | memoryview) -> NDArray[np.uint8]:
    """Decode a mask: uint8[H, W, 1], the labels of its pixels.

    Of a palette these are the indices, as they are numbered in the file, and not its colours; of
    gray levels the numbers that are stored, where images have 255 for white, but of black and white
    0 and 255. A JPEG, and a mask of colours without a palette, is decoded as by `decode_image`.

    Raises:
        BadSampleError: As `decode_image`.
    """
    header = read_header(data)
    if header.kind == "jpeg" or (header.kind == "png" and not header.palette):
        labels = decode_image(data)
        return _unscaled(labels, _maximum(header.depth_bits)) if header.gray else labels
    from PIL import Image

    if header.kind == "png" and _PNG_END not in bytes(data):
        return decode_image(data)  # cut short: the chain's error
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode == "L":
                return _gray_labels(image, header.depth_bits)
            if image.mode in {"P", "1", "LA"}:
                gray = image if image.mode == "P" else image.convert("L")
                return np.array(gray, dtype=np.uint8)[:, :, np.newaxis]
    except (ValueError, OSError, SyntaxError) as error:
        raise BadSampleError(
            f"Pillow does not accept this mask of {len(data)} bytes, {header.width}x"
            f"{header.height} by its header: {one_line(error)}. Replace the file, or leave it out "
            "when packing."
        ) from None
    return decode_image(data)


def _gray_labels(image: PillowImage, depth_bits: int) -> NDArray[np.uint8]:
    """Return the values of a gray image as they are stored: Pillow makes 255 of white."""
    maximum = min(pnm_maximum(image), _maximum(depth_bits))
    labels = np.array(image, dtype=np.uint8)[:, :, np.newaxis]
    return _unscaled(255 - labels if zero_is_white(image) else labels, maximum)


def _maximum(depth_bits: int) -> int:
    """Return the greatest label of some bits; black and white, of 1 bit, stay 0 and 255."""
    return 2**depth_bits - 1 if depth_bits > 1 else 255


def _unscaled(labels: NDArray[np.uint8], maximum: int) -> NDArray[np.uint8]:
    """Return values as they are stored, 0 to `maximum`, of those that were scaled to 255."""
    return labels if maximum == 255 else np.round(labels * (maximum / 255)).astype(np.uint8)


def decode_member(
    extension: str, data: bytes | memoryview, *, first_decoder: int = 0, labels: bool = False
) -> Any:
    """Decode one member of a sample by its extension.

    Args:
        extension: The name after the key, without the dot: "jpg", "cls", or of several parts,
            "mask.png".
        data: The member's bytes.
        first_decoder: See `decode_image`.
        labels: It is a mask, whatever its name; see `decode_labels`.

    Returns:
        An array for images, int for cls, dict or list (or scalar) for json, str for txt, and the
        bytes themselves for everything else.

    Raises:
        BadSampleError: The bytes do not fit the extension.
    """
    last = extension.lower().rpartition(".")[2]
    if last in IMAGE_EXTENSIONS:
        if labels or is_mask_name(extension):
            return decode_labels(data)
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
            f"Member .{extension} does not hold what its extension says: {one_line(error)}. "
            "Correct the file, or leave it out when packing."
        ) from None
    return bytes(data)


def _decode_simplejpeg(
    data: bytes | memoryview, header: ImageHeader, shrink: int
) -> NDArray[np.uint8] | None:
    if header.kind != "jpeg" or header.pillow_only:
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
    if header.pillow_only:
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
            f"A damaged JPEG ({one_line(error)}): some of its pixels are missing. Replace the "
            "file, or leave it out when packing."
        ) from None
