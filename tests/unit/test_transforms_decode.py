"""Images of every format and mode, decoded by every decoder."""

from __future__ import annotations

import io
import struct
import zlib
from functools import partial

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from headrace.core.errors import BadSampleError, UsageError
from headrace.data.image_files import MAX_PIXELS, read_header
from headrace.data.transforms.decode import decode_image, decode_member
from headrace.data.transforms.resize import Recode

RNG = np.random.default_rng(7)
PHOTO = np.kron(RNG.integers(0, 255, (9, 12, 3)), np.ones((8, 8, 1))).astype(np.uint8)
MASK = RNG.integers(0, 34, (72, 96)).astype(np.uint8)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


JPEG = encoded(Image.fromarray(PHOTO), "JPEG", quality=90)
PROGRESSIVE = encoded(Image.fromarray(PHOTO), "JPEG", quality=90, progressive=True)
PNG = encoded(Image.fromarray(PHOTO), "PNG")


@pytest.mark.parametrize("first_decoder", [0, 1, 2])
@pytest.mark.parametrize(
    "data", [JPEG, PROGRESSIVE, memoryview(JPEG)], ids=["plain", "prog", "view"]
)
def test_jpeg_is_rgb_from_every_decoder(data, first_decoder):
    image = decode_image(data, first_decoder=first_decoder)
    assert image.shape == PHOTO.shape
    assert image.dtype == np.uint8
    difference = np.abs(image.astype(int) - decode_image(data).astype(int))
    assert difference.max() <= 4  # rounding differs between the builds of libjpeg


def test_gray_jpeg_is_rgb():
    data = encoded(Image.fromarray(MASK), "JPEG")
    assert decode_image(data).shape == (72, 96, 3)


@pytest.mark.parametrize("first_decoder", [0, 2])
@pytest.mark.parametrize("mode", ["L", "LA", "1", "RGB", "RGBA", "P"])
def test_png_of_every_mode_is_what_pillow_reads(mode, first_decoder):
    source = Image.fromarray(PHOTO).convert(mode)
    image = decode_image(encoded(source, "PNG"), first_decoder=first_decoder)
    gray = mode in {"L", "LA", "1"}
    expected = np.array(source.convert("L" if gray else "RGB")).reshape(72, 96, -1)
    np.testing.assert_array_equal(image, expected)


def test_mask_png_is_exact_with_one_channel():
    image = decode_image(encoded(Image.fromarray(MASK), "PNG"))
    np.testing.assert_array_equal(image, MASK[:, :, np.newaxis])


@pytest.mark.parametrize("kind", ["WEBP", "BMP"])
def test_other_formats_are_read_by_content(kind):
    data = encoded(Image.fromarray(PHOTO), kind, **({"lossless": True} if kind == "WEBP" else {}))
    np.testing.assert_array_equal(decode_member("jpg", data), PHOTO)


def test_cmyk_jpeg_is_converted_as_pillow_does():
    source = Image.fromarray(PHOTO).convert("CMYK")
    data = encoded(source, "JPEG", quality=95)
    expected = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(decode_image(data), expected)


def test_exif_orientation_is_not_applied():
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter
    for kind in ("JPEG", "PNG"):
        data = encoded(Image.fromarray(PHOTO), kind, exif=exif.tobytes())
        for first_decoder in range(3):
            assert decode_image(data, first_decoder=first_decoder).shape == (72, 96, 3)


@pytest.mark.parametrize("first_decoder", [0, 1, 2])
@pytest.mark.parametrize("whole", [JPEG, PROGRESSIVE, PNG], ids=["jpeg", "progressive", "png"])
@pytest.mark.parametrize("keep", [0, 1, 7, 25, 33, 0.3, 0.7, -12, -2])
def test_a_cut_file_is_an_error_from_every_decoder(whole, keep, first_decoder):
    last = int(len(whole) * keep) if isinstance(keep, float) else keep
    with pytest.raises(BadSampleError):
        decode_image(whole[:last], first_decoder=first_decoder)


@pytest.mark.parametrize("first_decoder", [0, 1, 2])
def test_a_hole_in_the_scan_is_an_error_from_every_decoder(first_decoder):
    middle = len(JPEG) // 2
    holed = JPEG[:middle] + bytes(200) + JPEG[middle + 200 :]
    with pytest.raises(ValueError, match="premature end of data"):
        simplejpeg.decode_jpeg(holed)
    with pytest.raises(BadSampleError, match="pixels are missing"):
        decode_image(holed, first_decoder=first_decoder)


def test_extraneous_bytes_before_the_end_marker_are_read_over():
    odd = JPEG[:-2] + b"abcdefg" + JPEG[-2:]
    with pytest.raises(ValueError, match="extraneous"):
        simplejpeg.decode_jpeg(odd)
    assert np.abs(decode_image(odd).astype(int) - decode_image(JPEG).astype(int)).max() <= 4


def test_sixteen_bit_png_says_what_to_do():
    data = encoded(Image.fromarray(RNG.integers(0, 65535, (8, 8)).astype(np.uint16)), "PNG")
    with pytest.raises(BadSampleError, match=r"16 bits a channel.*Convert it to 8 bits"):
        decode_image(data)


def test_a_bomb_is_refused_from_its_header():
    side = 1 + int(MAX_PIXELS**0.5)
    chunk = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    bomb = PNG[:8] + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    with pytest.raises(BadSampleError, match="above the limit"):
        decode_image(bomb)
    size = JPEG.index(b"\xff\xc0") + 5
    with pytest.raises(BadSampleError, match="65500x65500"):
        decode_image(JPEG[:size] + struct.pack(">HH", 65500, 65500) + JPEG[size + 4 :])


@pytest.mark.parametrize(("width", "height"), [(0, 72), (96, 0), (0, 0)])
@pytest.mark.parametrize("use", [decode_image, read_header, partial(Recode(100), "png")])
def test_a_png_without_pixels_is_bad_and_no_other_error(width, height, use):
    """As where the disk has lost the first block's end: packing goes on without it."""
    with pytest.raises(BadSampleError, match=f"A PNG of {width}x{height} pixels"):
        use(PNG[:16] + struct.pack(">II", width, height) + PNG[24:])


def test_complaints_of_each_decoder_are_named():
    garbage = PNG[:60] + bytes(len(PNG) - 120) + PNG[-60:]
    with pytest.raises(BadSampleError, match=r"96x72 by its header \(OpenCV: .*; Pillow: "):
        decode_image(garbage)


def test_no_image_at_all():
    with pytest.raises(BadSampleError, match="no image"):
        decode_image(b"hello, world")


def test_unknown_decoder_is_wrong_use():
    with pytest.raises(UsageError, match=r"simplejpeg, OpenCV, Pillow"):
        decode_image(JPEG, first_decoder=3)


def test_header_of_a_mask():
    header = read_header(encoded(Image.fromarray(MASK), "PNG"))
    assert (header.kind, header.height, header.width, header.gray) == ("png", 72, 96, True)


def test_members_by_extension():
    assert decode_member("cls", b"12\n") == 12
    assert decode_member("json", b'{"a": [1]}') == {"a": [1]}
    assert decode_member("txt", "für".encode()) == "für"
    assert decode_member("bin", memoryview(b"\0\1")) == b"\0\1"
    assert decode_member("mask.png", PNG).shape == PHOTO.shape
    assert decode_member("JPG", JPEG).shape == PHOTO.shape


@pytest.mark.parametrize(
    ("extension", "data"),
    [("cls", b"cat"), ("json", b"{"), ("json", b"[" * 100_000), ("txt", b"\xff")],
)
def test_members_that_are_not_what_their_extension_says(extension, data):
    with pytest.raises(BadSampleError, match=rf"\.{extension} does not hold"):
        decode_member(extension, data)
