"""A tiny model on two ranks: a checkpoint every few steps, and a note of when each was whole.

python train.py saved|checkpointer NOTES STEPS
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headrace

EVERY = 8
STEP_S = 0.05


def main(way: str, notes: Path, steps: int) -> None:
    """Train so many steps further than the newest checkpoint says."""
    dist.init_process_group("gloo")
    folder = Path(os.environ["HEADRACE_CHECKPOINT_DIR"])
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 64))
    checkpointer = headrace.Checkpointer(str(folder / "steps")) if way == "checkpointer" else None
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    begun = _restore(model, optimizer, folder, checkpointer)
    if dist.get_rank() == 0:
        _note(notes, f"from {begun}")
    for step in range(begun + 1, begun + 1 + steps):
        optimizer.zero_grad()
        model(torch.full((4, 64), float(step % 7))).square().mean().backward()
        optimizer.step()
        time.sleep(STEP_S)
        if step % EVERY:
            continue
        if checkpointer is not None:
            checkpointer.save(step, model, optimizer)
        elif dist.get_rank() == 0:
            _save(step, model, optimizer, folder)
        if dist.get_rank() == 0:
            _note(notes, f"whole {step} {time.time()}")
    dist.destroy_process_group()


def _restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    folder: Path,
    checkpointer: headrace.Checkpointer | None,
) -> int:
    if checkpointer is not None:
        restored = checkpointer.restore(model, optimizer)
        return 0 if restored is None else restored.step
    files = sorted(folder.glob("*.pt"))
    if not files:
        return 0
    found = torch.load(files[-1])
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return int(found["position"])


def _save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    draft = folder / "draft"
    torch.save(
        {"position": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, draft
    )
    draft.rename(folder / f"{step:08}.pt")
    for old in sorted(folder.glob("*.pt"))[:-3]:
        old.unlink()


def _note(notes: Path, line: str) -> None:
    with notes.open("a") as file:
        file.write(f"{line}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
