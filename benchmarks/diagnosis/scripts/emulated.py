"""Models whose forward keeps the accelerator busy for a given time.

Without a CUDA device the accelerator is emulated: the rank sleeps for that time, as it would wait
for a device, times EMULATED_STEP_SCALE. With one, the device multiplies matrices instead.
"""

from __future__ import annotations

import os
import time

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_MATRIX, _MATRIX_MS = 4096, 3.0  # what one product takes a recent device, about
_SCALE = float(os.environ.get("EMULATED_STEP_SCALE", "1"))
if DEVICE.type == "cpu":
    # A device does not compute on the host's cores. With threads of its own there the small network
    # would take turns with the loader's workers: up to 80 ms a step on two cores.
    torch.set_num_threads(1)


def keep_busy(step_ms: float, device: torch.device) -> None:
    """Keep the accelerator busy for a given time."""
    if device.type == "cuda":
        matrix = torch.ones(_MATRIX, _MATRIX, device=device)
        for _ in range(max(round(step_ms / _MATRIX_MS), 1)):
            matrix @ matrix
    else:
        time.sleep(step_ms * _SCALE / 1000)


class Accelerated(nn.Module):
    """A model on a device that needs its time.

    Args:
        model: It computes quickly.
        step_ms: How long the device works on a batch.
    """

    def __init__(self, model: nn.Module, step_ms: float) -> None:
        super().__init__()
        self.model, self.step_ms = model, step_ms

    def forward(self, *inputs, **named):
        """Return what the model does."""
        keep_busy(self.step_ms, next(self.model.parameters()).device)
        return self.model(*inputs, **named)


class Network(nn.Module):
    """Two layers over the first few numbers of each sample, on a device that needs its time.

    Args:
        step_ms: How long the device works on a batch.
        features: How many numbers of each sample are looked at.
    """

    def __init__(self, step_ms: float, features: int = 64) -> None:
        super().__init__()
        self.step_ms, self.features = step_ms, features
        self.layers = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        keep_busy(self.step_ms, x.device)
        return self.layers(x.flatten(1)[:, : self.features].float())


class NetworkWithLoss(nn.Module):
    """The same, as transformers' Trainer wants it: the loss comes with the logits.

    Args:
        step_ms: How long the device works on a batch.
    """

    def __init__(self, step_ms: float) -> None:
        super().__init__()
        self.network = Network(step_ms)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss and logits."""
        logits = self.network(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
