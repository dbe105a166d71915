"""The hooks that let a script's loaders also take batches from offload servers.

torch's DataLoader stays as it is, since trainers subclass and rebuild it; only the iterator that it
creates is replaced. Headrace's own loader is given a factory of executors with an offload client.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakSet

from headrace.core import env
from headrace.core.errors import HeadraceError
from headrace.core.files import raise_open_file_limit
from headrace.core.import_hooks import after_import
from headrace.core.loader_hooks import LOADER_HOOKS
from headrace.core.warning_frames import skipped_by_warnings
from headrace.core.world import current_world


def prepare_offload() -> None:
    """Let offload servers make batches for every loader that this process iterates."""
    hosts_file = Path(env.OFFLOAD.get() or "")
    env.record_initial_variables()
    raise_open_file_limit()
    after_import("torch.utils.data.dataloader", lambda module: _hook_torch(module, hosts_file))
    after_import("headrace.data.loader.dataloader", lambda _: _register_executors(hosts_file))


def _register_executors(hosts_file: Path) -> None:
    from headrace.offload.client import OffloadExecutors

    LOADER_HOOKS.executors = OffloadExecutors(hosts_file)


def _hook_torch(module: ModuleType, hosts_file: Path) -> None:
    original = module.DataLoader._get_iterator  # noqa: SLF001 - there is no public method
    local_only: WeakSet[Any] = WeakSet()  # loaders without an offload client
    printed: WeakSet[Any] = WeakSet()  # loaders whose partitions were printed

    @functools.wraps(original)
    @skipped_by_warnings
    def _get_iterator(loader: Any) -> Any:
        import torch

        from headrace.data.loader.torch_iterator import (
            ExecutorIterator,
            is_iterable_loader,
            unsupported_reason,
        )
        from headrace.offload import client

        if loader in local_only:
            return original(loader)
        factory, world_size = client.OffloadExecutors(hosts_file), current_world().size
        reason = unsupported_reason(loader)
        if not reason and is_iterable_loader(loader):
            reason = factory.local_only_reason(loader.num_workers, world_size)
        if reason:
            local_only.add(loader)
            client.print_local_only(loader, reason)
            return original(loader)
        generator = loader.generator or torch.default_generator
        before = generator.get_state()
        try:
            iterator = ExecutorIterator(loader, functools.partial(client.OffloadClient, hosts_file))
        except (HeadraceError, OSError) as error:  # torch's own iterator may still work
            if is_iterable_loader(loader) and not client.is_same_on_all_ranks(error):
                raise
            local_only.add(loader)
            client.print_local_only(loader, str(error))
            generator.set_state(before)  # the seed is drawn once, as without the hook
            return original(loader)
        if is_iterable_loader(loader) and loader not in printed:
            printed.add(loader)
            client.print_shared(loader, factory.partitions(world_size))
        return iterator

    module.DataLoader._get_iterator = _get_iterator  # noqa: SLF001 - as above
    name_bypassing_loaders(module, local_only)


def name_bypassing_loaders(module: ModuleType, local_only: WeakSet[Any]) -> None:
    """Print which loaders make their iterators themselves, so that no offload client is in them."""
    original = module._BaseDataLoaderIter.__init__  # noqa: SLF001 - base of all torch iterators

    @functools.wraps(original)
    @skipped_by_warnings
    def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(iterator, loader, *args, **kwargs)
        if loader in local_only or hasattr(iterator, "take_order_ns"):  # one of ours
            return
        from headrace.offload import client

        local_only.add(loader)
        client.print_local_only(
            loader, f"its loader, a {type(loader).__name__}, makes its iterators itself"
        )

    module._BaseDataLoaderIter.__init__ = __init__  # noqa: SLF001 - as above
