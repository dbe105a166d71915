"""In the place of the example's module of this name: a network that waits, as for a device."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import torch

DEVICE_RATE = 225.0
"""Samples a second, forward, backward and optimizer step together."""
SHAPES: dict[str, dict[str, Any]] = {"base": {}}


class Device(torch.nn.Module):
    """Takes batches at a rate of its own, and has something to train."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1000))

    def forward(self, images: torch.Tensor) -> SimpleNamespace:
        """Return logits once the device is through with the batch."""
        time.sleep(len(images) / DEVICE_RATE)
        return SimpleNamespace(logits=images[:, 0, 0, :1] * self.scale)


def network(_name: str | None, device: torch.device) -> torch.nn.Module:
    """Return the network."""
    # A device has threads of its own. Of more than one here, each would wait for a core that
    # workers keep busy; and Ray Train gives its workers one anyway.
    torch.set_num_threads(1)
    return Device().to(device)
