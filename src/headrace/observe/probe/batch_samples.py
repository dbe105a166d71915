"""The number of samples in a batch, by what names them or else by the batch's structure.

A sampler's list of indices has as many samples as indices; an iterable dataset is asked for
`batch_size` samples, and gives fewer only at its end. Where neither is there (a dataset that yields
batches), a batch's structure says it if all its parts agree: columns of one length, lists of
samples. What may mean several numbers is unknown: three channels of an image are no three samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_PLAIN = (str, bytes, bool, int, float, type(None))
_DEEPEST, _MOST_LOOKED_AT = 4, 64
FEW_COLUMNS = 3
"""A tuple of so many tensors is a batch's columns; a list of more may hold its samples."""


def samples_in(batch: object, asked_for: int = -1) -> int:
    """Return the samples in a batch by the structure of all its parts; -1 where it does not say.

    `asked_for` samples were asked for, if known: then there are as many, or fewer at the end.
    """
    try:
        sizes = _sizes(batch, 0)
    except Exception:  # noqa: BLE001 - a batch may be any object, with any methods
        sizes = None
    if asked_for >= 0:
        is_short = sizes is not None and len(sizes) == 1 and asked_for not in sizes
        return min(*(sizes or {asked_for}), asked_for) if is_short else asked_for
    return next(iter(sizes)) if sizes is not None and len(sizes) == 1 else -1


def has_one_row(batch: object) -> bool:
    """Return whether a batch's columns begin with an array of one row with several elements."""
    try:
        columns = _columns_of(batch) or (batch if isinstance(batch, (list, tuple)) else [batch])
        shape: Sequence[int] = getattr(next(iter(columns), None), "shape", ())
        return len(shape) > 1 and int(shape[0]) == 1
    except Exception:  # noqa: BLE001 - as above
        return False


def indices_in(index: object) -> int:
    """Return how many samples a sampler's index names; -1 where one index may be a whole batch."""
    try:
        if isinstance(index, slice):
            return _indices_of_slice(index)
        if isinstance(index, (str, bytes, Mapping)) or getattr(index, "shape", None) == ():
            return -1
        return len(index)  # type: ignore[arg-type]  # TypeError where it has none
    except Exception:  # noqa: BLE001 - an index may be any object, such as a slice of times
        return -1


def _indices_of_slice(index: slice) -> int:
    """Return how many indices a slice has; -1 where the dataset's length decides it."""
    start, stop, step = index.start or 0, index.stop, index.step or 1
    return len(range(start, stop, step)) if stop is not None and min(start, stop) >= 0 else -1


def collated_samples(args: Sequence[Any]) -> int:
    """Return the samples that `collate_fn` is called with; -1 where its arguments do not say."""
    return len(args[0]) if args and type(args[0]) is list else -1


def fetched_samples(fetcher: Any, index: object, batch: object, collated: int) -> int:
    """Return the samples of a batch; -1 if unknown, such as for a dataset that yields batches.

    Args:
        fetcher: torch's, which has made the batch.
        index: What the sampler named: an index, or those of a batch.
        batch: The batch.
        collated: How many samples were collated for it; -1 if unknown.
    """
    asked_for = indices_in(index)
    if not hasattr(fetcher, "dataset_iter"):  # a map-style dataset has one sample an index
        return asked_for if asked_for >= 0 or not fetcher.auto_collation else samples_in(batch)
    # An iterable dataset's last batch may be smaller: what was collated counts.
    if fetcher.auto_collation and collated >= 0:
        return collated
    return samples_in(batch, asked_for) if fetcher.auto_collation else samples_in(batch)


def _sizes(value: Any, depth: int) -> set[int] | None:
    """Return how many samples a part may have; None if it says nothing, empty if it cannot be."""
    declared = _declared(value)
    if declared is not None:
        return {declared}
    shape = getattr(value, "shape", None)
    if shape is not None:
        return {int(shape[0])} if len(shape) else None
    if isinstance(value, _PLAIN):
        return None
    columns = _columns_of(value) if depth <= _DEEPEST else []
    if columns:
        return _agreed([_sizes(column, depth + 1) for column in columns])
    is_sequence = isinstance(value, (list, tuple)) and depth <= _DEEPEST
    return _sizes_of_sequence(value, depth) if is_sequence else set()


def _declared(value: Any) -> int | None:
    """Return the samples that a batch itself declares: packed sequences, graphs, TensorDicts."""
    if getattr(value, "is_nested", False):  # torch's nested tensors, which may have no shape
        return int(value.size(0))
    lengths: Any = getattr(value, "batch_sizes", None)  # of a packed sequence, for each time step
    if getattr(lengths, "shape", None):
        return int(lengths[0])
    for name in ("num_graphs", "batch_size"):
        count = getattr(value, name, None)
        if isinstance(count, int) and not isinstance(count, bool):
            return count
        if isinstance(count, tuple) and count:  # a torch.Size
            return int(count[0])
    return None


def _columns_of(value: Any) -> list[Any] | None:
    """Return the columns of a dict, a named tuple or a dataclass; None for anything else."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return None


def _agreed(sizes: Iterable[set[int] | None]) -> set[int] | None:
    """Return the numbers that all parts with a number agree in; None if none has one."""
    known = [each for each in sizes if each is not None]
    return set.intersection(*known) if known else None


def _sizes_of_sequence(value: Sequence[Any], depth: int) -> set[int] | None:
    """Return the numbers of samples of a list or tuple: of its elements, or of its columns."""
    if not value:
        return None
    elements = value[:_MOST_LOOKED_AT]
    if all(isinstance(each, _PLAIN) for each in elements):
        return {len(value)}
    shapes = [getattr(each, "shape", None) for each in elements]
    if all(shape is not None for shape in shapes):
        return _sizes_of_tensors(value, shapes, depth)
    sizes = [_sizes(each, depth + 1) for each in elements]
    if len({_kind(each) for each in elements}) > 1:  # columns, as samples are of one kind
        numbered = sum(each is not None for each in sizes)
        is_sample = numbered == 1 and any(isinstance(each, _PLAIN) for each in elements)
        return set() if is_sample else _agreed(sizes)  # an image and its label
    columns = _agreed(sizes) or set()
    if len(value) > FEW_COLUMNS:
        return {len(value)} if isinstance(value, list) else {len(value)} | columns
    return columns if _are_columns(value, depth) and columns else {len(value)} | columns


def _are_columns(value: Sequence[Any], depth: int) -> bool:
    """Return whether elements of one kind are a batch's columns: a few of them, in a tuple."""
    return isinstance(value, tuple) and depth == 0 and len(value) <= FEW_COLUMNS


def _sizes_of_tensors(value: Sequence[Any], shapes: list[Any], depth: int) -> set[int]:
    """Return the numbers of samples of a list or tuple of tensors of these shapes."""
    firsts = {int(shape[0]) if len(shape) else -1 for shape in shapes}
    same_rank = len({len(shape) for shape in shapes}) == 1
    count = len(value)
    if firsts == {-1}:
        return {count}  # a list of scalars
    if len(firsts) > 1:  # lengths differ: samples, unless these are a few columns
        return {count} if same_rank and count > FEW_COLUMNS else set()
    if not same_rank or _are_columns(value, depth):
        return firsts
    return firsts | {count}


def _kind(value: Any) -> tuple[Any, ...]:
    """Return what tells columns from samples: samples are all of one kind, dicts of one key set."""
    if isinstance(value, Mapping):
        return (type(value), *sorted(map(str, value)))
    if isinstance(value, (list, tuple)) and value:
        return (type(value), type(value[0]), len(value) if isinstance(value, tuple) else 0)
    return (type(value),)
