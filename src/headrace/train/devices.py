"""This rank's device, and the process group of its ranks."""

from __future__ import annotations

import atexit
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headrace.core import env
from headrace.core.errors import UsageError

_GLOO_THREAD = "pt_gloo_runloop"
_FINISH_WITHIN_S = 1.0
_BETWEEN_LOOKS_S = 0.003
_QUIET_LOOKS = 3


def choose_device(device: torch.device | str | None = None) -> torch.device:
    """Return the device of this rank, and make it the current one.

    Args:
        device: Taken as it is; without a number (`"cuda"`) the local rank's. None: the local
            rank's accelerator, or the CPU where there is none.

    Raises:
        UsageError: There are fewer devices than ranks on this host.
    """
    if device is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        chosen = accelerator if accelerator is not None else torch.device("cpu")
    else:
        chosen = torch.device(device)
    if chosen.type == "cpu":
        return chosen
    number: Any = chosen.index  # None where the device was named without; torch's types differ
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
    """Initialise torch's process group unless it is there already.

    With RANK set, of all ranks, as torchrun tells; otherwise of this process alone, without
    network. nccl (or the device's own backend) carries tensors on the device, gloo those on the
    CPU. A script that ends well leaves the group at its exit, if it did not itself.

    Raises:
        UsageError: RANK is set, but not what else torchrun sets.
    """
    if dist.is_initialized():
        return
    atexit.register(_leave, os.getpid())
    backend = dist.get_default_backend_for_device(device)
    if device.type != "cpu":
        backend = f"cpu:gloo,{device.type}:{backend}"
    if env.RANK.get() is None:
        dist.init_process_group(backend, store=_private_store(), rank=0, world_size=1)
        return
    try:
        dist.init_process_group(backend)
    except ValueError as error:
        raise UsageError(
            f"RANK is set, but the ranks cannot meet: {error}. Start the script with headrace run "
            "or torchrun, or unset RANK to run it alone."
        ) from error


def _private_store() -> Any:
    return dist.HashStore()  # type: ignore[attr-defined]  # torch's types lack it


def _leave(owner: int) -> None:
    """Destroy the process group of a rank that ends well, while Python is still whole.

    gloo's threads may free the tensors of their last collective late. While the interpreter
    shuts down, that aborts the process (pytorch issue 190489): a finished training would end in
    SIGABRT. After an error the group is left alone: the others may be in a collective that this
    rank never joins, and some backends would wait for it.
    """
    forked = os.getpid() != owner
    failed = getattr(sys, "last_type", None) is not None
    if forked or failed:
        return
    if dist.is_initialized():
        dist.destroy_process_group()
    _let_gloo_finish()


def _let_gloo_finish() -> None:
    """Wait until gloo's threads sleep, a second at most.

    Destroying a group ends its threads only where nothing else holds it, and the mesh of an FSDP
    model and the reducer of DDP do. To free a tensor such a thread needs the interpreter, which
    is its own while this one sleeps. Once it has slept in several looks it has freed all.
    """
    deadline_s = time.monotonic() + _FINISH_WITHIN_S
    quiet_looks = 0
    while quiet_looks < _QUIET_LOOKS and time.monotonic() < deadline_s:
        states = _states_of_threads(_GLOO_THREAD)
        if not states:
            return
        quiet_looks = quiet_looks + 1 if states == {"S"} else 0
        time.sleep(_BETWEEN_LOOKS_S)


def _states_of_threads(name: str) -> set[str]:
    """Return what Linux tells of this process's threads of a name, as "R" or "S"."""
    states = set()
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # it has ended meanwhile
            identity, _, rest = (task / "stat").read_text().rpartition(") ")
            if identity.partition(" (")[2] == name:
                states.add(rest[0])
    return states
