"""Decode, crops, flips and colour for images and masks: uint8 in, uint8 out.

Every random transform draws from Python's global `random` alone. The loader seeds it for each
sample, so the same sample of the same epoch looks the same whichever worker makes it. Anything
callable from torchvision, albumentations or kornia does as well in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.lazy import importer

if TYPE_CHECKING:
    from headrace.data.transforms.color import ColorJitter
    from headrace.data.transforms.compose import Compose, OnMembers
    from headrace.data.transforms.crop import CenterCrop, RandomHorizontalFlip, RandomResizedCrop
    from headrace.data.transforms.decode import decode_image, decode_member
    from headrace.data.transforms.joint import JointScaleCropFlip
    from headrace.data.transforms.normalize import Normalize
    from headrace.data.transforms.recode import Recode

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

_HOMES = {
    "color": ("ColorJitter",),
    "compose": ("Compose", "OnMembers"),
    "crop": ("CenterCrop", "RandomHorizontalFlip", "RandomResizedCrop"),
    "decode": ("decode_image", "decode_member"),
    "joint": ("JointScaleCropFlip",),
    "normalize": ("Normalize",),
    "recode": ("Recode",),
}

# Only when a name is first asked for: OpenCV costs 100 ms.
__getattr__ = importer(
    __name__, {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names}
)
