"""A `default_collate` without torch that copies each sample straight to its row of the batch.

It behaves as `torch.utils.data.default_collate`: arrays, tensors and numbers are stacked to
tensors, dicts and sequences are collated element by element, strings and bytes become lists. Where
a sample holds another type (one that the user has registered with torch, say), torch's function is
called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.data.loader.serialization import Arena, PlacedArray, place_array


class UnsupportedTypeError(TypeError):
    """A sample holds a type that this module does not collate; torch's function is used."""


class BatchColumn(Protocol):
    """The values of one field of the samples, gathered over the batch."""

    def add(self, row: int, value: Any) -> None:
        """Store the value of sample number `row`."""

    def result(self) -> Any:
        """Return the collated values."""


def collate(samples: Iterator[Any], count: int, arena: Arena) -> Any:
    """Collate `count` samples as they come, writing each to its row in `arena` at once.

    Raises UnsupportedTypeError for a type that only torch's `default_collate` may know, and
    ValueError, TypeError or KeyError where samples differ in shape, type or fields.
    """
    first = next(samples)
    column = column_for(first, count, arena)
    column.add(0, first)
    row = 0
    for row, sample in enumerate(samples, start=1):
        column.add(row, sample)
    if row + 1 != count:
        raise ValueError(f"{count} samples were announced and {row + 1} came")
    return column.result()


_PLAIN_NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64}  # torch's dtypes for them


def column_for(example: Any, count: int, arena: Arena) -> BatchColumn:
    """Return a column for values like `example`; raises UnsupportedTypeError."""
    column: BatchColumn
    torch = sys.modules.get("torch")
    match example:
        case np.ndarray():
            column = _ArrayColumn(example, count, arena)
        case np.generic():
            column = _NumberColumn(type(example), example.dtype, count, arena)
        case bool() | int() | float() if type(example) in _PLAIN_NUMBERS:
            dtype = np.dtype(_PLAIN_NUMBERS[type(example)])
            column = _NumberColumn(type(example), dtype, count, arena)
        case str() | bytes():
            column = _ListColumn(count, list)
        case dict() if type(example) is dict:
            column = _DictColumn(example, count, arena)
        case tuple() | list():
            column = _SequenceColumn(example, count, arena)
        case _ if torch is not None and isinstance(example, torch.Tensor):
            column = _tensor_column(example, count, arena, torch)
        case _:
            raise UnsupportedTypeError(f"cannot place a {type(example).__name__}")
    return column


class _ArrayColumn:
    def __init__(self, example: NDArray[Any], count: int, arena: Arena) -> None:
        if example.dtype.kind not in "biufc":
            raise UnsupportedTypeError(f"cannot place an array of {example.dtype}")
        self._shape, self._dtype, self._row_bytes = example.shape, example.dtype, example.nbytes
        self._placed = place_array(arena, "tensor", example.dtype, (count, *example.shape))
        self._arena = arena

    def add(self, row: int, value: NDArray[Any]) -> None:
        if value.shape != self._shape:
            raise ValueError(
                f"sample {row} of the batch has an array of shape {value.shape} where sample 0 has "
                f"{self._shape}. Bring them to one size in the transform, or give a "
                f"collate_fn that can batch arrays of different sizes."
            )
        if value.dtype != self._dtype:
            # torch promotes a stack of different dtypes, so it collates the whole batch.
            raise UnsupportedTypeError(f"dtypes {value.dtype} and {self._dtype} in one batch")
        self._arena.write(self._placed.offset, row * self._row_bytes, value)

    def result(self) -> PlacedArray:
        return self._placed


class _TensorColumn(_ArrayColumn):
    def add(self, row: int, value: Any) -> None:
        super().add(row, value.numpy())


def _tensor_column(example: Any, count: int, arena: Arena, torch: Any) -> BatchColumn:
    plain = (
        type(example) is torch.Tensor
        and example.device.type == "cpu"
        and example.layout is torch.strided
        and not example.requires_grad
        and example.dtype is not torch.bfloat16
        and not example.is_quantized
        and not example.is_conj()
        and not example.is_neg()
        and "float8" not in str(example.dtype)
    )
    if not plain:
        raise UnsupportedTypeError(
            f"cannot place a {example.dtype} tensor of {type(example).__name__}"
        )
    return _TensorColumn(example.numpy(), count, arena)


class _NumberColumn:
    def __init__(self, kind: type, dtype: np.dtype[Any], count: int, arena: Arena) -> None:
        if dtype.kind not in "biufc":
            raise UnsupportedTypeError(f"cannot place a number of {dtype}")
        self._kind = kind
        self._placed = place_array(arena, "tensor", dtype, (count,))
        self._arena = arena
        self._rows = np.empty(count, dtype)

    def add(self, row: int, value: Any) -> None:
        if type(value) is not self._kind:
            raise UnsupportedTypeError(
                f"{self._kind.__name__} and {type(value).__name__} in one batch"
            )
        self._rows[row] = value

    def result(self) -> PlacedArray:
        self._arena.write(self._placed.offset, 0, self._rows)
        return self._placed


class _ListColumn:
    def __init__(self, count: int, make: type[list[Any] | tuple[Any, ...]]) -> None:
        self._values: list[Any] = [None] * count
        self._make = make

    def add(self, row: int, value: Any) -> None:
        self._values[row] = value

    def result(self) -> Any:
        return self._make(self._values)


class _DictColumn:
    def __init__(self, example: Mapping[Any, Any], count: int, arena: Arena) -> None:
        self._columns = {name: column_for(value, count, arena) for name, value in example.items()}

    def add(self, row: int, value: Mapping[Any, Any]) -> None:
        for name, column in self._columns.items():
            if name not in value:
                raise KeyError(
                    f"sample {row} of the batch has no {name!r}; it has {sorted(map(str, value))}"
                )
            column.add(row, value[name])

    def result(self) -> dict[Any, Any]:
        return {name: column.result() for name, column in self._columns.items()}


class _SequenceColumn:
    def __init__(self, example: Sequence[Any], count: int, arena: Arena) -> None:
        self._columns: list[BatchColumn] = [
            # In sequences torch makes strings tuples.
            _ListColumn(count, tuple)
            if isinstance(value, (str, bytes))
            else column_for(value, count, arena)
            for value in example
        ]
        # As in torch, a tuple becomes a list, a named tuple stays one.
        self._make: Callable[[list[Any]], Any] = getattr(type(example), "_make", list)
        if self._make is list and type(example) not in {tuple, list}:
            raise UnsupportedTypeError(f"cannot place a {type(example).__name__}")

    def add(self, row: int, value: Sequence[Any]) -> None:
        if len(value) != len(self._columns):
            raise ValueError(
                f"sample {row} of the batch has {len(value)} members, sample 0 has "
                f"{len(self._columns)}"
            )
        for column, member in zip(self._columns, value, strict=True):
            column.add(row, member)

    def result(self) -> Any:
        return self._make([column.result() for column in self._columns])
