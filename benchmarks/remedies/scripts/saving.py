"""A checkpoint every twenty steps: of all tables, or with no effort of none."""

import tempfile
from pathlib import Path

import torch
from options import loader_for, options, train
from torch.utils.data import TensorDataset

EVERY = 20


def saved(loader, folder, tables):
    """Yield batches; write a checkpoint every so often."""
    for number, batch in enumerate(loader, 1):
        yield batch
        if tables is not None and number % EVERY == 0:
            torch.save({"tables": tables, "step": number}, folder / "last.pt")


chosen = options(batch_size=16)
count = chosen.steps * chosen.batch_size
data = TensorDataset(torch.randn(count, 64), torch.randint(0, 10, (count,)))
size = int(12_000_000 * chosen.effort)
with tempfile.TemporaryDirectory() as temporary:
    tables = torch.randn(size) if size else None
    train(saved(loader_for(data, chosen), Path(temporary), tables), chosen)
