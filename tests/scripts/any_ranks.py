"""Any number of ranks: what two ranks saved is restored here."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist

import headrace
from training import Loader, Network, differences, everything, optimizer_of

folder, strategy = sys.argv[1:3]
model = headrace.prepare(Network(), strategy, "cpu")
optimizer = optimizer_of(model)
reference = torch.load(f"{folder}/reference.pt", weights_only=True)
for saved_by in ("ddp", "fsdp"):
    loader = Loader() if saved_by == "ddp" else None
    restored = headrace.Checkpointer(f"{folder}/{saved_by}").restore(model, optimizer, loader)
    assert restored is not None
    assert not differences(reference[saved_by], everything(model, optimizer)), saved_by
with pytest.raises(headrace.HeadraceError, match="each of 2 ranks"):
    headrace.Checkpointer(f"{folder}/apart").restore(model, loader=Loader())
sys.stdout.write(f"world {dist.get_world_size()}\n")
