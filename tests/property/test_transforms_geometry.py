"""Crops and resizes of images and masks of any size."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.transforms.augmentation import (
    CenterCrop,
    ColorJitter,
    JointScaleCropFlip,
    RandomHorizontalFlip,
    RandomResizedCrop,
)
from headrace.data.transforms.resize import Recode, resize_image, resize_mask, shrink_image

SIDES = st.integers(1, 70)
SIZES = st.tuples(SIDES, SIDES)


def noise(size: tuple[int, int], channels: int = 3) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 200, (*size, channels)).astype(np.uint8)


@given(source=SIZES, target=SIZES, channels=st.sampled_from([1, 3]))
def test_resizing_gives_the_size_asked_for_and_no_new_extremes(source, target, channels):
    image = noise(source, channels)
    result = resize_image(image, *target)
    assert result.shape == (*target, channels)
    assert result.dtype == np.uint8
    assert image.min() <= result.min() <= result.max() <= image.max()


@given(source=SIZES, target=SIZES)
def test_a_resized_mask_takes_the_label_under_each_pixels_centre(source, target):
    mask = noise(source, 1)
    result = resize_mask(mask, *target)
    row, column = target[0] // 2, target[1] // 3
    source_row = (2 * row + 1) * source[0] // (2 * target[0])
    source_column = (2 * column + 1) * source[1] // (2 * target[1])
    assert result.shape == (*target, 1)
    # Exactly between two pixels, rounding may choose either.
    near = mask[
        max(0, source_row - 1) : source_row + 1, max(0, source_column - 1) : source_column + 1
    ]
    assert result[row, column] in near
    assert resize_mask(mask[:, :, 0], *target).shape == target


@given(source=SIZES, target=SIZES, seed=st.integers(0, 2**32))
def test_any_crop_of_any_image_has_its_size_and_lies_inside(source, target, seed):
    random.seed(seed)
    crop = RandomResizedCrop(target)
    window = crop.draw(*source)
    assert 0 <= window.top <= window.top + window.height <= source[0]
    assert 0 <= window.left <= window.left + window.width <= source[1]
    assert min(window.height, window.width) >= 1
    assert crop(noise(source)).shape == (*target, 3)
    assert CenterCrop(target)(noise(source)).shape == (*target, 3)


@given(source=SIZES, target=SIZES, factor=st.floats(0.1, 4), seed=st.integers(0, 2**32))
def test_image_and_mask_stay_on_each_other(source, target, factor, seed):
    # A label for each half: away from the edge between them, the image is nearer to its label.
    random.seed(seed)
    mask = np.full(source, 7, np.uint8)
    mask[:, source[1] // 2 :] = 9
    image = np.repeat(mask[:, :, np.newaxis] * np.uint8(20), 3, axis=2)
    transform = JointScaleCropFlip(target, scale=(factor, factor), fill=0)
    changed, labels = transform(image, mask)
    assert changed.shape == (*target, 3)
    assert labels.shape == target
    assert set(np.unique(labels)) <= {7, 9, 255}
    assert np.any(labels != 255)
    np.testing.assert_array_equal(changed[labels == 255], 0)
    inner = np.zeros(target, bool)  # columns whose neighbours have the same label
    inner[:, 1:-1] = (labels[:, 1:-1] == labels[:, 2:]) & (labels[:, 1:-1] == labels[:, :-2])
    inner &= labels != 255
    np.testing.assert_array_equal(changed[inner][:, 0] > 8 * 20, labels[inner] == 9)


NUMBERS = st.sampled_from(["int8", "uint16", "int16", "int32", "int64", "float16", "float32", "f8"])


@given(source=SIZES, target=SIZES, kind=NUMBERS, seed=st.integers(0, 2**32))
def test_labels_of_any_type_stay_the_numbers_that_they_are(source, target, kind, seed):
    places = np.arange(source[0] * source[1]).reshape(source) % 120
    shift = {"int8": 0, "uint16": 300}.get(kind, -300)
    transform = JointScaleCropFlip(target, ignore_index=127)
    random.seed(seed)
    _, wanted = transform(noise(source), places.astype(np.uint8))
    random.seed(seed)
    _, labels = transform(noise(source), (places + shift).astype(kind))
    assert labels.dtype == np.dtype(kind)
    np.testing.assert_array_equal(labels, np.where(wanted == 127, 127, wanted + float(shift)))


@given(source=SIZES, target=SIZES, kind=NUMBERS, channels=st.sampled_from([(), (1,), (3,)]))
def test_pixels_of_any_type_are_mirrored_and_floats_resized(source, target, kind, channels):
    image = (np.random.default_rng(2).random((*source, *channels)) * 100).astype(kind)
    mirrored = RandomHorizontalFlip(1.0)(image)
    assert mirrored.dtype == image.dtype
    np.testing.assert_array_equal(mirrored, image[:, ::-1])
    if kind in {"float32", "f8", "uint16", "int16"}:
        cut = RandomResizedCrop(target)(image)
        assert (cut.dtype, cut.shape) == (image.dtype, (*target, *channels))
        assert image.min() - 1e-3 <= cut.min() <= cut.max() <= image.max() + 1e-3


@given(source=SIZES, seed=st.integers(0, 2**32))
def test_gray_is_changed_as_the_same_gray_in_three_channels(source, seed):
    gray, jitter = noise(source, 1), ColorJitter(0.4, 0.4, 0.4, 0.1)
    random.seed(seed)
    coloured = jitter(np.repeat(gray, 3, axis=2))
    for image in (gray, gray[:, :, 0]):
        random.seed(seed)
        changed = jitter(image)
        assert changed.shape == image.shape
        np.testing.assert_array_equal(changed.reshape(source), coloured[:, :, 0])


@given(seed=st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_pixels(seed):
    image, mask = noise((40, 50)), noise((40, 50), 1)
    transform = JointScaleCropFlip((24, 32))
    random.seed(seed)
    first = transform(image, mask)
    random.seed(seed)
    second = transform(image, mask)
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])


@given(source=SIZES, short=SIDES)
def test_shrinking_keeps_the_mean(source, short):
    image = noise(source)
    factor = min(1.0, short / min(source))
    height, width = round(source[0] * factor), round(source[1] * factor)
    shrunk = shrink_image(image, height, width)
    assert shrunk.shape == (height, width, 3)
    assert abs(shrunk.mean() - image.mean()) < 1.0
    assert Recode(short)("txt", b"as it is") == b"as it is"


def uniformity(values: list[float], low: float, high: float) -> float:
    """Kolmogorov and Smirnov's distance from the uniform distribution, times sqrt(n)."""
    sorted_values = (np.sort(values) - low) / (high - low)
    expected = (np.arange(len(values)) + 0.5) / len(values)
    return float(np.abs(sorted_values - expected).max() * np.sqrt(len(values)))


KS_LIMIT = 1.95  # exceeded once in a thousand runs, and the seed is fixed


@pytest.fixture
def windows():
    random.seed(11)
    crop = RandomResizedCrop(224, scale=(0.08, 0.5))
    return [crop.draw(1000, 1000) for _ in range(4000)]


def test_windows_have_uniform_area_and_log_uniform_ratio_as_torchvision_draws_them(windows):
    # On a square and up to half of its area every draw fits, so nothing is drawn again.
    areas = [window.height * window.width / 1e6 for window in windows]
    ratios = [np.log(window.width / window.height) for window in windows]
    assert uniformity(areas, 0.08, 0.5) < KS_LIMIT
    assert uniformity(ratios, np.log(3 / 4), np.log(4 / 3)) < KS_LIMIT
    assert abs(np.corrcoef(areas, ratios)[0, 1]) < 0.05


def test_windows_lie_anywhere_with_equal_chance(windows):
    tops = [window.top / (1000 - window.height) for window in windows]
    lefts = [window.left / (1000 - window.width) for window in windows]
    assert uniformity(tops, 0, 1) < KS_LIMIT
    assert uniformity(lefts, 0, 1) < KS_LIMIT


def test_a_window_that_never_fits_is_the_middle_with_the_nearest_ratio():
    window = RandomResizedCrop(8, scale=(1, 1), ratio=(1, 1)).draw(100, 300)
    assert (window.top, window.left, window.height, window.width) == (0, 100, 100, 100)
    wide = RandomResizedCrop(8, scale=(1, 1), ratio=(0.5, 0.5)).draw(100, 300)
    assert (wide.height, wide.width) == (100, 50)


def test_half_of_all_images_are_mirrored():
    random.seed(5)
    image = noise((2, 3))
    flip = RandomHorizontalFlip()
    mirrored = 0
    for _ in range(2000):
        result = flip(image)
        if not np.array_equal(result, image):
            np.testing.assert_array_equal(result, image[:, ::-1])
            mirrored += 1
    assert 900 < mirrored < 1100
