"""The checks and defaults of a loader's arguments."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from headrace.core.errors import UsageError
from headrace.core.world import World, current_world, usable_cores
from headrace.data.loader.dataset_protocol import NativeDataset

_BATCHES_AHEAD_PER_WORKER = 2  # as torch's prefetch_factor


def whole_number(name: str, value: Any) -> int:
    """Return an argument as an int, also NumPy's; UsageError for 4.0, "4", None, True."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise UsageError(f"{name}={value!r} is no whole number. Give one, as an int.")


def whole_number_or_none(name: str, value: Any) -> int | None:
    """Return an argument as an int, or None where it is not given; raises UsageError."""
    return None if value is None else whole_number(name, value)


def batch_sizes(batch_size: int | None, global_batch: int | None, world: World) -> tuple[int, int]:
    """Return (batch size of this rank, global batch size); raises UsageError."""
    batch_size = whole_number_or_none("batch_size", batch_size)
    global_batch = whole_number_or_none("global_batch", global_batch)
    if global_batch is None:
        size = 1 if batch_size is None else batch_size
        if size < 1:
            raise UsageError(f"batch_size={size}: a batch holds at least one sample.")
        return size, size * world.size
    if batch_size not in {None, 1}:
        raise UsageError(
            f"batch_size={batch_size} and global_batch={global_batch}: give one of them. "
            f"global_batch stays the same at every world size; batch_size is per rank."
        )
    if global_batch < 1 or global_batch % world.size:
        below = max(global_batch // world.size, 1) * world.size
        raise UsageError(
            f"global_batch={global_batch} is not divisible by the world size {world.size}. The "
            f"nearest that are: {below} and {below + world.size}."
        )
    return global_batch // world.size, global_batch


def check_exclusive(
    *,
    iterable: bool,
    shuffle: bool,
    drop_last: bool,
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[Any] | None,
    sizes: tuple[int | None, int | None],
) -> None:
    """Raise UsageError for arguments that exclude one another, as torch's DataLoader does.

    `sizes` are `batch_size` and `global_batch`.
    """
    batch_size, global_batch = sizes
    if iterable and (shuffle or sampler is not None or batch_sampler is not None):
        raise UsageError(
            "An iterable dataset decides its own order: shuffle, sampler and batch_sampler cannot "
            "be given with it. Shuffle in the dataset, or use a map-style dataset."
        )
    if sampler is not None and shuffle:
        raise UsageError("sampler and shuffle=True exclude one another: the sampler is the order.")
    if batch_sampler is not None and (
        batch_size not in {None, 1}
        or global_batch is not None
        or shuffle
        or sampler is not None
        or drop_last
    ):
        raise UsageError(
            "batch_sampler excludes batch_size, global_batch, shuffle, sampler and drop_last: it "
            "decides them."
        )
    if batch_size is None and global_batch is None and drop_last:
        raise UsageError("batch_size=None gives single samples: drop_last has nothing to drop.")


def checked_lanes(lanes: Any, window: Any) -> tuple[int | None, int | None]:
    """Return lanes and window as ints, None where they are not given; raises UsageError."""
    return whole_number_or_none("lanes", lanes), whole_number_or_none("window", window)


def check_executor(executor: object, timeout_s: Any) -> None:
    """Raise UsageError for an unknown executor or a deadline that is not positive."""
    if isinstance(executor, str) and executor != "processes":
        raise UsageError(f"executor={executor!r}: give 'processes', or an executor object.")
    if not (isinstance(timeout_s, Real) and float(timeout_s) > 0):
        raise UsageError(f"timeout_s={timeout_s!r}: give more than 0 seconds, as a number.")


def is_iterable(dataset: Any) -> bool:
    """Return whether torch would iterate a dataset rather than index it."""
    return not hasattr(dataset, "__getitem__") or isinstance(dataset, IterableDataset)


def draw_seed(generator: torch.Generator) -> int:
    """Return a seed drawn from a generator; UsageError: it is none."""
    if not isinstance(generator, torch.Generator):
        raise UsageError(f"generator={generator!r} is no torch.Generator. Give seed= for a number.")
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def check_world_unchanged(made_for: World) -> None:
    """Raise UsageError where the process group was set up after a loader was made for one rank."""
    now = current_world()
    if now.size > 1 and (now.rank, now.size) != (made_for.rank, made_for.size):
        raise UsageError(
            f"This loader was made for rank {made_for.rank} of {made_for.size}, and this is rank "
            f"{now.rank} of {now.size} by now. Make it after init_process_group (or "
            "headrace.prepare), or give it rank= and world=."
        )


def resolve_workers(num_workers: int | Literal["auto"], world: World, most: int | None) -> int:
    """Return the number of worker processes; raises UsageError.

    "auto" is this rank's share of the host's cores, `most` at most where that is given: an iterable
    dataset need not share its samples among workers, and Ray makes the batches of its own.
    """
    if num_workers == "auto":
        share = max(1, usable_cores() // world.local_size)
        return share if most is None else min(share, most)
    try:
        workers = whole_number("num_workers", num_workers)
    except UsageError:
        workers = -1
    if workers < 0:
        raise UsageError(f"num_workers={num_workers!r}: give 0 or more, or 'auto'.")
    return workers


def resolve_prefetch(batches: int | None, factor: int | None, workers: int) -> int:
    """Return the number of batches made ahead; raises UsageError."""
    batches = whole_number_or_none("prefetch_batches", batches)
    factor = whole_number_or_none("prefetch_factor", factor)
    if batches is not None and factor is not None:
        raise UsageError("prefetch_batches and prefetch_factor exclude one another: give one.")
    if (batches is not None and batches < 1) or (factor is not None and factor < 1):
        raise UsageError("prefetch_batches and prefetch_factor are 1 or more.")
    if batches is not None:
        return batches
    return max(workers, 1) * (factor or _BATCHES_AHEAD_PER_WORKER)


def dataset_shape(dataset: Any) -> tuple[str, int, NDArray[np.int64] | None]:
    """Return (fingerprint, samples, shard sizes or None) of a map-style dataset.

    Without a fingerprint of its own a dataset is identified by its type and length.
    """
    samples = len(dataset)
    if samples < 1:
        raise UsageError(f"The dataset ({type(dataset).__name__}) is empty: nothing to load.")
    if isinstance(dataset, NativeDataset):
        return dataset.fingerprint, samples, dataset.shard_sizes
    return f"{type(dataset).__qualname__}:{samples}", samples, None
