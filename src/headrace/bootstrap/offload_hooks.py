"""The hooks that let a script's loaders also take batches from offload servers.

torch's DataLoader stays as it is, since trainers subclass and rebuild it; only the iterator that it
creates is replaced. Headrace's own loader gets an executor with an offload client.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakSet

from headrace.core import env
from headrace.core.errors import HeadraceError, LoaderError, NotSendableError
from headrace.core.files import raise_open_file_limit
from headrace.core.import_hooks import after_import
from headrace.core.world import current_world

_MIN_SHARING_WORKERS = 2
"""The least number of workers with which an iterable dataset must share its samples among
workers; with fewer it need not, and many do not."""
_EXCLUDED = "_is_left_alone"  # an attribute of our own loader that gets no offload client


def prepare_offload() -> None:
    """Let offload servers make batches for every loader that this process iterates."""
    hosts_file = Path(env.OFFLOAD.get() or "")
    env.record_initial_variables()
    raise_open_file_limit()
    after_import("torch.utils.data.dataloader", lambda module: _hook_torch(module, hosts_file))
    after_import(
        "headrace.data.loader.dataloader", lambda module: _hook_headrace(module, hosts_file)
    )


def _hook_torch(module: ModuleType, hosts_file: Path) -> None:
    original = module.DataLoader._get_iterator  # noqa: SLF001 - there is no public method
    local_only: WeakSet[Any] = WeakSet()  # loaders without an offload client
    printed: WeakSet[Any] = WeakSet()  # loaders whose partitions were printed

    @functools.wraps(original)
    def _get_iterator(loader: Any) -> Any:
        from headrace.data.loader.torch_iterator import (
            ExecutorIterator,
            is_iterable_loader,
            unsupported_reason,
        )

        if loader in local_only:
            return original(loader)
        reason = unsupported_reason(loader)
        if not reason and is_iterable_loader(loader):
            reason = _why_local_only(hosts_file, loader.num_workers, current_world().size)
        if reason:
            local_only.add(loader)
            _print_local_only(loader, reason)
            return original(loader)
        before = _generator_state(loader)
        try:
            iterator = ExecutorIterator(loader, _client_factory(hosts_file))
        except (HeadraceError, OSError) as error:  # torch's own iterator may still work
            if is_iterable_loader(loader) and not _is_same_on_all_ranks(error):
                raise
            local_only.add(loader)
            _print_local_only(loader, str(error))
            _set_generator_state(loader, before)  # the seed is drawn once, as without the hook
            return original(loader)
        if is_iterable_loader(loader) and loader not in printed:
            printed.add(loader)
            _print_shared(loader, _partitions(hosts_file, current_world().size))
        return iterator

    module.DataLoader._get_iterator = _get_iterator  # noqa: SLF001 - as above


def _hook_headrace(module: ModuleType, hosts_file: Path) -> None:
    loader_class = module.DataLoader
    original = loader_class._new_executor  # noqa: SLF001 - not part of the public loader
    shared_among = loader_class._shared_among  # noqa: SLF001 - as above
    printed: WeakSet[Any] = WeakSet()  # loaders whose partitions, or lack of them, were printed

    @functools.wraps(original)
    def _new_executor(loader: Any) -> Any:
        if loader.is_ray_dataset:  # Ray makes its batches
            return original(loader)
        partitions = _remote_partitions_of(loader, hosts_file)
        try:
            if partitions or not loader.iterable:
                executor = original(loader, _client_factory(hosts_file)(loader.world))
            else:
                executor = original(loader)
        except (HeadraceError, OSError) as error:
            _exclude_loader(loader, error)
            printed.add(loader)
            _print_local_only(loader, str(error))
            return original(loader)
        if loader.iterable and loader not in printed:
            printed.add(loader)
            _print_sharing(loader, partitions, hosts_file)
        return executor

    @functools.wraps(shared_among)
    def _shared_among(loader: Any) -> int:
        return int(shared_among(loader)) + _remote_partitions_of(loader, hosts_file)

    loader_class._new_executor = _new_executor  # noqa: SLF001 - as above
    loader_class._shared_among = _shared_among  # noqa: SLF001 - as above


def _remote_partitions_of(loader: Any, hosts_file: Path) -> int:
    """Return how many partitions of our own loader's iterable dataset offload servers have."""
    is_given = loader._executor_given is not None  # noqa: SLF001 - as above; the user's own
    excluded = getattr(loader, _EXCLUDED, False)
    if is_given or excluded or loader.is_ray_dataset or loader.num_workers < _MIN_SHARING_WORKERS:
        return 0
    return _partitions(hosts_file, loader.world.size)


def _exclude_loader(loader: Any, error: Exception) -> None:
    """Exclude our own loader from offload, permanently where its dataset is iterable.

    Its states, and those of its copies, count batches per local worker from then on.

    Raises:
        LoaderError: It resumes from a position that is counted among more workers.
        Exception: The given error, where other ranks may not have met it.
    """
    if not loader.iterable:
        return
    if not _is_same_on_all_ranks(error):
        raise error
    begin = loader._resumed  # noqa: SLF001 - as above
    if begin is not None and begin.position:
        raise LoaderError(
            f"The loader goes on from batch {begin.position}, counted among {begin.workers} "
            f"workers, and those on auxiliary hosts cannot be had. Start the job anew. {error}"
        ) from error
    setattr(loader, _EXCLUDED, True)


def _print_sharing(loader: Any, partitions: int, hosts_file: Path) -> None:
    if partitions:
        _print_shared(loader, partitions)
    else:
        reason = _why_local_only(hosts_file, loader.num_workers, loader.world.size)
        _print_local_only(loader, reason or "so are those of the loader that it was copied from")


@functools.cache  # constant for the whole job
def _partitions(hosts_file: Path, world_size: int) -> int:
    from headrace.offload.client import partitions_of_rank
    from headrace.offload.hosts_file import HostsFile

    return partitions_of_rank(HostsFile.read(hosts_file), world_size)


def _why_local_only(hosts_file: Path, num_workers: int, world_size: int) -> str:
    """Return why an iterable dataset has no partitions on offload servers; "": it has."""
    partitions = _partitions(hosts_file, world_size)
    if not partitions:
        return (
            "it is iterated, and nobody knew when the job began how many cores there would be on "
            "other hosts to share it among; --group NAME=HOSTS:cpus=N says so, --offload auto does "
            "not"
        )
    if num_workers < _MIN_SHARING_WORKERS:
        return (
            f"it is iterated by num_workers={num_workers}, and may not share itself out; with "
            f"num_workers=2 or more it is shared among these and {partitions} on auxiliary hosts"
        )
    return ""


def _is_same_on_all_ranks(error: Exception) -> bool:
    """Whether all ranks meet an error, so that all iterate the dataset as torch does.

    If only one rank did, ranks would share the dataset among different numbers of workers: samples
    would be lost or duplicated without notice.
    """
    return current_world().size == 1 or isinstance(error, NotSendableError)


def _client_factory(hosts_file: Path) -> Callable[[Any], Any]:
    def make(world: Any) -> Any:
        from headrace.offload.client import OffloadClient

        return OffloadClient(hosts_file, world)

    return make


def _print_local_only(loader: Any, why: str) -> None:
    kind = type(loader.dataset).__name__
    sys.stderr.write(f"headrace: batches of {kind} are made on this host alone: {why}\n")


def _print_shared(loader: Any, partitions: int) -> None:
    here, world = loader.num_workers, current_world()
    if world.local_rank:  # local rank 0 prints it for all
        return
    kind = type(loader.dataset).__name__
    of_each = " in each rank" if world.size > 1 else ""
    sys.stderr.write(
        f"headrace: {kind} is shared among {here + partitions} workers{of_each}: {here} here, "
        f"{partitions} on auxiliary hosts\n"
    )


def _generator_state(loader: Any) -> Any:
    import torch

    generator = loader.generator
    return torch.get_rng_state() if generator is None else generator.get_state()


def _set_generator_state(loader: Any, state: Any) -> None:
    import torch

    if loader.generator is None:
        torch.set_rng_state(state)
    else:
        loader.generator.set_state(state)
