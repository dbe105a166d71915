"""How much memory the object store of a Ray node may take: told to Ray, not left to it.

What Ray's objects do not take is not taken: this is the most.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass

from headrace.core.errors import LaunchError
from headrace.data.loader.memory import usable_memory

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Ray's object stores lie
_LEAST_BYTES = 80 << 20  # Ray refuses less than 75 MiB
_FOR_AGENTS = 0.1  # of what is free: what agents say to a job's driver
# Where Ray Data keeps its blocks, as Ray would choose: a share of what is free, as far as the
# shared memory holds it; a store that it cannot hold lies in Ray's folder on disk, up to 10 GB.
_FOR_DATA = 0.3
_OF_SHARED = 0.95
_ON_DISK_BYTES = 10 * 10**9
_MOST_EMULATED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """What is free on a host.

    Attributes:
        total_bytes: Of all its memory.
        shared_bytes: Of that, what the shared memory may take.
    """

    total_bytes: int
    shared_bytes: int

    @classmethod
    def here(cls) -> FreeMemory:
        """Return what is free on this host."""
        try:
            shared = shutil.disk_usage(_SHARED_MEMORY).free
        except OSError:  # a system without it: Ray then stores on disk
            shared = sys.maxsize
        return cls(usable_memory(), shared)


def emulated_store_bytes(memory: FreeMemory, hosts: int) -> int:
    """Return the most that each store may take of hosts that are emulated on one machine.

    Args:
        memory: The machine's.
        hosts: How many there are.

    Raises:
        LaunchError: There is too little for so many.
    """
    free = min(memory.total_bytes, memory.shared_bytes)
    share = int(free * _FOR_AGENTS) // hosts
    if share < _LEAST_BYTES and free < hosts * _LEAST_BYTES:
        raise LaunchError(
            f"{_SHARED_MEMORY} has {free >> 20} MiB free, too little for the object stores of "
            f"{hosts} emulated hosts ({_LEAST_BYTES >> 20} MiB each). Give it more (docker "
            "run --shm-size=2g), or emulate fewer hosts."
        )
    return min(max(share, _LEAST_BYTES), _MOST_EMULATED_BYTES)


def store_bytes(memory: FreeMemory, *, holds_data: bool) -> int:
    """Return the most that the store of a host may take.

    Args:
        memory: The host's.
        holds_data: The job's script uses Ray itself; otherwise agents alone do.
    """
    if holds_data:
        most = max(int(memory.shared_bytes * _OF_SHARED), _ON_DISK_BYTES)
        share = min(int(memory.total_bytes * _FOR_DATA), most)
    else:
        share = int(min(memory.total_bytes, memory.shared_bytes) * _FOR_AGENTS)
    return max(share, _LEAST_BYTES)
