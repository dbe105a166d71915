"""How a model is spread over ranks and devices."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.core.world import current_world
from headrace.train.blocks import repeated_blocks
from headrace.train.devices import choose_device, join_process_group

Strategy = Literal["ddp", "fsdp", "dp", "none"]


def prepare(
    model: nn.Module, strategy: Strategy = "ddp", device: torch.device | str | None = None
) -> nn.Module:
    """Move a model to this rank's device and spread it; return what the script is to train.

    Where RANK is set and no process group is there, one is initialised (nccl and gloo for CUDA,
    gloo for the CPU). Without RANK, "ddp" and "fsdp" run as a world of one: the same script works
    with and without a launcher. Make the optimizer afterwards, from the returned model.

    Args:
        model: On any device; not spread yet.
        strategy: "ddp": a copy on each rank, gradients averaged (DistributedDataParallel).
            "fsdp": each rank holds a part (FSDP2's `fully_shard`, each repeated block by itself);
            all ranks begin with rank 0's values, as with "ddp".
            "dp": one process, its batches split over all its devices (DataParallel).
            "none": moved only.
        device: This rank's; None takes the local rank's accelerator, or the CPU.

    Raises:
        UsageError: Such a strategy does not exist, or cannot be here; the remedy is told.
    """
    if strategy not in get_args(Strategy):
        names = ", ".join(get_args(Strategy))
        raise UsageError(f"strategy={strategy!r} does not exist. Choose one of: {names}.")
    if isinstance(model, (DistributedDataParallel, nn.DataParallel, FSDPModule)):
        raise UsageError(f"The model is a {type(model).__name__} already: prepare it only once.")
    world = current_world()
    if strategy == "dp" and world.size > 1:
        raise UsageError(
            f"strategy='dp' is one process for all devices, but there are {world.size} ranks. Use "
            "'ddp', or start one process: headrace run script.py."
        )
    place = choose_device(device)
    if strategy in {"ddp", "fsdp"} or env.RANK.get() is not None:
        join_process_group(place)
    if strategy in {"ddp", "fsdp"}:
        _tell_of_idle_devices(place)
    return _spread(model, strategy, place)


def _spread(model: nn.Module, strategy: Strategy, place: torch.device) -> nn.Module:
    if strategy == "fsdp":
        return _shard(model, place)
    model = model.to(place)
    if strategy == "dp":
        return nn.DataParallel(model)
    if strategy == "none":
        return model
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("No parameter of the model requires a gradient. Use strategy='none'.")
    return DistributedDataParallel(model, device_ids=None if place.type == "cpu" else [place])


def _shard(model: nn.Module, place: torch.device) -> nn.Module:
    mesh = init_device_mesh(place.type, (dist.get_world_size(),))
    # Block by block, so that no device ever holds the whole model.
    for part in [*repeated_blocks(model), model]:
        part.to(place)  # before its tensors are listed: moving replaces the buffers
        whole = [
            tensor
            for tensor in (*part.parameters(), *part.buffers())
            if not isinstance(tensor, DTensor)
        ]
        _take_from_rank_0(whole)
        fully_shard(part, mesh=mesh)
    return model


def _take_from_rank_0(tensors: Iterable[torch.Tensor]) -> None:
    if dist.get_world_size() > 1:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)


def _tell_of_idle_devices(place: torch.device) -> None:
    if place.type == "cpu" or env.RANK.get() is not None:
        return
    count = int(torch.get_device_module(place).device_count())
    if count > 1:
        warnings.warn(
            f"Training on 1 of {count} devices. To use them all: headrace run --nproc-per-node "
            f"{count} script.py",
            stacklevel=3,
        )
