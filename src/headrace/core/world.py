"""This process among the ranks of its job: rank, world size, and the cores that it may use."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from headrace.core import env
from headrace.core.cgroups import cpu_quota
from headrace.core.errors import UsageError


def usable_cores(proc: Path = Path("/proc/self")) -> int:
    """Return how many cores this process may use, by its affinity and its cgroups' quotas."""
    cores, quota = len(os.sched_getaffinity(0)), cpu_quota(proc)
    return cores if quota is None else min(cores, max(1, math.ceil(quota)))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process's place among the ranks of its job."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among the local_size ranks of this host
    local_size: int = 1

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise UsageError(
                f"rank {self.rank} of world size {self.size}: a rank is 0 to world size - 1."
            )


def current_world(rank: int | None = None, size: int | None = None) -> World:
    """Return the world of this process.

    The arguments take precedence, then an initialised torch process group, then torchrun's
    environment variables; without any of them it is a world of one.

    Raises UsageError (only one of `rank` and `size` is known, or they contradict one another).
    """
    local_rank = env.LOCAL_RANK.get_int(0) or 0
    local_size = env.LOCAL_WORLD_SIZE.get_int(1) or 1
    if (rank is None) != (size is None):
        raise UsageError(f"rank={rank} and world={size}: give both, or neither.")
    if rank is None or size is None:
        rank, size = _process_group() or (env.RANK.get_int(), env.WORLD_SIZE.get_int())
    if (rank is None) != (size is None):
        raise UsageError(
            f"RANK={rank} and WORLD_SIZE={size}: a launcher sets both; set the other, or unset it."
        )
    if rank is None or size is None:
        return World()
    return World(rank=rank, size=size, local_rank=local_rank, local_size=local_size)


def _process_group() -> tuple[int, int] | None:
    # Through sys.modules: a process that has not imported torch has no process group, and core
    # must not import it.
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return int(dist.get_rank()), int(dist.get_world_size())
