"""Any number of ranks: what two ranks saved is restored here.

python any_ranks.py FOLDER STRATEGY RANKS: the ranks are forked, so that torch is imported once.
"""

from __future__ import annotations

import os
import sys

import pytest
import torch
import torch._dynamo  # what the first optimizer would import in every rank
import torch.distributed as dist
import torch.distributed.fsdp  # likewise, for `headrace.prepare`
from torch import multiprocessing

import headrace
from training import Loader, Network, differences, everything, optimizer_of

FOLDER, STRATEGY, RANKS = sys.argv[1], sys.argv[2], int(sys.argv[3])


def restore(rank: int) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
    os.environ.update({name: str(value) for name, value in place.items()})
    method = f"file://{FOLDER}/meeting"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=RANKS)
    model = headrace.prepare(Network(), STRATEGY, "cpu")
    optimizer = optimizer_of(model)
    reference = torch.load(f"{FOLDER}/reference.pt", weights_only=True)
    for saved_by in ("ddp", "fsdp"):
        loader = Loader() if saved_by == "ddp" else None
        restored = headrace.Checkpointer(f"{FOLDER}/{saved_by}").restore(model, optimizer, loader)
        assert restored is not None
        assert not differences(reference[saved_by], everything(model, optimizer)), saved_by
    with pytest.raises(headrace.HeadraceError, match="each of 2 ranks"):
        headrace.Checkpointer(f"{FOLDER}/apart").restore(model, loader=Loader())
    sys.stdout.write(f"world {dist.get_world_size()}\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.start_processes(restore, nprocs=RANKS, start_method="fork")
