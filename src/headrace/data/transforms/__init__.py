"""Decode, crops, flips and colour for images and masks: uint8 in, uint8 out.

Every random transform draws from Python's global `random` alone. The loader seeds it for each
sample, so the same sample of the same epoch looks the same whichever worker makes it. Anything
callable from torchvision, albumentations or kornia does as well in its place.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

_HOME = {
    "CenterCrop": "crop",
    "ColorJitter": "color",
    "Compose": "compose",
    "JointScaleCropFlip": "joint",
    "Normalize": "normalize",
    "OnMembers": "compose",
    "RandomHorizontalFlip": "crop",
    "RandomResizedCrop": "crop",
    "Recode": "recode",
    "decode_image": "decode",
    "decode_member": "decode",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562): OpenCV costs 100 ms."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
