"""Loaders of a script whose batches auxiliary hosts make, too, without a change to the script.

torch's DataLoader keeps its class, which trainers subclass and rebuild; where it makes an iterator,
ours is made instead. Headrace's own loader gets an executor with help.
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
from headrace.core.after_import import after_import
from headrace.core.errors import HeadraceError
from headrace.core.files import allow_many_files


def prepare_offload() -> None:
    """Have auxiliary hosts make batches of every map-style loader that this process iterates."""
    hosts_file = Path(env.OFFLOAD.get() or "")
    env.note_begun_with()
    allow_many_files()
    after_import("torch.utils.data.dataloader", lambda module: _hook_torch(module, hosts_file))
    after_import("headrace.data.loader.loader", lambda module: _hook_own(module, hosts_file))


def _hook_torch(module: ModuleType, hosts_file: Path) -> None:
    original = module.DataLoader._get_iterator  # noqa: SLF001 - there is no public place
    left: WeakSet[Any] = WeakSet()  # loaders that stay as they are

    @functools.wraps(original)
    def _get_iterator(loader: Any) -> Any:
        from headrace.data.loader.torch_iterator import ExecutorIterator, may_be_taken

        if loader in left:
            return original(loader)
        if not may_be_taken(loader):
            left.add(loader)
            _tell_left(loader, "its dataset is iterated, not indexed")
            return original(loader)
        before = _generator_state(loader)
        try:
            return ExecutorIterator(loader, _helper_from(hosts_file))
        except (HeadraceError, OSError) as error:  # whatever it is, torch's own may do
            left.add(loader)
            _tell_left(loader, str(error))
            _set_generator_state(loader, before)  # the seed is drawn once, as without us
            return original(loader)

    module.DataLoader._get_iterator = _get_iterator  # noqa: SLF001 - likewise


def _hook_own(module: ModuleType, hosts_file: Path) -> None:
    loader_class = module.DataLoader
    original = loader_class._new_executor  # noqa: SLF001 - scripts have no part in it

    @functools.wraps(original)
    def _new_executor(loader: Any) -> Any:
        if loader.iterable:
            return original(loader)
        try:
            return original(loader, _helper_from(hosts_file)(loader.world))
        except (HeadraceError, OSError) as error:
            _tell_left(loader, str(error))
            return original(loader)

    loader_class._new_executor = _new_executor  # noqa: SLF001 - likewise


def _helper_from(hosts_file: Path) -> Callable[[Any], Any]:
    def make(world: Any) -> Any:
        from headrace.cluster.offload.helper import AuxiliaryHelper

        return AuxiliaryHelper(hosts_file, world)

    return make


def _tell_left(loader: Any, why: str) -> None:
    kind = type(loader.dataset).__name__
    sys.stderr.write(f"headrace: batches of {kind} are made on this host alone: {why}\n")


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
