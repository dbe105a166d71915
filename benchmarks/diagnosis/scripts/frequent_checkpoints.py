"""Train and save a checkpoint every 20 steps."""

import pathlib
import tempfile

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EVERY = 20


def save(model, table, folder, step):
    """Write a checkpoint."""
    state = {"model": model.state_dict(), "table": table, "step": step}
    torch.save(state, folder / "last.pt")  # at fault


def main():
    """Train."""
    data = TensorDataset(torch.randn(4160, 64), torch.randint(0, 10, (4160,)))
    loader = DataLoader(data, batch_size=32, num_workers=2)
    model = Network(step_ms=22).to(DEVICE)
    table = torch.randn(12_000_000)
    optimizer = torch.optim.AdamW(model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % EVERY == EVERY - 1:
                save(model, table, pathlib.Path(folder), step)


if __name__ == "__main__":
    main()
