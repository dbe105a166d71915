"""What all these scripts let one choose, and the training that they share."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader


def options(**defaults: Any) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--effort", type=float, default=1.0, help="of the slow part, 0 to 1")
    parser.set_defaults(**defaults)
    return parser.parse_args()


def loader_for(dataset: Any, chosen: argparse.Namespace, **more: Any) -> DataLoader[Any]:
    """Return torch's loader with what was chosen."""
    ahead = {"prefetch_factor": chosen.prefetch} if chosen.workers else {}
    return DataLoader(
        dataset, batch_size=chosen.batch_size, num_workers=chosen.workers, **ahead, **more
    )


def train(loader: DataLoader[Any], chosen: argparse.Namespace) -> None:
    """Train; the accelerator is emulated by waiting for it."""
    torch.set_num_threads(1)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(chosen.epochs):
        for x, y in loader:
            time.sleep(chosen.step_ms / 1000)
            logits = model(x.flatten(1)[:, :64].float())
            nn.functional.cross_entropy(logits, y).backward()
            optimizer.step()
            optimizer.zero_grad()
