"""What all these scripts let one choose, and the training that they share."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader


def options(**defaults: Any) -> argparse.Namespace:
    """Read the command line."""
    return parser(**defaults).parse_args()


def parser(**defaults: Any) -> argparse.ArgumentParser:
    """Return what reads the command line."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--prefetch", type=int, default=2)
    arguments.add_argument("--batch-size", type=int, default=16)
    arguments.add_argument("--steps", type=int, default=120)
    arguments.add_argument("--step-ms", type=float, default=20.0)
    arguments.add_argument("--epochs", type=int, default=1)
    arguments.add_argument("--effort", type=float, default=1.0, help="of the slow part, 0 to 1")
    arguments.set_defaults(**defaults)
    return arguments


def loader_for(dataset: Any, chosen: argparse.Namespace, **more: Any) -> DataLoader[Any]:
    """Return torch's loader with what was chosen."""
    ahead = {"prefetch_factor": chosen.prefetch} if chosen.workers else {}
    return DataLoader(
        dataset, batch_size=chosen.batch_size, num_workers=chosen.workers, **ahead, **more
    )


class Network(nn.Module):
    """A layer, on an accelerator that is emulated by waiting for it.

    Args:
        step_ms: How long it is at work on a batch.
    """

    def __init__(self, step_ms: float) -> None:
        super().__init__()
        self.step_ms = step_ms
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        time.sleep(self.step_ms / 1000)
        return self.layer(x.flatten(1)[:, :64].float())


def train(loader: Iterable[Any], chosen: argparse.Namespace) -> None:
    """Train."""
    torch.set_num_threads(1)
    model = Network(chosen.step_ms)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(chosen.epochs):
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
