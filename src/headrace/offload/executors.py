"""The executors of loaders that also have offload servers make their batches."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from headrace.core.errors import HeadraceError, LoaderError, NotSendableError
from headrace.core.world import current_world
from headrace.data.loader.executors.base import Executor
from headrace.offload.client import OffloadClient, partitions_of_rank
from headrace.offload.host_status import print_status
from headrace.offload.hosts_file import HostsFile

if TYPE_CHECKING:
    from headrace.data.loader.dataloader import DataLoader  # whose import has this one registered

_MIN_SHARING_WORKERS = 2
"""The least number of workers with which an iterable dataset must share its samples among
workers; with fewer it need not, and many do not."""


class OffloadExecutors:
    """The factory of executors with an offload client; see `ExecutorFactory`."""

    def __init__(self, hosts_file: Path) -> None:
        self._hosts_file = hosts_file
        self._printed: WeakSet[DataLoader] = WeakSet()  # loaders whose partitions were printed

    def new_executor(self, loader: DataLoader) -> Executor:
        """Return a loader's new executor, with an offload client where it can have one."""
        partitions = self.remote_partitions(loader)
        try:
            if partitions or not loader.iterable:
                executor = loader.new_executor(OffloadClient(self._hosts_file, loader.world))
            else:
                executor = loader.new_executor()
        except (HeadraceError, OSError) as error:
            _exclude_loader(loader, error)
            self._printed.add(loader)
            print_local_only(loader, str(error))
            return loader.new_executor()
        if loader.iterable and loader not in self._printed:
            self._printed.add(loader)
            if partitions:
                print_shared(loader, partitions)
            else:
                reason = self.local_only_reason(loader.num_workers, loader.world.size)
                print_local_only(
                    loader, reason or "so are those of the loader that it was copied from"
                )
        return executor

    def remote_partitions(self, loader: DataLoader) -> int:
        """Return how many partitions of a loader's iterable dataset offload servers have."""
        if loader.is_local_only or loader.num_workers < _MIN_SHARING_WORKERS:
            return 0
        return self.partitions(loader.world.size)

    def partitions(self, world_size: int) -> int:
        """Return how many partitions of each rank's iterable dataset offload servers have."""
        return _partitions(self._hosts_file, world_size)

    def local_only_reason(self, num_workers: int, world_size: int) -> str:
        """Return why an iterable dataset has no partitions on offload servers; "": it has."""
        partitions = self.partitions(world_size)
        if not partitions:
            return (
                "it is iterated, and nobody knew when the job began how many cores there would be "
                "on other hosts to share it among; --group NAME=HOSTS:cpus=N says so, --offload "
                "auto does not"
            )
        if num_workers < _MIN_SHARING_WORKERS:
            return (
                f"it is iterated by num_workers={num_workers}, and may not share itself out; with "
                f"num_workers=2 or more it is shared among these and {partitions} on auxiliary "
                "hosts"
            )
        return ""


@functools.cache  # constant for the whole job
def _partitions(hosts_file: Path, world_size: int) -> int:
    return partitions_of_rank(HostsFile.read(hosts_file), world_size)


def is_same_on_all_ranks(error: Exception) -> bool:
    """Whether all ranks meet an error, so that all iterate the dataset as torch does.

    If only one rank did, ranks would share the dataset among different numbers of workers: samples
    would be lost or duplicated without notice.
    """
    return current_world().size == 1 or isinstance(error, NotSendableError)


def _exclude_loader(loader: DataLoader, error: Exception) -> None:
    """Exclude a loader from offload, permanently where its dataset is iterable.

    Its states, and those of its copies, count batches per local worker from then on. Raises the
    given error where other ranks may not have met it, and LoaderError where the loader resumes from
    a position that is counted among more workers.
    """
    if not loader.iterable:
        return
    if not is_same_on_all_ranks(error):
        raise error
    counted = loader.resumed_count
    if counted is not None and counted.position:
        raise LoaderError(
            f"The loader goes on from batch {counted.position}, counted among {counted.workers} "
            f"workers, and those on auxiliary hosts cannot be had. Start the job anew. {error}"
        ) from error
    loader.is_local_only = True


def print_local_only(loader: Any, why: str) -> None:
    """Print that a loader's batches are made on this host alone."""
    kind = type(loader.dataset).__name__
    print_status(f"batches of {kind} are made on this host alone: {why}")


def print_shared(loader: Any, partitions: int) -> None:
    """Print among how many workers a loader's iterable dataset is shared."""
    here, world = loader.num_workers, current_world()
    if world.local_rank:  # local rank 0 prints it for all
        return
    kind = type(loader.dataset).__name__
    of_each = " in each rank" if world.size > 1 else ""
    print_status(
        f"{kind} is shared among {here + partitions} workers{of_each}: {here} here, "
        f"{partitions} on auxiliary hosts"
    )
