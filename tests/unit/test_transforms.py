"""The public transforms: resizing, cropping, wrong arguments."""

from __future__ import annotations

import colorsys
import io
import pickle
import random
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image, ImageEnhance

from headrace.core.errors import UsageError
from headrace.data import transforms
from headrace.data.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    JointScaleCropFlip,
    Normalize,
    OnMembers,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Recode,
    decode_image,
)
from headrace.data.transforms.augmentation import turn_hue
from headrace.data.transforms.resize import resize_image


def smooth(height: int, width: int) -> np.ndarray:
    """A picture without hard edges, so that resampling by any good filter agrees."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    planes = [np.sin(9 * x) + y, np.cos(7 * y) * x, np.sin(5 * (x + y))]
    picture = np.stack([127 + 90 * plane / 2 for plane in planes], axis=2)
    return picture.clip(0, 255).astype(np.uint8)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


PHOTO = smooth(375, 500)
MASK = (np.arange(60 * 80).reshape(60, 80) // 97 % 34).astype(np.uint8)


def test_the_public_names_are_these():
    assert sorted(transforms.__all__) == [
        "CenterCrop",
        "ColorJitter",
        "Compose",
        "JointScaleCropFlip",
        "Normalize",
        "OnMembers",
        "RandomHorizontalFlip",
        "RandomResizedCrop",
        "Recode",
        "decode_image",
        "decode_member",
    ]
    for name in transforms.__all__:
        assert getattr(transforms, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'Solarize'"):
        transforms.Solarize  # noqa: B018


def test_neither_torch_nor_opencv_is_imported_before_it_is_needed():
    code = (
        "import sys, headrace.data.transforms as t; assert 'cv2' not in sys.modules;"
        "[getattr(t, name) for name in t.__all__]; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("size", [(224, 224), (94, 125), (40, 64), (375, 500)])
def test_resizing_agrees_with_pillows_antialiased_filter(size):
    expected = np.array(Image.fromarray(PHOTO).resize(size[::-1], Image.Resampling.BILINEAR))
    difference = np.abs(resize_image(PHOTO, *size).astype(int) - expected)
    assert difference.mean() < 1.0
    assert difference.max() <= 6


def test_shrinking_noise_leaves_no_aliasing():
    checkers = (np.indices((512, 512)).sum(0) % 2 * 255).astype(np.uint8)[:, :, np.newaxis]
    assert np.ptp(resize_image(checkers, 64, 64)) <= 1


def test_center_crop_is_resize_then_crop():
    resized = Image.fromarray(PHOTO).resize((341, 256), Image.Resampling.BILINEAR)
    expected = np.array(resized.crop((58, 16, 58 + 224, 16 + 224)))
    difference = np.abs(CenterCrop(224)(PHOTO).astype(int) - expected)
    assert difference.mean() < 1.5
    with pytest.raises(UsageError, match="smaller than the crop"):
        CenterCrop(224, resize=200)


@pytest.mark.parametrize("side", [300, 700, 1200])
def test_scaled_decoding_draws_the_same_window_and_nearly_the_same_pixels(side):
    data = simplejpeg.encode_jpeg(smooth(side, side + side // 3), quality=90)
    quick = RandomResizedCrop(112, exact=False)
    for seed in range(3):
        random.seed(seed)
        separate = RandomResizedCrop(112)(decode_image(data))
        after = random.getstate()
        random.seed(seed)
        together = quick(data)
        assert random.getstate() == after
        assert together.shape == (112, 112, 3)
        assert np.abs(together.astype(int) - separate).mean() < 1.0


@pytest.mark.parametrize("crop", [RandomResizedCrop(112), CenterCrop(112)])
def test_a_crop_of_a_file_is_the_crop_of_its_pixels(crop):
    for seed in range(5):
        data = simplejpeg.encode_jpeg(smooth(300, 400), quality=90)
        random.seed(seed)
        separate = crop(decode_image(data))
        random.seed(seed)
        np.testing.assert_array_equal(crop(data), separate)


def test_bytes_are_taken_by_the_first_to_touch_a_member():
    flip = OnMembers("jpg", RandomHorizontalFlip())
    crop = OnMembers("jpg", RandomResizedCrop(32))
    assert crop.takes_bytes == {"jpg"}
    assert crop.wants_bytes == frozenset()
    assert Compose([flip, crop]).takes_bytes == frozenset()
    assert Compose([OnMembers("png", RandomHorizontalFlip()), crop]).takes_bytes == {"jpg"}
    assert Compose([lambda sample: sample, crop]).takes_bytes == frozenset()
    assert OnMembers("jpg", Compose([])).takes_bytes == frozenset()

    class Own(RandomResizedCrop):
        def __call__(self, image):
            return image[:32, :32]

    assert OnMembers("jpg", Own(32)).takes_bytes == frozenset()


def test_a_transform_that_decodes_must_get_bytes():
    class Length:
        decodes = True

        def __call__(self, data):
            return len(data)

    assert OnMembers("jpg", Length()).wants_bytes == {"jpg"}


def test_members_go_through_one_chain_and_bytes_are_asked_for():
    data = simplejpeg.encode_jpeg(PHOTO, quality=90)
    chain = Compose([RandomResizedCrop(32), RandomHorizontalFlip()])
    transform = Compose([OnMembers("jpg", chain)])
    assert transform.takes_bytes == {"jpg"}
    sample = pickle.loads(pickle.dumps(transform))({"jpg": data, "cls": 3, "__key__": "a"})
    assert sample["jpg"].shape == (32, 32, 3)
    assert (sample["cls"], sample["__key__"]) == (3, "a")
    assert OnMembers("jpg", RandomHorizontalFlip()).takes_bytes == frozenset()


def test_image_and_mask_go_together():
    image = np.repeat(MASK[:, :, np.newaxis], 3, axis=2)
    transform = OnMembers(("jpg", "mask.png"), JointScaleCropFlip((32, 48), scale=(1, 1)))
    for seed in range(8):
        random.seed(seed)
        sample = transform({"jpg": image, "mask.png": MASK})
        np.testing.assert_array_equal(sample["jpg"][:, :, 0], sample["mask.png"])


def test_a_missing_member_is_named():
    with pytest.raises(UsageError, match=r"no member 'jpg'; it has 'png', '__key__'"):
        OnMembers("jpg", RandomHorizontalFlip())({"png": MASK, "__key__": "a"})


def test_a_pair_that_is_none_is_refused():
    joint = JointScaleCropFlip(32)
    with pytest.raises(UsageError, match=r"500x375 and its mask 80x60"):
        joint(PHOTO, MASK)
    with pytest.raises(UsageError, match="3 channels"):
        joint(PHOTO, PHOTO)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RandomResizedCrop(0),
        lambda: RandomResizedCrop(8, scale=(0, 1)),
        lambda: RandomResizedCrop(8, ratio=(2, 1)),
        lambda: JointScaleCropFlip(8, scale=(2, 1)),
        lambda: ColorJitter(hue=0.6),
        lambda: ColorJitter(brightness=-1),
        lambda: Recode(0),
        lambda: Recode(8, quality=101),
        lambda: Normalize(std=(1, 1, 0)),
        lambda: Normalize(dtype="int8"),
        *(partial(RandomResizedCrop, size) for size in (2.5, "8", (8,), (8, 8, 8), (8, 0), None)),
    ],
)
def test_wrong_arguments_are_refused_at_once(wrong):
    with pytest.raises(UsageError):
        wrong()


@pytest.mark.parametrize("size", [8, np.int64(8), (8, 8), [8, 8], (np.int32(8), 8)])
def test_a_size_is_one_whole_number_or_two(size):
    assert RandomResizedCrop(size)(PHOTO).shape == (8, 8, 3)
    assert CenterCrop(size)(PHOTO).shape == (8, 8, 3)


GRAY = np.zeros((*MASK.shape, 1), np.uint8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: ColorJitter(0.4)(PHOTO / np.float32(255)), "it takes uint8"),
        (lambda: ColorJitter(0.4)(np.zeros((8, 8, 4), np.uint8)), "it takes uint8"),
        (lambda: RandomResizedCrop(8)(PHOTO.astype(np.int64)), "int64 cannot be resized"),
        (lambda: RandomResizedCrop(8)(torch.zeros(3, 9, 9)), "got a Tensor"),
        (lambda: RandomHorizontalFlip()(Image.fromarray(PHOTO)), "got a Image"),
        (lambda: CenterCrop(8)(None), "got a NoneType"),
        (lambda: CenterCrop(8)(np.zeros((0, 8, 3), np.uint8)), "shape"),
        (lambda: JointScaleCropFlip(8, ignore_index=-100)(GRAY, MASK), "ignore_index=-100"),
        (lambda: JointScaleCropFlip(8)(GRAY, MASK > 3), "holds 0 to 1"),
        (lambda: JointScaleCropFlip(8, fill=300)(GRAY, MASK), "fill=300"),
    ],
)
def test_what_a_transform_would_turn_into_other_numbers_is_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        wrong()


@pytest.mark.parametrize(
    ("strength", "enhancer"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ],
)
def test_colour_jitter_is_what_pillow_does_with_the_same_factor(strength, enhancer, monkeypatch):
    expected = enhancer(Image.fromarray(PHOTO)).enhance(1.3)
    # The one draw that this strength makes: the end of its range, 1 + 0.3.
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    result = ColorJitter(**{strength: 0.3})(PHOTO)
    assert np.abs(result.astype(int) - np.array(expected)).max() <= 2


def test_colour_jitter_draws_factors_between_its_bounds():
    random.seed(0)
    gray = np.full((4, 4, 3), 100, np.uint8)
    values = [int(ColorJitter(brightness=0.4)(gray)[0, 0, 0]) for _ in range(500)]
    assert 60 <= min(values) < 65
    assert 135 < max(values) <= 140
    assert 96 < np.mean(values) < 104


def test_hue_turns_on_the_circle():
    result = turn_hue(np.full((1, 1, 3), (200, 60, 40), np.uint8), 0.25)[0, 0]
    hue, *_ = colorsys.rgb_to_hsv(*(result / 255))
    start, *_ = colorsys.rgb_to_hsv(200, 60, 40)
    assert abs(hue - start - 0.25) < 0.01


def test_normalize_on_tensors_and_members():
    batch = torch.randint(0, 256, (2, 5, 7, 3), dtype=torch.uint8)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = ((batch / 255 - mean) / std).permute(0, 3, 1, 2)
    normalize = pickle.loads(pickle.dumps(Normalize()))
    torch.testing.assert_close(normalize(batch), expected, atol=1e-5, rtol=1e-5)
    assert normalize(batch).is_contiguous(memory_format=torch.channels_last)
    result = Normalize("jpg", dtype="bfloat16")({"jpg": batch, "cls": 1})
    assert result["jpg"].dtype == torch.bfloat16
    assert result["cls"] == 1
    with pytest.raises(UsageError, match=r"shape \(2, 3, 5, 7\)"):
        normalize(batch.permute(0, 3, 1, 2))


def test_recode_shrinks_jpegs_and_keeps_small_ones():
    data = encoded(Image.fromarray(PHOTO), "JPEG", quality=95)
    small = Recode(100, quality=90)("jpg", data)
    height, width, _, subsampling = simplejpeg.decode_jpeg_header(small)
    assert (height, width, subsampling) == (100, 133, "420")
    expected = np.array(Image.fromarray(PHOTO).resize((133, 100), Image.Resampling.BOX))
    assert np.abs(decode_image(small).astype(int) - expected).mean() < 2
    assert Recode(100)("jpg", data) == Recode(100)("jpg", data)
    assert Recode(375)("jpg", data) == data


def test_recode_keeps_masks_exact_and_on_their_image():
    mask = Image.fromarray(MASK)
    small = decode_image(Recode(30)("mask.png", encoded(mask, "PNG")))
    assert small.shape == (30, 40, 1)
    assert set(np.unique(small)) <= set(np.unique(MASK))
    np.testing.assert_array_equal(small[:, :, 0], MASK[1::2, 1::2])


@pytest.mark.parametrize("short", [30, 500])
def test_recode_turns_palette_masks_into_labels(short):
    palette = Image.fromarray(MASK)
    palette.putpalette([channel * 7 % 256 for channel in range(768)])
    labels = decode_image(Recode(short)("mask.png", encoded(palette, "PNG")))
    pictured = decode_image(Recode(short)("png", encoded(palette, "PNG")))
    assert pictured.shape[2] == 3  # no mask: a picture keeps its colours
    assert labels.shape[2] == 1
    assert set(np.unique(labels)) <= set(np.unique(MASK))


def test_recode_averages_coloured_pngs():
    small = decode_image(Recode(100)("png", encoded(Image.fromarray(PHOTO), "PNG")))
    expected = np.array(Image.fromarray(PHOTO).resize((133, 100), Image.Resampling.BOX))
    assert np.abs(small.astype(int) - expected).max() <= 1
