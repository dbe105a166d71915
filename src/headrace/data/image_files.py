"""Image files: their extensions, headers, EXIF orientation, and which of a sample's are masks.

Decoded pixels are those that are stored. An EXIF orientation is not applied, as torchvision and
Pillow do not either, so that an image and its mask stay aligned; and no file loses it.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, cast

import simplejpeg

from headrace.core.errors import BadSampleError

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage
    from PIL.ImageFile import ImageFile
    from PIL.TiffImagePlugin import TiffImageFile

IMAGE_EXTENSIONS = frozenset(
    {
        "bmp",
        "gif",
        "jfif",
        "jpe",
        "jpeg",
        "jpg",
        "pgm",
        "png",
        "ppm",
        "tif",
        "tiff",
        "webp",
    }
)
"""Extensions of images, in lower case. The decoders go by content, of any of these formats."""

MAX_PIXELS = 178_956_970
"""An image of more pixels is refused from its header alone. Pillow's own limit: 512 MiB as RGB."""

Kind = Literal["jpeg", "png", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """The fields of an image's header."""

    kind: Kind  # the file format, as far as the decoders distinguish it
    height: int  # in pixels
    width: int
    gray: bool = False  # a PNG without colour, which decodes to one channel
    palette: bool = False  # its pixels are indices into a table of colours
    pillow_only: bool = False  # OpenCV gives other pixels: see `_PILLOWS_FORMATS`
    depth_bits: int = 8  # of one channel


def read_header(data: bytes | memoryview) -> ImageHeader:
    """Read size and kind of an image in about 2 us; BadSampleError: none, 16 bits, or too large."""
    start = bytes(data[:32])
    if start.startswith(b"\xff\xd8"):
        header = _read_jpeg_header(data)
    elif start.startswith(b"\x89PNG\r\n\x1a\n"):
        header = _read_png_header(bytes(data[:_PNG_BEGINNING]))
    else:
        header = _read_other_header(data)
    if header.height * header.width > MAX_PIXELS:
        raise BadSampleError(
            f"The header promises {header.width}x{header.height} pixels, above the limit of "
            f"{MAX_PIXELS} that guards memory. Shrink the file before packing, for example with "
            "ImageMagick's `mogrify -resize`, or leave it out."
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
    is_cmyk = colorspace in {"CMYK", "YCCK"}
    return ImageHeader(kind="jpeg", height=height, width=width, pillow_only=is_cmyk)


_PNG_BEGINNING = 256  # bytes, in which an animated PNG has its chunk acTL
_ANIMATION = b"acTL"


def _read_png_header(start: bytes) -> ImageHeader:
    # PNG specification, 11.2.1: IHDR is the first chunk, its fields at fixed places.
    if len(start) < 26 or start[12:16] != b"IHDR":
        raise BadSampleError("A PNG cut short in its header. Replace the file.")
    width, height, depth_bits, colour_type = struct.unpack(">IIBB", start[16:26])
    if not (width and height):  # other formats' decoders say so
        raise BadSampleError(f"A PNG of {width}x{height} pixels by its header. Replace the file.")
    return ImageHeader(
        kind="png",
        height=height,
        width=width,
        gray=colour_type in {0, 4},  # gray, gray with transparency
        palette=colour_type == 3,
        pillow_only=_ANIMATION in start,  # its picture may be no part of the animation
        depth_bits=depth_bits,
    )


def _read_other_header(data: bytes | memoryview) -> ImageHeader:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images: the caller has its own limit
            with Image.open(io.BytesIO(data)) as image:
                width, height = image.size
                depth_bits = _depth_bits(image)
                kind: Kind = "jpeg" if image.format == "JPEG" else "other"
                palette = image.mode == "P"
                pillow_only = (
                    image.format in _PILLOWS_FORMATS
                    or image.mode == "CMYK"
                    or pnm_maximum(image) != 255
                )
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadSampleError(
            f"{len(data)} bytes are no image that any decoder knows ({one_line(error)}). "
            "Replace the file, or leave it out when packing."
        ) from None
    return ImageHeader(
        kind=kind,
        height=height,
        width=width,
        palette=palette,
        pillow_only=pillow_only,
        depth_bits=depth_bits,
    )


_PILLOWS_FORMATS = frozenset({"GIF", "TIFF"})
"""Formats whose files are read by Pillow alone, as are inks (CMYK), a white below 255 and APNG.

OpenCV multiplies the colours of a TIFF by its alpha and fills what it cannot decompress, and blends
the transparent pixels of a GIF with a background.
"""

_BITS_PER_SAMPLE = 258  # TIFF 6.0, section 8


def _depth_bits(image: PillowImage) -> int:
    """Return the bits of a channel, also of colours of which Pillow keeps the upper eight."""
    if image.mode.startswith(("I", "F")):
        return 16
    if image.format == "TIFF":
        return int(max(cast("TiffImageFile", image).tag_v2.get(_BITS_PER_SAMPLE, (8,))))
    return 16 if pnm_maximum(image) > 255 else 8


def pnm_maximum(image: PillowImage) -> int:
    """Return the value that means white in a PGM or PPM, of others 255: Pillow scales by it."""
    arguments = cast("ImageFile", image).tile[0].args if image.format == "PPM" else ()
    return int(arguments[1]) if isinstance(arguments, tuple) and len(arguments) == 2 else 255


_PHOTOMETRIC = 262  # TIFF 6.0, section 8


def zero_is_white(image: PillowImage) -> bool:
    """Return whether a TIFF stores white as 0: Pillow turns its values over."""
    return image.format == "TIFF" and cast("TiffImageFile", image).tag_v2.get(_PHOTOMETRIC) == 0


_ORIENTATION = 0x0112  # EXIF 2.32, 4.6.4, table 4
_SIDES_EXCHANGED = frozenset({5, 6, 7, 8})  # turned by a quarter, some mirrored too
_EXIF = b"Exif\0\0"
_RIFF_CHUNK = struct.Struct("<4sI")
_PNG_CHUNK = struct.Struct(">I4s")
_PNG_TEXTS = (b"Raw profile type exif", b"Raw profile type APP1", b"XML:com.adobe.xmp")


_SIGNATURES = (
    (b"\xff\xd8\xff", "jpg"), (b"\x89PNG\r\n\x1a\n", "png"), (b"GIF8", "gif"), (b"BM", "bmp"),
    (b"II*\0", "tif"), (b"MM\0*", "tif"),
    (b"P5", "pgm"), (b"P6", "ppm"),
)  # fmt: skip


def extension_by_content(data: bytes) -> str:
    """Return the extension of an image by the bytes that it begins with; "" if it is none."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((extension for begin, extension in _SIGNATURES if data.startswith(begin)), "")


def read_orientation(data: bytes | memoryview) -> int:
    """Return the EXIF orientation of a JPEG, PNG or WebP, 1 to 8; 1 where it has none.

    It is the one that Pillow finds, also in XMP. A TIFF's own is 1 here: every decoder turns the
    pixels by it.
    """
    for exif in _metadata(data):
        orientation = _orientation_in(exif)
        if orientation is not None:
            return orientation
        return _pillows_orientation(data)
    return 1


def _metadata(data: bytes | memoryview) -> Iterator[bytes]:
    """Yield the parts of a file that may hold an orientation: EXIF data first, or XMP."""
    view, start = memoryview(data), bytes(data[:12])
    try:
        if start.startswith(b"\xff\xd8"):
            yield from _jpeg_metadata(view)
        elif start.startswith(b"\x89PNG\r\n\x1a\n"):
            position = 8
            while position < len(view):
                length, kind = _PNG_CHUNK.unpack_from(view, position)
                text = bytes(view[position + 8 : position + 40])
                if kind == b"eXIf":
                    yield _EXIF + bytes(view[position + 8 : position + 8 + length])
                elif kind in {b"tEXt", b"zTXt", b"iTXt"} and text.startswith(_PNG_TEXTS):
                    yield text
                position += 12 + length
        elif start[:4] == b"RIFF" and start[8:] == b"WEBP":
            position = 12
            while position < len(view):
                kind, length = _RIFF_CHUNK.unpack_from(view, position)
                if kind in {b"EXIF", b"XMP "}:
                    content = bytes(view[position + 8 : position + 8 + length])
                    yield content if content.startswith(_EXIF) else _EXIF + content
                position += 8 + length + length % 2
    except (struct.error, IndexError):  # cut short: the decoder says so
        return


def _jpeg_metadata(view: memoryview) -> Iterator[bytes]:
    position = 2
    while view[position] == 0xFF:
        marker = view[position + 1]
        if marker == 0xDA:  # the pixels
            return
        if marker == 0xFF:  # padding
            position += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD9:  # markers without a length
            position += 2
        else:
            end = position + 2 + view[position + 2] * 256 + view[position + 3]
            if marker == 0xE1:
                yield bytes(view[position + 4 : end])
            position = end


def _orientation_in(exif: bytes) -> int | None:
    """Return the orientation in EXIF data of the usual form, or None: others may hold one too."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[6:10])
    if order is None or not exif.startswith(_EXIF):
        return None
    try:
        (first,) = struct.unpack_from(f"{order}I", exif, 10)
        (count,) = struct.unpack_from(f"{order}H", exif, 6 + first)
        for number in range(count):
            entry = struct.unpack_from(f"{order}HHIH", exif, 8 + first + 12 * number)
            if entry[:3] == (_ORIENTATION, 3, 1) and entry[3] in range(1, 9):
                return int(entry[3])
    except struct.error:
        return None
    return None


def _pillows_orientation(data: bytes | memoryview) -> int:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001  (foreign metadata, damaged in any way, turn nothing)
        return 1
    return orientation if orientation in range(1, 9) else 1


def with_orientation(data: bytes, orientation: int) -> bytes:
    """Return a JPEG or PNG that has no metadata yet with this EXIF orientation."""
    if orientation == 1:
        return data
    exif = exif_of(orientation)
    if data.startswith(b"\xff\xd8"):
        place = 2
        if data[2:4] == b"\xff\xe0":  # JFIF's own header comes first
            place += 2 + int.from_bytes(data[4:6], "big")
        segment = b"\xff\xe1" + struct.pack(">H", 2 + len(exif)) + exif
        return data[:place] + segment + data[place:]
    place = 8 + 12 + 13  # after the signature and IHDR
    body = b"eXIf" + exif.removeprefix(_EXIF)
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return data[:place] + chunk + data[place:]


def exif_of(orientation: int) -> bytes:
    """Return EXIF metadata that hold an orientation alone."""
    entry = struct.pack("<HHIHH", _ORIENTATION, 3, 1, orientation, 0)
    return _EXIF + b"II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4)


_TIFF_BEGINNINGS = (b"II*\0", b"MM\0*")


@dataclass(frozen=True, slots=True)
class ImageSides:
    """An image's size as decoders have it, and the EXIF orientation that may exchange its sides."""

    width: int
    height: int
    orientation: int
    is_tiff: bool

    @classmethod
    def read(cls, data: bytes | memoryview) -> ImageSides | None:
        """Return those of an image; None of what is no image."""
        try:
            header = read_header(data)
        except BadSampleError:
            return None
        is_tiff = bytes(data[:4]) in _TIFF_BEGINNINGS
        orientation = _pillows_orientation(data) if is_tiff else read_orientation(data)
        return cls(header.width, header.height, orientation, is_tiff)


def check_pair_orientation(image: bytes | memoryview, mask: bytes | memoryview) -> None:
    """Raise BadSampleError where an image and its mask differ in shape by an EXIF orientation.

    A smaller mask of the same shape is let through, and so is what is no image.
    """
    check_pair_sides(ImageSides.read(image), ImageSides.read(mask))


def check_pair_sides(image: ImageSides | None, mask: ImageSides | None) -> None:
    """Raise as `check_pair_orientation` does; None is no image."""
    if image is None or mask is None or _have_one_shape(image.height, image.width, mask):
        return
    if not _have_one_shape(image.width, image.height, mask):
        return
    for sides, what in ((image, "image"), (mask, "mask")):
        if sides.orientation in _SIDES_EXCHANGED:
            width, height = sides.width, sides.height
            stored = (height, width) if sides.is_tiff else (width, height)
            read = "every decoder turns by it" if sides.is_tiff else "are read as they are stored"
            raise BadSampleError(
                f"The image is {image.width}x{image.height} pixels and its mask {mask.width}x"
                f"{mask.height}: the {what}'s EXIF orientation ({sides.orientation}) exchanges the "
                f"sides of its {stored[0]}x{stored[1]} stored pixels, which {read}. Turn its "
                "pixels once and drop the orientation, as `exiftran -ai` or ImageMagick's "
                "`mogrify -auto-orient` do."
            )


def _have_one_shape(height: int, width: int, other: ImageSides) -> bool:
    """Return whether two sizes are in proportion, to a rounded pixel."""
    # However a smaller size is rounded, its longer side is not the other one: so the sides of
    # 60x59 and 59x60 are exchanged, though both would pass for a square.
    if (height - width) * (other.height - other.width) < 0:
        return False
    return abs(height * other.width - width * other.height) <= height + width


def one_line(error: BaseException) -> str:
    """Return an error's message in one line, the same for the same bytes."""
    # Pillow's messages contain the address of the buffer, which differs from run to run.
    text = re.sub(r"<_io\.BytesIO object at 0x[0-9a-f]+>", "", str(error))
    return " ".join(text.split()) or type(error).__name__


_MASK_NAMES = frozenset(
    {
        "annotation",
        "gt",
        "instance",
        "instances",
        "label",
        "labelids",
        "labels",
        "mask",
        "masks",
        "panoptic",
        "seg",
        "segm",
        "segmentation",
        "semantic",
        "trimap",
    }
)


def is_mask_name(extension: str) -> bool:
    """Return whether a member's extension says that it is a mask, as "mask.png" or "left_seg.png".

    Args:
        extension: The name after the key, without the dot.
    """
    first, dot, last = extension.lower().rpartition(".")
    role = first.replace("_", ".").replace("-", ".").rpartition(".")[2]
    return bool(dot) and last in IMAGE_EXTENSIONS and role in _MASK_NAMES


# Where both have plain names, the first of these is the mask.
_PLAIN_MASKS = ("gif", "png", "tif", "bmp", "pgm", "tiff", "ppm", "webp")


@lru_cache(maxsize=1024)
def masks_among(extensions: tuple[str, ...]) -> frozenset[str]:
    """Return which members of a sample are masks, by the names of all its members.

    Those named so, as "mask.png"; and of two images the one with its format's plain name beside
    one that is named "image.png", say, or beside a JPEG. Packing and indexing name pairs so.
    """
    images = [each for each in extensions if each.lower().rpartition(".")[2] in IMAGE_EXTENSIONS]
    named = frozenset(each for each in images if is_mask_name(each))
    others = [each for each in images if each not in named]
    if named or len(others) != 2:
        return named
    plain = [each for each in others if "." not in each]
    if len(plain) == 1 and any(each.lower().startswith("image.") for each in others):
        return frozenset(plain)
    return frozenset([each for each in _PLAIN_MASKS if each in others][:1])
