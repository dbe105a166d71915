"""Upper rows of a sound file, decoded alone, are the rows of the whole image."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import simplejpeg
from hypothesis import assume, example, given
from hypothesis import strategies as st
from PIL import Image

from headrace.core.errors import BadSampleError
from headrace.data.transforms.augmentation import CenterCrop
from headrace.data.transforms.decode import decode_image
from headrace.data.transforms.resize import decode_rows, read_frame


def upper_rows(data: bytes, rows: int) -> np.ndarray | None:
    """Decode at least so many rows, or None where all of the file has to be."""
    frame = read_frame(data)
    return None if frame is None else decode_rows(data, frame, rows)


SAMPLINGS = ("444", "422", "420", "440", "411", "Gray")


def textured(height: int, width: int, seed: int) -> np.ndarray:
    """Return uint8[height, width, 3], smooth and noisy."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noisy = np.asarray(image, np.int16) + rng.integers(-20, 20, (height, width, 3))
    return noisy.clip(0, 255).astype(np.uint8)


def encoded(image: np.ndarray, sampling: str) -> bytes:
    """Return a baseline JPEG."""
    if sampling == "Gray":
        return simplejpeg.encode_jpeg(image[:, :, :1].copy(), colorspace="GRAY")
    return simplejpeg.encode_jpeg(image, quality=85, colorsubsampling=sampling)


def one_scan_a_colour(image: np.ndarray) -> bytes:
    """Return a JPEG whose three colours follow one another, out of three gray ones."""
    gray = [encoded(np.repeat(image[:, :, [colour]], 3, 2), "Gray") for colour in range(3)]
    frame, scan = gray[0].index(b"\xff\xc0"), gray[0].index(b"\xff\xda")
    tables = gray[0][:frame] + gray[0][frame + 13 : scan]
    height, width, _ = image.shape
    header = struct.pack(">BBHBHHB", 0xFF, 0xC0, 17, 8, height, width, 3)
    header += b"".join(bytes([colour, 0x11, 0]) for colour in (1, 2, 3))
    scans = b"".join(
        struct.pack(">BBHBBBBBB", 0xFF, 0xDA, 8, 1, colour, 0, 0, 63, 0)
        + data[data.index(b"\xff\xda") + 10 : -2]
        for colour, data in enumerate(gray, start=1)
    )
    return tables + header + scans + b"\xff\xd9"


@given(
    height=st.integers(8, 200),
    width=st.integers(8, 90),
    sampling=st.sampled_from(SAMPLINGS),
    rows=st.integers(1, 200),
    seed=st.integers(0, 99),
)
@example(height=200, width=64, sampling="420", rows=14, seed=0)
@example(height=200, width=64, sampling="420", rows=16, seed=0)
def test_rows_are_those_of_the_whole(height: int, width: int, sampling: str, rows: int, seed: int):
    rows = min(rows, height)
    data = encoded(textured(height, width, seed), sampling)
    upper = upper_rows(data, rows)
    if upper is None:  # too few would be left
        assert rows + 2 > height - read_frame(data).unit_rows - height % read_frame(data).unit_rows
        return
    np.testing.assert_array_equal(upper[:rows], decode_image(data)[:rows])


@given(rows=st.integers(1, 300), interval=st.integers(1, 3))
def test_files_with_restart_markers_are_decoded_whole(rows: int, interval: int):
    buffer = io.BytesIO()
    Image.fromarray(textured(320, 96, 3)).save(buffer, "JPEG", restart_marker_rows=interval)
    assert decode_image(buffer.getvalue()).shape == (320, 96, 3)
    assert upper_rows(buffer.getvalue(), rows) is None


def test_progressive_files_are_decoded_whole():
    buffer = io.BytesIO()
    Image.fromarray(textured(200, 96, 3)).save(buffer, "JPEG", progressive=True)
    assert read_frame(buffer.getvalue()) is None


def test_a_file_of_several_scans_is_decoded_whole():
    data = one_scan_a_colour(textured(64, 64, 3))
    assert decode_image(data).shape == (64, 64, 3)
    assert upper_rows(data, 10) is None


@given(cut=st.integers(0, 4000), rows=st.integers(1, 60))
def test_a_file_that_is_cut_short_is_never_taken(cut: int, rows: int):
    data = encoded(textured(200, 90, 5), "420")
    assume(cut < len(data) - 2)
    assert upper_rows(data[:cut], rows) is None


def test_a_marker_in_the_rows_is_damage():
    data = bytearray(encoded(textured(200, 90, 5), "420"))
    begin = data.index(b"\xff\xda") + 14
    data[begin + 200 : begin + 202] = b"\xff\xd9"
    assert upper_rows(bytes(data), 150) is None
    with pytest.raises(BadSampleError, match="damaged"):
        CenterCrop(90)(bytes(data))
