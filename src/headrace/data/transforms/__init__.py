"""Decoding, crops, flips and colour for images and masks: uint8 in, uint8 out.

Crops and flips keep other types of pixels and labels, too.

Every random transform draws only from Python's global `random`. The loader seeds it for each
sample, so the same sample of the same epoch looks the same whichever worker makes it. Callables of
torchvision, albumentations or kornia work as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.lazy import lazy_importer

if TYPE_CHECKING:
    from headrace.data.transforms.augmentation import (
        CenterCrop,
        ColorJitter,
        JointScaleCropFlip,
        RandomHorizontalFlip,
        RandomResizedCrop,
    )
    from headrace.data.transforms.compose import Compose, OnMembers
    from headrace.data.transforms.decode import decode_image, decode_member
    from headrace.data.transforms.normalize import Normalize
    from headrace.data.transforms.resize import Recode

__all__ = [
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

_MODULES = {
    "augmentation": (
        "CenterCrop",
        "ColorJitter",
        "JointScaleCropFlip",
        "RandomHorizontalFlip",
        "RandomResizedCrop",
    ),
    "compose": ("Compose", "OnMembers"),
    "decode": ("decode_image", "decode_member"),
    "normalize": ("Normalize",),
    "resize": ("Recode",),
}

# Only at a name's first use: importing OpenCV takes 100 ms.
__getattr__ = lazy_importer(
    __name__, {name: f"{__name__}.{home}" for home, names in _MODULES.items() for name in names}
)
