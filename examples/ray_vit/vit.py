"""The network of the example."""

from __future__ import annotations

from typing import Any

import torch
from transformers import ViTConfig, ViTForImageClassification

SHAPES: dict[str, dict[str, Any]] = {
    # ViT-B/16, as timm's VisionTransformer is by default, and ViT-Ti/16.
    "base": {},
    "tiny": {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
}


def network(name: str | None, device: torch.device) -> torch.nn.Module:
    """Return a new network for 224x224 images of 1,000 classes, on a device.

    Args:
        name: Of SHAPES; None: base, or tiny where there is no accelerator.
        device: Where it goes.
    """
    shape = ViTConfig(**SHAPES[name or ("tiny" if device.type == "cpu" else "base")])
    shape.num_labels = 1000
    model: torch.nn.Module = ViTForImageClassification(shape)
    return model.to(device)
