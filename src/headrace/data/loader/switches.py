"""What a script sets in libraries for all its processes, carried to workers that start fresh."""

from __future__ import annotations

import sys
from typing import Any

_TORCH, _IMAGE, _IMAGE_FILE = "torch", "PIL.Image", "PIL.ImageFile"


def switches() -> dict[str, Any]:
    """Return how this process has them; those of libraries that it has not imported are absent."""
    found: dict[str, Any] = {}
    if _TORCH in sys.modules:
        found[_TORCH] = str(sys.modules[_TORCH].get_default_dtype()).removeprefix("torch.")
    if _IMAGE in sys.modules:
        found[_IMAGE] = sys.modules[_IMAGE].MAX_IMAGE_PIXELS
    if _IMAGE_FILE in sys.modules:
        found[_IMAGE_FILE] = sys.modules[_IMAGE_FILE].LOAD_TRUNCATED_IMAGES
    return found


def set_switches(found: dict[str, Any]) -> None:
    """Set them as `switches` returned them, where they are not as usual."""
    if found.get(_TORCH, "float32") != "float32":
        import torch

        torch.set_default_dtype(getattr(torch, found[_TORCH]))
    for module, name in ((_IMAGE, "MAX_IMAGE_PIXELS"), (_IMAGE_FILE, "LOAD_TRUNCATED_IMAGES")):
        loaded = sys.modules.get(module)  # the recipe has brought it, where it is needed
        if loaded is not None and module in found:
            setattr(loaded, name, found[module])
