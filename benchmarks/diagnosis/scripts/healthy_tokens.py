"""A language model trains on a memory-mapped file of tokens, contexts of it a batch, no loader."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn

TOKENS, CONTEXT, BATCH, STEPS = 2**28, 8192, 64, 400  # 512 MiB; 1 MiB a batch


def batches(path: Path):
    """Yield contexts from all over the file, and what comes of each."""
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    starts = torch.randperm(TOKENS // CONTEXT)[: BATCH * STEPS].reshape(STEPS, BATCH) * CONTEXT
    for batch in starts.tolist():
        rows = np.stack([tokens[start : start + CONTEXT] for start in batch])
        yield torch.from_numpy(rows.astype(np.int32)), torch.from_numpy(rows[:, 0] % 10).long()


def train(path: Path):
    """Train one pass."""
    model = Network(step_ms=30).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in batches(path):
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "tokens.bin")
        np.tile(np.arange(2**16, dtype=np.uint16), TOKENS // 2**16).tofile(data)
        train(data)
