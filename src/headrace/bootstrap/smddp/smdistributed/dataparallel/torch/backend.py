"""The backend `smddp` of torch.distributed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

NAME = "smddp"


def register() -> None:
    """Have `torch.distributed.init_process_group("smddp")` work; again does no harm."""
    if not hasattr(dist.Backend, NAME.upper()):
        # One of them: torch would send pickled objects by tensors on the CPU to NCCL otherwise.
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dist.Backend.register_backend(NAME, _make, devices=[device])


def _make(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    if torch.cuda.is_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout  # noqa: SLF001 - torch's own init_process_group sets it so
        return dist.ProcessGroupNCCL(store, rank, size, options)
    return dist.ProcessGroupGloo(store, rank, size, timeout)
