"""What a script sets in libraries for all its processes, carried to workers that start fresh."""

from __future__ import annotations

import sys
from typing import Any

_TORCH, _IMAGE, _IMAGE_FILE = "torch", "PIL.Image", "PIL.ImageFile"
_USUAL_DTYPE = "float32"


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
    """Set them as `switches` returned them, back to what is usual too: a forkserver serves many."""
    dtype = found.get(_TORCH, _USUAL_DTYPE)
    if dtype != _USUAL_DTYPE or (_TORCH in found and _TORCH in sys.modules):
        import torch

        torch.set_default_dtype(getattr(torch, dtype))
    for module, name in ((_IMAGE, "MAX_IMAGE_PIXELS"), (_IMAGE_FILE, "LOAD_TRUNCATED_IMAGES")):
        loaded = sys.modules.get(module)  # the recipe has brought it, where it is needed
        if loaded is not None and module in found:
            setattr(loaded, name, found[module])
