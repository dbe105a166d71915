"""Training that is interrupted every 10 steps, by what the argument says."""

import gc
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
from points import Descent
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EVERY = 10


class Network(nn.Module):
    """A layer on an accelerator that needs its time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        time.sleep(0.06)
        return self.layer(x)


def save(net: nn.Module, table: torch.Tensor, folder: Path) -> None:
    """Write a checkpoint."""
    torch.save({"net": net.state_dict(), "table": table}, folder / "last.pt")  # checkpoint


def memory() -> str | None:
    """Return a folder in memory, where a checkpoint has room: a disk may stall at any step."""
    folder = Path("/dev/shm")  # noqa: S108 - a temporary folder is made in it
    has_room = folder.exists() and shutil.disk_usage(folder).free > 1 << 30
    return str(folder) if has_room else None


def main(what: str, folder: Path) -> None:
    """Train."""
    data = TensorDataset(torch.randn(3840, 16), torch.randint(0, 3, (3840,)))
    net = Network()
    table = torch.zeros(40_000_000 if what == "checkpoint" else 0)
    optimizer = Descent(net.parameters())
    # Lists: the collector looks at each of them, and at no dict of plain numbers.
    known = [[number] for number in range(1_000_000)] if what == "garbage" else []
    for step, (x, y) in enumerate(DataLoader(data, batch_size=32, num_workers=1)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if step % EVERY < EVERY - 1:
            continue
        if what == "checkpoint":
            save(net, table, folder)  # all of `save`: checkpoint
        else:
            gc.collect()  # garbage
    del known[:]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=memory()) as scratch:
        main(sys.argv[1], Path(scratch))
