"""Training strategies: device, process group, and DDP, FSDP or DataParallel around a model.

`torch.distributed.nn.functional` stores `group.WORLD` in the defaults of its arguments when it is
imported, and torch's own code for checkpoints and sharding imports it. If the group exists by then,
the defaults keep it alive: `destroy_process_group` ends none of gloo's threads, and one that frees
a tensor while the interpreter shuts down aborts the process ("terminate called without an active
exception", SIGABRT; measured with torch 2.13 in one of eight exits). `release_default_group` sets
these defaults to None, which means the same group.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import types
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.nn import functional
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.core.world import current_world


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that have siblings of their class in a list or sequence.

    Only modules with submodules and parameters: a sequence of convolutions has no blocks. Nested
    lists are searched, so the layers of each stage of a staged model are found.
    """
    found: list[nn.Module] = []
    is_row = isinstance(model, (nn.ModuleList, nn.Sequential))
    kinds = Counter(type(child) for child in model.children()) if is_row else Counter()
    for child in model.children():
        is_repeated = kinds[type(child)] > 1 and _is_block(child)
        found += [child] if is_repeated else repeated_blocks(child)
    return found


def _is_block(module: nn.Module) -> bool:
    if isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
        return False
    return any(True for _ in module.children()) and any(True for _ in module.parameters())


_GLOO_THREAD = "pt_gloo_runloop"
_FINISH_WITHIN_S = 30.0  # where other processes keep the cores busy; usually milliseconds
_POLL_S = 0.003
_QUIET_POLLS = 3


def choose_device(device: torch.device | str | None = None) -> torch.device:
    """Return the device of this rank, and make it the current one.

    A given one is used unchanged, but without a number (`"cuda"`) it is the local rank's. None: the
    local rank's accelerator, or the CPU where there is none. UsageError: there are fewer devices
    than ranks on this host.
    """
    if device is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        chosen = accelerator if accelerator is not None else torch.device("cpu")
    else:
        chosen = torch.device(device)
    if chosen.type == "cpu":
        return chosen
    number: Any = chosen.index  # may be None, unlike torch's type
    if number is None:
        chosen = torch.device(chosen.type, env.LOCAL_RANK.get_int(0) or 0)
    module = torch.get_device_module(chosen)
    count = int(module.device_count())
    if chosen.index >= count:
        raise UsageError(
            f"{chosen} does not exist: this host has {count} device(s) of type {chosen.type}. "
            "Start one rank on each: headrace run --nproc-per-node auto ..."
        )
    if hasattr(module, "set_device"):
        module.set_device(chosen)
    return chosen


def join_process_group(device: torch.device) -> None:
    """Initialise torch's process group unless it is initialised already.

    With RANK set, it joins all ranks, as under torchrun (UsageError: its other variables are not
    set); otherwise this process alone, without network. nccl (or the device's own backend) serves
    tensors on the device, gloo those on the CPU. The group is destroyed at the exit of a script
    that succeeded.
    """
    if dist.is_initialized():
        return
    atexit.register(_destroy_process_group, os.getpid())
    backend = dist.get_default_backend_for_device(device)
    if device.type != "cpu":
        backend = f"cpu:gloo,{device.type}:{backend}"
    if env.RANK.get() is None:
        store: Any = dist.HashStore()  # type: ignore[attr-defined]  # torch's types lack it
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        return
    try:
        dist.init_process_group(backend)
    except ValueError as error:
        raise UsageError(
            f"RANK is set, but the ranks cannot meet: {error}. Start the script with headrace run "
            "or torchrun, or unset RANK to run it alone."
        ) from error


def _destroy_process_group(owner: int) -> None:
    """Destroy the process group of a rank that succeeded, before the interpreter shuts down.

    gloo's threads may free the tensors of their last collective late. While the interpreter
    shuts down, that aborts the process (pytorch issue 190489): a finished training would end in
    SIGABRT. After an error the group is kept: the others may be in a collective that this
    rank never joins, and some backends would wait for it.
    """
    forked = os.getpid() != owner
    failed = getattr(sys, "last_type", None) is not None
    if forked or failed:
        return
    if dist.is_initialized():
        dist.destroy_process_group()
    _wait_for_gloo_threads()


def _wait_for_gloo_threads() -> None:
    """Wait until gloo's threads sleep, half a minute at most.

    Destroying a group ends its threads only where nothing else refers to it, but the mesh of an
    FSDP model and the reducer of DDP do. To free a tensor such a thread needs the interpreter,
    which is free while this one sleeps. A thread that sleeps at several polls in a row has freed
    all.
    """
    deadline_s = time.monotonic() + _FINISH_WITHIN_S
    quiet_looks = 0
    while quiet_looks < _QUIET_POLLS and time.monotonic() < deadline_s:
        states = _thread_states(_GLOO_THREAD)
        if not states:
            return
        quiet_looks = quiet_looks + 1 if states == {"S"} else 0
        time.sleep(_POLL_S)


def _thread_states(name: str) -> set[str]:
    """Return the states of this process's threads of a name, such as "R" or "S"."""
    states = set()
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # it has ended meanwhile
            identity, _, rest = (task / "stat").read_text().rpartition(") ")
            if identity.partition(" (")[2] == name:
                states.add(rest[0])
    return states


def release_default_group() -> None:
    """Reset the defaults that refer to the process group; see the module's docstring."""
    world = dist.group.WORLD
    if world is None:
        return
    for function in vars(functional).values():
        if isinstance(function, types.FunctionType) and function.__defaults__:
            function.__defaults__ = tuple(
                None if default is world else default for default in function.__defaults__
            )


Strategy = Literal["ddp", "fsdp", "dp", "none"]


def prepare(
    model: nn.Module, strategy: Strategy = "ddp", device: torch.device | str | None = None
) -> nn.Module:
    """Move a model to this rank's device and wrap it for a strategy; return the model to train.

    Where RANK is set and there is no process group, one is initialised (nccl and gloo for CUDA,
    gloo for the CPU). Without RANK, "ddp" and "fsdp" run with a world size of one: the same script
    works with and without a launcher. Make the optimizer afterwards, from the returned model.

    Args:
        model: On any device; not wrapped yet.
        strategy: "ddp": a copy on each rank, gradients averaged (DistributedDataParallel).
            "fsdp": each rank holds a shard (FSDP2's `fully_shard`, each repeated block by itself);
            all ranks begin with rank 0's values, as with "ddp".
            "dp": one process, its batches split over all its devices (DataParallel).
            "none": moved only.
        device: This rank's device; None: the local rank's accelerator, or the CPU.

    Raises:
        UsageError: The strategy does not exist, or cannot be used here; the message has the remedy.
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
    target = choose_device(device)
    if strategy in {"ddp", "fsdp"} or env.RANK.get() is not None:
        join_process_group(target)
    if strategy in {"ddp", "fsdp"}:
        _warn_of_idle_devices(target)
    return _wrap_model(model, strategy, target)


def _wrap_model(model: nn.Module, strategy: Strategy, target: torch.device) -> nn.Module:
    if strategy == "fsdp":
        return _shard_model(model, target)
    model = model.to(target)
    if strategy == "dp":
        return nn.DataParallel(model)
    if strategy == "none":
        return model
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("No parameter of the model requires a gradient. Use strategy='none'.")
    return DistributedDataParallel(model, device_ids=None if target.type == "cpu" else [target])


def _shard_model(model: nn.Module, target: torch.device) -> nn.Module:
    mesh = init_device_mesh(target.type, (dist.get_world_size(),))
    # Block by block, so that no device ever holds the whole model.
    for part in [*repeated_blocks(model), model]:
        part.to(target)  # first: moving replaces the buffers
        for tensor in (*part.parameters(), *part.buffers()):
            if dist.get_world_size() > 1 and not isinstance(tensor, DTensor):
                dist.broadcast(tensor.detach(), src=0)
        fully_shard(part, mesh=mesh)
    return model


def _warn_of_idle_devices(target: torch.device) -> None:
    if target.type == "cpu" or env.RANK.get() is not None:
        return
    count = int(torch.get_device_module(target).device_count())
    if count > 1:
        warnings.warn(
            f"Training on 1 of {count} devices. To use them all: headrace run --nproc-per-node "
            f"{count} script.py",
            stacklevel=3,
        )
