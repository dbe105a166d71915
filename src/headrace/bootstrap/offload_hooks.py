"""Hooks that have loaders of a script take batches from offload servers, too.

torch's DataLoader stays as it is, since trainers subclass and rebuild it; where it makes an
iterator, ours is made instead. Headrace's own loader gets an executor with an offload client.
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
"""Workers of a loader whose iterable dataset surely asks which of them it is: with fewer it need
not, and many do not."""
_EXCLUDED = "_is_left_alone"  # an attribute of our own loader


def prepare_offload() -> None:
    """Have auxiliary hosts make batches of every loader that this process iterates."""
    hosts_file = Path(env.OFFLOAD.get() or "")
    env.record_initial_variables()
    raise_open_file_limit()
    after_import("torch.utils.data.dataloader", lambda module: _hook_torch(module, hosts_file))
    after_import(
        "headrace.data.loader.dataloader", lambda module: _hook_headrace(module, hosts_file)
    )


def _hook_torch(module: ModuleType, hosts_file: Path) -> None:
    original = module.DataLoader._get_iterator  # noqa: SLF001 - there is no public place
    left: WeakSet[Any] = WeakSet()  # loaders that stay as they are
    told: WeakSet[Any] = WeakSet()  # ... and those of which it was told how they are shared

    @functools.wraps(original)
    def _get_iterator(loader: Any) -> Any:
        from headrace.data.loader.torch_iterator import (
            ExecutorIterator,
            is_iterable_loader,
            unsupported_reason,
        )

        if loader in left:
            return original(loader)
        why_left = unsupported_reason(loader)
        if not why_left and is_iterable_loader(loader):
            why_left = _why_local_only(hosts_file, loader.num_workers, current_world().size)
        if why_left:
            left.add(loader)
            _print_local_only(loader, why_left)
            return original(loader)
        before = _generator_state(loader)
        try:
            iterator = ExecutorIterator(loader, _client_factory(hosts_file))
        except (HeadraceError, OSError) as error:  # whatever it is, torch's own may do
            if is_iterable_loader(loader) and not _is_same_on_all_ranks(error):
                raise
            left.add(loader)
            _print_local_only(loader, str(error))
            _set_generator_state(loader, before)  # the seed is drawn once, as without us
            return original(loader)
        if is_iterable_loader(loader) and loader not in told:
            told.add(loader)
            _print_shared(loader, _partitions(hosts_file, current_world().size))
        return iterator

    module.DataLoader._get_iterator = _get_iterator  # noqa: SLF001 - likewise


def _hook_headrace(module: ModuleType, hosts_file: Path) -> None:
    loader_class = module.DataLoader
    original = loader_class._new_executor  # noqa: SLF001 - scripts have no part in it
    shared_among = loader_class._shared_among  # noqa: SLF001 - likewise
    told: WeakSet[Any] = WeakSet()  # loaders of which it was told how they are shared, or why not

    @functools.wraps(original)
    def _new_executor(loader: Any) -> Any:
        if loader.is_ray_dataset:  # its batches are made by Ray, where Ray likes
            return original(loader)
        strands = _remote_partitions_of(loader, hosts_file)
        try:
            if strands or not loader.iterable:
                executor = original(loader, _client_factory(hosts_file)(loader.world))
            else:
                executor = original(loader)
        except (HeadraceError, OSError) as error:
            _exclude_loader(loader, error)
            told.add(loader)
            _print_local_only(loader, str(error))
            return original(loader)
        if loader.iterable and loader not in told:
            told.add(loader)
            _print_sharing(loader, strands, hosts_file)
        return executor

    @functools.wraps(shared_among)
    def _shared_among(loader: Any) -> int:
        return int(shared_among(loader)) + _remote_partitions_of(loader, hosts_file)

    loader_class._new_executor = _new_executor  # noqa: SLF001 - likewise
    loader_class._shared_among = _shared_among  # noqa: SLF001 - likewise


def _remote_partitions_of(loader: Any, hosts_file: Path) -> int:
    """Return among how many workers elsewhere the iterable dataset of our own loader is shared."""
    is_given = loader._executor_given is not None  # noqa: SLF001 - as above; nobody helps it
    is_left = getattr(loader, _EXCLUDED, False)
    if is_given or is_left or loader.is_ray_dataset or loader.num_workers < _MIN_SHARING_WORKERS:
        return 0
    return _partitions(hosts_file, loader.world.size)


def _exclude_loader(loader: Any, error: Exception) -> None:
    """Note that a loader of ours goes without help, for good where its dataset is iterated.

    Its states count batches among the workers here from then on, and so do those of its copies.

    Raises:
        LoaderError: It goes on from a place that is counted among more workers.
        Exception: The error itself, where other ranks may not have met it.
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


def _print_sharing(loader: Any, strands: int, hosts_file: Path) -> None:
    if strands:
        _print_shared(loader, strands)
    else:
        why_left = _why_local_only(hosts_file, loader.num_workers, loader.world.size)
        _print_local_only(loader, why_left or "so are those of the loader that it was copied from")


@functools.cache  # it does not change as long as the job lasts
def _partitions(hosts_file: Path, world_size: int) -> int:
    from headrace.offload.client import partitions_of_rank
    from headrace.offload.hosts_file import HostsFile

    return partitions_of_rank(HostsFile.read(hosts_file), world_size)


def _why_local_only(hosts_file: Path, num_workers: int, world_size: int) -> str:
    """Return why an iterable dataset has no part on other hosts, an empty text where it has."""
    strands = _partitions(hosts_file, world_size)
    if not strands:
        return (
            "it is iterated, and nobody knew when the job began how many cores there would be on "
            "other hosts to share it among; --group NAME=HOSTS:cpus=N says so, --offload auto does "
            "not"
        )
    if num_workers < _MIN_SHARING_WORKERS:
        return (
            f"it is iterated by num_workers={num_workers}, and may not share itself out; with "
            f"num_workers=2 or more it is shared among these and {strands} on auxiliary hosts"
        )
    return ""


def _is_same_on_all_ranks(error: Exception) -> bool:
    """Whether all ranks meet an error, so that all share an iterable dataset as torch does.

    On one alone the ranks would share it among different numbers of workers: samples would be lost
    and come twice, without a word.
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


def _print_shared(loader: Any, strands: int) -> None:
    here, world = loader.num_workers, current_world()
    if world.local_rank:  # the others tell the same
        return
    kind = type(loader.dataset).__name__
    of_each = " in each rank" if world.size > 1 else ""
    sys.stderr.write(
        f"headrace: {kind} is shared among {here + strands} workers{of_each}: {here} here, "
        f"{strands} on auxiliary hosts\n"
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
