"""EXIF orientation, which files keep; palettes: labels in masks, colours in images."""

from __future__ import annotations

import io
import math
import struct
import tarfile
import zlib
from functools import partial

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from headrace.core.errors import BadSampleError, UsageError
from headrace.data import image_files
from headrace.data.image_files import (
    ImageSides,
    check_pair_orientation,
    check_pair_sides,
    is_mask_name,
    masks_among,
    read_header,
    read_orientation,
    with_orientation,
)
from headrace.data.shards.in_place_index import index_in_place
from headrace.data.transforms.decode import decode_image, decode_labels, decode_member
from headrace.data.transforms.resize import Recode, resize_mask
from headrace.transforms import JointScaleCropFlip

RNG = np.random.default_rng(0)
LEFT_BRIGHT = np.zeros((40, 60), np.uint8)
LEFT_BRIGHT[:, :30] = 200


def picture(
    kind: str, mode: str = "RGB", orientation: int | None = None, **options: object
) -> bytes:
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
        exif[0x010F] = "a camera"
        options["exif"] = exif.tobytes()
    sink = io.BytesIO()
    Image.fromarray(LEFT_BRIGHT).convert(mode).save(sink, kind, **options)
    return sink.getvalue()


FILES = [
    ("jpg", "JPEG", "RGB"), ("jpg", "JPEG", "L"), ("jpg", "JPEG", "CMYK"), ("png", "PNG", "RGB"),
    ("png", "PNG", "L"), ("png", "PNG", "P"), ("webp", "WEBP", "RGB"), ("jpg", "PNG", "RGB"),
    ("mask.png", "PNG", "L"), ("mask.png", "PNG", "P"),
]  # fmt: skip


@pytest.mark.parametrize("orientation", [None, 1, 3, 6, 8])
@pytest.mark.parametrize(("extension", "kind", "mode"), FILES)
def test_a_shrunk_file_keeps_its_orientation_as_the_others_do(extension, kind, mode, orientation):
    data = picture(kind, mode, orientation)
    assert read_orientation(data) == (orientation or 1)
    shrunk = Recode(resize_short=20)(extension, data)
    assert Recode(resize_short=40)("jpg", data) == data
    assert read_orientation(shrunk) == (orientation or 1)
    pixels = decode_member(extension, shrunk)
    assert pixels.shape[:2] == (20, 30)  # as stored, without the orientation
    assert pixels[:, :13].min() > pixels[:, 17:].max() + 100 or "P" in mode
    with Image.open(io.BytesIO(data)) as before, Image.open(io.BytesIO(shrunk)) as after:
        whole = ImageOps.exif_transpose(before.convert("L")).resize((30, 30))
        small = ImageOps.exif_transpose(after.convert("L")).resize((30, 30))
    assert np.abs(np.asarray(whole, int) - np.asarray(small, int)).mean() < 30


def test_nothing_is_added_where_there_is_no_orientation():
    for kind in ("JPEG", "PNG"):
        shrunk = Recode(resize_short=20)(kind.lower().replace("e", ""), picture(kind))
        assert b"Exif" not in shrunk
        assert b"eXIf" not in shrunk
        assert with_orientation(shrunk, 1) == shrunk


def test_a_tiff_is_turned_by_every_decoder_and_stays_so():
    data = picture("TIFF", tiffinfo={0x0112: 6})
    header = read_header(data)
    assert (header.height, header.width, read_orientation(data)) == (60, 40, 1)
    for decoder in (1, 2):
        assert decode_image(data, first_decoder=decoder).shape == (60, 40, 3)
    shrunk = decode_member("tif", Recode(resize_short=20)("tif", data))
    assert shrunk.shape == (30, 20, 3)
    assert shrunk[:13].min() > shrunk[17:].max() + 100


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("value", [0, 1, 3, 6, 8, 9, 65535])
def test_the_orientation_is_the_one_that_pillow_finds(kind, value):
    xmp = f'<x tiff:Orientation="{value}"/>'.encode()
    files = [picture(kind, orientation=value), with_exif(kind, b"Exif\0\0MM\0*\0\0\0\x08\0\0")]
    files += [picture(kind, xmp=xmp)] if kind != "PNG" else []
    for data in files:
        with Image.open(io.BytesIO(data)) as image:
            found = image.getexif().get(0x0112, 1)
        assert read_orientation(data) == (found if 1 <= found <= 8 else 1)


def with_exif(kind: str, exif: bytes) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(LEFT_BRIGHT).save(sink, kind, exif=exif)
    return sink.getvalue()


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b"\x89PNG"]
)
def test_what_is_cut_short_has_no_orientation(data):
    assert read_orientation(data) == 1


@given(
    st.sampled_from([picture("JPEG", "RGB", 6), picture("PNG", "L", 8), picture("WEBP", "RGB", 3)]),
    st.lists(st.tuples(st.integers(2, 400), st.integers(0, 255)), max_size=4),
    st.integers(0, 600),
)
def test_damaged_metadata_are_no_error(data, changes, length):
    damaged = bytearray(data[:length] if length < 400 else data)
    for place, value in changes:
        if place < len(damaged):
            damaged[place] = value
    assert read_orientation(bytes(damaged)) in range(1, 9)


def mask(height: int, width: int, orientation: int | None = None) -> bytes:
    sink = io.BytesIO()
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    Image.new("L", (width, height), 7).save(sink, "PNG", exif=exif.tobytes())
    return sink.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_a_pair_that_differs_by_its_orientation_is_refused(kind, orientation):
    with pytest.raises(BadSampleError, match=rf"image's EXIF orientation \({orientation}\)"):
        check_pair_orientation(picture(kind, "RGB", orientation), mask(60, 40))
    with pytest.raises(BadSampleError, match=r"its mask 20x30: the image's EXIF orientation"):
        check_pair_orientation(picture(kind, "RGB", orientation), mask(30, 20))
    with pytest.raises(BadSampleError, match=r"60x40 pixels and its mask 40x60: the mask's EXIF"):
        check_pair_orientation(picture(kind), mask(60, 40, orientation))


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_tiff_that_decoders_turn_away_from_its_mask_is_refused(orientation, compression):
    turned = picture("TIFF", tiffinfo={0x0112: orientation}, compression=compression)
    stored = (picture("JPEG"), mask(40, 60))
    if orientation < 5:
        check_pair_orientation(turned, stored[1])
        check_pair_orientation(stored[0], turned)
        return
    words = rf"EXIF orientation \({orientation}\) exchanges the sides of its 60x40 stored .* turns"
    with pytest.raises(
        BadSampleError, match=rf"is 40x60 pixels and its mask 60x40: .*image's {words}"
    ):
        check_pair_orientation(turned, stored[1])
    with pytest.raises(
        BadSampleError, match=rf"is 60x40 pixels and its mask 40x60: .*mask's {words}"
    ):
        check_pair_orientation(stored[0], turned)
    check_pair_orientation(turned, mask(60, 40))
    check_pair_orientation(turned, turned)
    np.testing.assert_array_equal(decode_labels(turned)[:, :, :1], decode_image(turned)[:, :, :1])


@pytest.mark.parametrize(
    ("image", "label"),
    [
        (picture("JPEG", "RGB", 6), mask(40, 60)),  # the mask is of the stored pixels
        (picture("JPEG", "RGB", 3), mask(40, 60)),
        (picture("JPEG", "RGB", 3), mask(60, 40)),  # differs, but not by the orientation
        (picture("JPEG"), mask(60, 40)),
        (picture("JPEG", "RGB", 6), mask(20, 30)),
        (picture("JPEG", "RGB", 6), b"no image"),
    ],
)
def test_other_pairs_are_let_through(image, label):
    check_pair_orientation(image, label)


@pytest.mark.parametrize("turned_side", ["image", "mask"])
@pytest.mark.parametrize(("width", "height"), [(60, 59), (59, 60), (2, 1), (1, 2), (500, 499)])
@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_sides_that_differ_by_one_pixel_are_exchanged_too(turned_side, width, height, orientation):
    of_image = of_mask = None
    if turned_side == "image":
        of_image = orientation
    else:
        of_mask = orientation
    image = mask(height, width, of_image)
    with pytest.raises(BadSampleError, match=rf"{turned_side}'s EXIF orientation"):
        check_pair_orientation(image, mask(width, height, of_mask))
    check_pair_orientation(image, mask(height, width, of_mask))
    for side in (width, height):  # a square may be either
        check_pair_orientation(image, mask(side, side, of_mask))


SIDES = st.integers(1, 700)
ROUNDED = st.sampled_from([round, math.floor, math.ceil])


@given(SIDES, st.integers(-3, 3), st.integers(1, 9), ROUNDED, st.integers(1, 8), st.booleans())
def test_masks_of_the_stored_pixels_are_let_through_and_of_turned_ones_refused(
    width, taller, factor, rounded, orientation, is_tiff
):
    """At sizes near a square, where stored and turned pixels differ least."""
    height = max(1, width + taller)
    image = ImageSides(width, height, orientation, is_tiff)
    across, down = (max(1, rounded(side / factor)) for side in (width, height))
    check_pair_sides(image, ImageSides(across, down, 1, False))
    check_pair_sides(ImageSides(width, height, 1, False), ImageSides(down, across, 1, False))
    turned = ImageSides(down, across, 1, False)
    if across != down and orientation in {5, 6, 7, 8}:
        with pytest.raises(BadSampleError, match="image's EXIF orientation"):
            check_pair_sides(image, turned)
    else:
        check_pair_sides(image, turned)


def test_a_transform_that_gets_such_a_pair_names_the_orientation():
    image, label = np.zeros((40, 60, 3), np.uint8), np.zeros((60, 40, 1), np.uint8)
    with pytest.raises(UsageError, match=r"60x40 and its mask 40x60.*EXIF orientation"):
        JointScaleCropFlip(8)(image, label)
    with pytest.raises(UsageError) as caught:
        JointScaleCropFlip(8)(image, label[:20])
    assert "orientation" not in str(caught.value)


LABELS = RNG.integers(0, 21, (40, 60)).astype(np.uint8)


def palette_mask(kind: str, labels: np.ndarray = LABELS, **options: object) -> bytes:
    image = Image.frombytes("P", labels.shape[::-1], labels.tobytes())
    image.putpalette(RNG.integers(0, 255, 768, np.uint8).tobytes())
    sink = io.BytesIO()
    image.save(sink, kind, **options)
    return sink.getvalue()


PALETTES = {
    "png": palette_mask("PNG"),
    "png of 4 bits": palette_mask("PNG", LABELS % 16, bits=4),
    "png of 2 bits": palette_mask("PNG", LABELS % 4, bits=2),
    "png of 1 bit": palette_mask("PNG", LABELS % 2, bits=1),
    "gif": palette_mask("GIF"),
    "bmp": palette_mask("BMP"),
    "tif": palette_mask("TIFF"),
}
LARGEST = {"png of 4 bits": 16, "png of 2 bits": 4, "png of 1 bit": 2}


@pytest.mark.parametrize("what", PALETTES)
def test_a_palette_mask_is_its_indices_shrunk_or_not(what):
    data, extension = PALETTES[what], what[:3]
    expected = LABELS % LARGEST.get(what, 255)
    np.testing.assert_array_equal(decode_labels(data)[:, :, 0], expected)
    for name in (f"mask.{extension}", extension):
        labels = decode_member(name, data, labels=name == extension)
        np.testing.assert_array_equal(labels[:, :, 0], expected)
    small = decode_labels(Recode(resize_short=20)(f"mask.{extension}", data))
    assert small.shape == (20, 30, 1)
    rows, columns = np.arange(20) * 2 + 1, np.arange(30) * 2 + 1
    neighbours = [expected[np.ix_(rows - a, columns - b)] for a in (0, 1) for b in (0, 1)]
    assert any(np.array_equal(small[:, :, 0], each) for each in neighbours)
    same = decode_labels(Recode(resize_short=100)(f"mask.{extension}", data))
    np.testing.assert_array_equal(same[:, :, 0], expected)
    assert decode_member(extension, data).shape == (40, 60, 3)  # an image's palette is colours


@pytest.mark.parametrize("what", PALETTES)
def test_a_palette_mask_that_is_cut_short_is_bad(what):
    with pytest.raises(BadSampleError):
        decode_labels(PALETTES[what][: len(PALETTES[what]) // 2])


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "PNG"])
def test_a_gray_mask_has_one_channel_in_every_format(kind):
    np.testing.assert_array_equal(decode_labels(picture(kind, "L"))[:, :, 0], LEFT_BRIGHT)
    black_and_white = decode_labels(picture(kind, "1"))
    assert (black_and_white.shape, set(np.unique(black_and_white))) == ((40, 60, 1), {0, 255})


@pytest.mark.parametrize(
    ("members", "masks"),
    [
        (("jpg", "png"), {"png"}),
        (("image.png", "png"), {"png"}),
        (("image.gif", "gif"), {"gif"}),
        (("gif", "tif"), {"gif"}),
        (("png", "webp"), {"png"}),
        (("cls", "jpg", "json", "mask.png"), {"mask.png"}),
        (("left_seg.png", "rgb.png"), {"left_seg.png"}),
        (("jpg", "mask.png", "png"), {"mask.png"}),
        (("cls", "png"), set()),
        (("jpg",), set()),
        (("left.png", "right.png"), set()),
        (("jpeg", "jpg"), set()),
        (("image.jpg", "jpg"), {"jpg"}),
        (("image.png", "tif"), {"tif"}),
        (("jpg", "mask.npy"), set()),
    ],
)
def test_which_member_of_a_sample_is_a_mask(members, masks):
    assert masks_among(members) == masks


def test_names_of_masks():
    names = ["mask.png", "a.mask.png", "x_mask.png", "SEG.PNG", "png", "image.png", "unmasked.png"]
    assert [is_mask_name(name) for name in names] == [True] * 4 + [False] * 3


DEEP = RNG.integers(0, 65535, (4, 6, 3)).astype(np.uint16)


@pytest.mark.parametrize("what", ["tif", "png", "ppm"])
def test_colours_of_16_bits_are_not_cut_to_8(what):
    """Pillow and OpenCV keep the upper eight of a TIFF and a PPM, and say nothing."""
    data = {
        "tif": cv2.imencode(".tif", DEEP)[1].tobytes(),
        "png": cv2.imencode(".png", DEEP)[1].tobytes(),
        "ppm": b"P6\n6 4\n65535\n" + DEEP.astype(">u2").tobytes(),
    }[what]
    for decode in (decode_image, decode_labels, partial(Recode(resize_short=2), what)):
        with pytest.raises(BadSampleError, match="16 bits a channel"):
            decode(data)


@pytest.mark.parametrize("magic", [b"P5", b"P2"])
@pytest.mark.parametrize("maximum", [1, 20, 100, 254, 255])
def test_the_labels_of_a_pgm_are_as_they_are_stored(magic, maximum):
    """Pillow scales values so that the greatest one becomes 255."""
    values = np.arange(maximum + 1, dtype=np.uint8)
    pixels = values.tobytes() if magic == b"P5" else b" ".join(b"%d" % each for each in values)
    data = b"%s\n%d 1\n%d\n%s" % (magic, len(values), maximum, pixels)
    np.testing.assert_array_equal(decode_labels(data)[0, :, 0], values)
    for decoder in (0, 1, 2):  # as an image the greatest value is white
        assert decode_image(data, first_decoder=decoder).max() == 255


def packed_bits(levels: np.ndarray, depth_bits: int) -> list[bytes]:
    """Return rows of levels as files store them, several in a byte, the first in its upper bits."""
    bits = np.unpackbits(levels[:, :, np.newaxis], axis=2)[:, :, 8 - depth_bits :]
    rows = np.packbits(bits.reshape(len(levels), -1), axis=1)
    return [row.tobytes() for row in rows]


def gray_png(levels: np.ndarray, depth_bits: int) -> bytes:
    """Write a PNG without colour; Pillow and OpenCV write none of 2 or 4 bits."""
    height, width = levels.shape
    rows = b"".join(b"\0" + row for row in packed_bits(levels, depth_bits))
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, depth_bits, 0, 0, 0, 0),
        b"IDAT": zlib.compress(rows),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks.items()
    )


def gray_tiff(
    levels: np.ndarray, depth_bits: int, *, white_is_zero: bool = False, deflate: bool = False
) -> bytes:
    """Write a gray TIFF of one strip."""
    height, width = levels.shape
    strip = b"".join(packed_bits(levels, depth_bits))
    strip = zlib.compress(strip) if deflate else strip
    tags = {
        256: width, 257: height, 258: depth_bits, 259: 8 if deflate else 1,
        262: 0 if white_is_zero else 1, 273: 8, 277: 1, 278: height, 279: len(strip),
    }  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    strip += bytes(len(strip) % 2)
    return b"II*\0" + struct.pack("<I", 8 + len(strip)) + strip + directory


GRAY = {
    "png": gray_png,
    "tif": gray_tiff,
    "tif, deflated": partial(gray_tiff, deflate=True),
    "tif, 0 white": partial(gray_tiff, white_is_zero=True),
    "tif, 0 white, deflated": partial(gray_tiff, white_is_zero=True, deflate=True),
}


@pytest.mark.parametrize("what", GRAY)
@pytest.mark.parametrize("depth_bits", [2, 4, 8])
def test_gray_labels_of_few_bits_are_as_they_are_stored_shrunk_or_not(what, depth_bits):
    """Decoders scale levels so that the greatest one becomes 255."""
    extension, greatest = what[:3], 2**depth_bits - 1
    labels = (np.arange(40 * 61) % (greatest + 1)).astype(np.uint8).reshape(40, 61)
    data = GRAY[what](labels, depth_bits)
    np.testing.assert_array_equal(decode_labels(data)[:, :, 0], labels)
    for name in (f"mask.{extension}", extension):
        found = decode_member(name, data, labels=name == extension)
        np.testing.assert_array_equal(found[:, :, 0], labels)
    same = decode_labels(Recode(resize_short=100)(f"mask.{extension}", data))
    np.testing.assert_array_equal(same[:, :, 0], labels)
    small = decode_labels(Recode(resize_short=20)(f"mask.{extension}", data))
    np.testing.assert_array_equal(small, resize_mask(labels[:, :, np.newaxis], 20, 30))
    for decoder in (0, 1, 2):  # as an image its levels are from black to white
        image = decode_image(data, first_decoder=decoder)
        assert (image.min(), image.max()) == (0, 255)


@pytest.mark.parametrize("what", GRAY)
def test_labels_of_one_bit_are_black_and_white(what):
    data = GRAY[what]((LABELS % 2).astype(np.uint8), 1)
    stored = (LABELS % 2).astype(bool) ^ ("0 white" in what)
    np.testing.assert_array_equal(decode_labels(data)[:, :, 0], np.where(stored, 255, 0))


@pytest.mark.parametrize("depth_bits", [2, 4])
def test_a_gray_mask_of_few_bits_that_is_cut_short_is_bad(depth_bits):
    data = gray_png(LABELS % 4, depth_bits)
    with pytest.raises(BadSampleError):
        decode_labels(data[: len(data) // 2])


def test_a_palette_mask_with_the_extension_of_a_jpeg_keeps_its_labels_too():
    data = PALETTES["png"]
    for size in (20, 100):
        labels = decode_member("mask.jpg", Recode(resize_short=size)("mask.jpg", data))
        assert (labels.shape[2], labels.max() <= 20) == (1, True)
    assert decode_member("mask.jpg", picture("JPEG")).shape == (40, 60, 3)


def test_advice_about_a_huge_image_names_no_command_that_refuses_it():
    header = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBB", 13, b"IHDR", 15000, 15000, 8, 0)
    for read in (read_header, partial(Recode(resize_short=8), "png")):
        with pytest.raises(BadSampleError, match="15000x15000 pixels") as caught:
            read(header)
        assert "headrace" not in str(caught.value)


@pytest.mark.parametrize("kind", ["WEBP", "PNG", "JPEG"])
def test_a_large_image_in_a_tar_is_told_too(tmp_path, kind):
    """A WebP has its metadata at the end, beyond the first mebibyte."""
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"lossless": True, "quality": 0} if kind == "WEBP" else {}
    noise, sink = Image.fromarray(RNG.integers(0, 255, (700, 700, 3), np.uint8)), io.BytesIO()
    noise.save(sink, kind, exif=exif.tobytes(), **options)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo(f"x.{kind.lower()}")
        info.size = len(sink.getvalue())
        archive.addfile(info, io.BytesIO(sink.getvalue()))
    assert kind == "JPEG" or info.size > 2**20
    assert index_in_place(str(tmp_path)).manifest.num_oriented == 1


def test_the_orientation_of_an_image_in_a_tar_is_read_once(tmp_path, monkeypatch):
    deep = io.BytesIO()  # 16 bits: it is stored, though no transform takes it
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(LEFT_BRIGHT.astype(np.uint16)).save(deep, "PNG", exif=exif.tobytes())
    images = {
        "turned.jpg": picture("JPEG", orientation=6), "plain.jpg": picture("JPEG"),
        "by-decoders.tif": picture("TIFF", orientation=6), "deep.png": deep.getvalue(),
    }  # fmt: skip
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, data in images.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    read = []
    original = image_files._metadata
    monkeypatch.setattr(
        image_files, "_metadata", lambda data: read.append(bytes(data)) or original(data)
    )
    assert index_in_place(str(tmp_path)).manifest.num_oriented == 2
    assert len(read) == len(set(read)) == 3  # Pillow reads that of the TIFF


COLOURS = RNG.integers(0, 256, (24, 32, 4)).astype(np.uint8)


def with_alpha(kind: str, **options: object) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(COLOURS).save(sink, kind, **options)
    return sink.getvalue()


def gif_with_transparency() -> bytes:
    sink = io.BytesIO()
    indices = Image.fromarray(COLOURS[:, :, :3]).convert("P", palette=Image.Palette.ADAPTIVE)
    indices.save(sink, "GIF", transparency=3)
    return sink.getvalue()


def animated_png(*, default_image: bool) -> bytes:
    sink = io.BytesIO()
    frames = [Image.fromarray(np.roll(COLOURS, 5 * number, axis=0)) for number in range(3)]
    frames[0].save(
        sink, "PNG", save_all=True, append_images=frames[1:], default_image=default_image
    )
    return sink.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        *(with_alpha(kind) for kind in ("TIFF", "PNG", "BMP")), with_alpha("WEBP", lossless=True),
        with_alpha("TIFF", compression="tiff_deflate"), gif_with_transparency(),
        animated_png(default_image=True), animated_png(default_image=False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("decoder", [0, 1, 2])
def test_colours_with_transparency_and_first_pictures_are_those_that_are_stored(data, decoder):
    """OpenCV multiplies the colours of a TIFF by its alpha, and has another first picture."""
    stored = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(decode_image(data, first_decoder=decoder), stored)


@pytest.mark.parametrize("compression", ["tiff_deflate", "tiff_lzw"])
@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_a_damaged_tiff_is_no_image_with_other_pixels(compression, place):
    data = bytearray(with_alpha("TIFF", compression=compression))
    first = data[int(len(data) * place)]
    data[int(len(data) * place)] = first ^ 0xFF
    try:
        stored = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    except OSError:
        with pytest.raises(BadSampleError, match="No decoder accepts this image"):
            decode_image(bytes(data))
    else:  # LZW has no checksum
        np.testing.assert_array_equal(decode_image(bytes(data)), stored)
