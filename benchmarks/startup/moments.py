"""A training script that notes when its first line runs and when its last one has: by run.py."""

from __future__ import annotations

import time

FIRST_S = time.time()

import os  # noqa: E402 - the first line comes before whatever a script imports
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (values,) in DataLoader(TensorDataset(torch.randn(256, 16)), batch_size=4):
    optimizer.zero_grad()
    model(values).square().mean().backward()
    optimizer.step()
rank = os.environ.get("RANK", "0")
Path(f"moments-{rank}").write_text(f"{FIRST_S} {time.time()}")
