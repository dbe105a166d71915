"""The library's own names for torch.distributed, from before it was a backend."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import (
    ReduceOp,
    all_gather,
    all_reduce,
    all_to_all_single,
    barrier,
    broadcast,
    get_rank,
    get_world_size,
    is_available,
    is_initialized,
)
from torch.distributed import get_node_local_rank as get_local_rank

from headrace.bootstrap.smddp.smdistributed.dataparallel.torch.backend import NAME, register

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_available",
    "is_initialized",
]

register()


def init_process_group(
    backend: str = NAME,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    **others: Any,
) -> None:
    """Have this rank meet the others, as the launcher's variables say."""
    dist.init_process_group(backend, init_method, timeout, **others)
