"""A run's tables as NumPy columns.

A long run has millions of rows. So columns of closed records are read when needed and only the
recent ones are cached, numbers are views of Arrow's memory, equal texts share one Python string,
and rows are selected column by column.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.core.arrow_arrays import column_values
from headrace.observe.whatif.loader_numbers import Changes, RenumberedRows, changed_numbers

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

_MAX_CACHED_BYTES = 400 << 20
FEW_CACHED_BYTES = 64 << 20
"""For what reads most columns once or twice: the largest of a run of millions of steps."""


class Columns(Mapping[str, NDArray[Any]]):
    """The columns of some rows: text as Python strings, numbers as they are, no missing values.

    The arrays may be views of the table, so they must not be changed.

    Args:
        stored: The columns of all rows.
        places: Which of the rows; None: all.
    """

    def __init__(
        self, stored: Mapping[str, NDArray[Any]], places: Ints | slice | None = None
    ) -> None:
        self._stored, self._places = stored, places

    def __getitem__(self, name: str) -> NDArray[Any]:
        values = self._stored[name]
        return values if self._places is None else values[self._places]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, name: object) -> bool:  # without reading the column
        return name in self._stored

    @property
    def count(self) -> int:
        """The number of rows."""
        if isinstance(self._places, slice):
            return int(self._places.stop - self._places.start)
        return len(next(iter(self._stored.values()), ()) if self._places is None else self._places)

    def where(self, wanted: Flags | Ints) -> Columns:
        """Return the rows selected by a mask or by indices, from 0 on."""
        places: Ints = np.asarray(np.flatnonzero(wanted) if wanted.dtype == np.bool_ else wanted)
        # Select from the stored rows, so that a column is copied once.
        if isinstance(self._places, slice):
            places = places + self._places.start
        elif self._places is not None:
            places = self._places[places]
        return Columns(self._stored, _as_slice(places))

    def having(self, **values: Any) -> Columns:
        """Return the rows with these values, by column."""
        return self.where(
            np.logical_and.reduce([self[name] == value for name, value in values.items()])
        )

    def followed_by(self, other: Columns) -> Columns:
        """Return these rows and then those of another one, which has the same columns."""
        return Columns({name: np.concatenate((self[name], other[name])) for name in self})

    def group(self, *by: str) -> list[Ints]:
        """Return the indices of rows with equal values in some columns, one array for each group.

        Groups are in the order of their first row, and so are the indices in each.
        """
        numbers: dict[tuple[Any, ...], int] = {}
        keys = zip(*(self[name].tolist() for name in by), strict=True)
        group_of = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
        ends = np.cumsum(np.bincount(group_of, minlength=len(numbers)))
        order = np.argsort(group_of, kind="stable")
        return np.split(order, ends[:-1]) if numbers else []

    def split(self, *by: str) -> dict[tuple[int, ...], Columns]:
        """Return the rows by the values of some columns of numbers, in the order of these."""
        if not self.count:
            return {}
        keys = np.column_stack([self[name] for name in by])
        order = np.lexsort(keys.T[::-1])
        keys = keys[order]
        begins = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(axis=1)))
        ends = np.append(begins[1:], len(keys))
        return {
            tuple(keys[begin].tolist()): self.where(order[begin:end])
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        }

    def summed(self, *, by: Sequence[str], sums: Sequence[str]) -> Columns:
        """Return a row for each group with equal values in some columns, with sums of others."""
        groups = self.group(*by)
        first = np.array([places[0] for places in groups], dtype=np.int64)
        added: dict[str, NDArray[Any]] = {name: self[name][first] for name in by}
        for name in sums:
            values = self[name]
            added[name] = np.array([values[places].sum() for places in groups], dtype=values.dtype)
        return Columns(added)


class Tables(Protocol):
    """A run's records by table, such as `headrace.records.reader.Records`."""

    def table(self, name: str) -> pa.Table:
        """Return a table of `headrace.records.schema`, or `system`."""
        ...


@runtime_checkable
class ColumnSource(Protocol):
    """Records whose tables may be read column by column."""

    def by_column(self, name: str) -> Mapping[str, pa.ChunkedArray[Any]] | None:
        """Return a table's columns, each read on access; None: read the whole table."""
        ...


class CachedTables:
    """Tables at one moment, each read on first access.

    A live run's tables grow, so their columns are read at once. Closed tables do not change; of
    their columns only the recent ones are cached, up to a number of bytes.
    """

    def __init__(self, source: Tables, most_bytes: int = _MAX_CACHED_BYTES) -> None:
        self._source = source
        self._most_bytes = most_bytes
        self._known: dict[str, Columns] = {}
        self._recent: OrderedDict[tuple[str, str], NDArray[Any]] = OrderedDict()

    @property
    def source(self) -> Tables:
        """Where the tables come from."""
        return self._source

    def table(self, name: str) -> pa.Table:
        """Return a table of `headrace.records.schema`, or `system`, as it is now."""
        return self._source.table(name)

    def columns(self, name: str) -> Columns:
        """Return a table's columns; see the function of this name.

        A loader has one number on all ranks: see `loader_numbers`.
        """
        if name not in self._known:
            found = self._stored(name)
            is_numbered = "loader" in found and "rank" in found
            if is_numbered and (changes := self._changed_loaders):
                found = Columns(RenumberedRows(found, changes))
            self._known[name] = found
        return self._known[name]

    @cached_property
    def _changed_loaders(self) -> Changes:
        return changed_numbers(self._stored("loaders"))

    def _stored(self, name: str) -> Columns:
        source = self._source
        stored = source.by_column(name) if isinstance(source, ColumnSource) else None
        if stored is None:
            return _all_columns(source, name)
        return Columns(_StoredColumns(name, stored, self._recent, self._most_bytes))

    def forget(self, but: Collection[str]) -> None:
        """Let go of the memory of all tables but some, which are read again when needed."""
        self._known = {name: found for name, found in self._known.items() if name in but}


class _StoredColumns(Mapping[str, NDArray[Any]]):
    """Columns of a closed table, each read on access, with a cache of the recent ones."""

    def __init__(
        self,
        name: str,
        stored: Mapping[str, pa.ChunkedArray[Any]],
        cache: OrderedDict[tuple[str, str], NDArray[Any]],
        most_bytes: int,
    ) -> None:
        self._name, self._stored, self._cache = name, stored, cache
        self._most_bytes = most_bytes

    def __getitem__(self, column: str) -> NDArray[Any]:
        key = (self._name, column)
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = _as_array(self._stored[column])
            cache_bytes = sum(values.nbytes for values in self._cache.values())
            while cache_bytes > self._most_bytes and len(self._cache) > 1:
                cache_bytes -= self._cache.popitem(last=False)[1].nbytes
        self._cache.move_to_end(key)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, name: object) -> bool:
        return name in self._stored


class CoveredTime:
    """The time that the union of some intervals covers.

    Args:
        start: When each interval begins.
        end: When it ends.
    """

    def __init__(self, start: Floats, end: Floats) -> None:
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        start = np.maximum(start, np.append(start[:1], end[:-1]))  # overlaps count once
        end = np.maximum(start, end)
        done = np.append(0.0, np.cumsum(end - start))
        self._bounds = np.column_stack((start, end)).ravel()
        self._covered = np.column_stack((done[:-1], done[1:])).ravel()

    def before(self, times: Floats) -> Floats:
        """Return how much of the time before each moment is covered."""
        if len(self._bounds) == 0:
            return np.zeros(len(times))
        return np.asarray(np.interp(times, self._bounds, self._covered))


def covered_before(start: Floats, end: Floats, times: Floats) -> Floats:
    """Return how much of the time before each moment some intervals cover: see `CoveredTime`."""
    return CoveredTime(start, end).before(times)


def columns(tables: Tables, name: str) -> Columns:
    """Return a table's columns."""
    return tables.columns(name) if isinstance(tables, CachedTables) else _all_columns(tables, name)


def _as_slice(places: Ints) -> Ints | slice:
    """Return consecutive indices as a slice, so that no column is copied."""
    if len(places) == 0:
        return slice(0, 0)
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 != len(places) or (np.diff(places) != 1).any() or first < 0:
        return places
    return slice(first, last + 1)


class _ReadColumns(Mapping[str, NDArray[Any]]):
    """Columns of a table in memory, each converted on first access: hosts have hundreds of them."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._known: dict[str, NDArray[Any]] = {}

    def __getitem__(self, column: str) -> NDArray[Any]:
        found = self._known.get(column)
        if found is None:
            if column not in self._table.column_names:
                raise KeyError(column)
            stored = self._table.column(column)
            found = _as_array(stored)
            if not pa.types.is_floating(stored.type):  # those of hosts would take twice their room
                self._known[column] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.column_names)

    def __len__(self) -> int:
        return self._table.num_columns

    def __contains__(self, name: object) -> bool:
        return name in self._table.column_names


def _all_columns(tables: Tables, name: str) -> Columns:
    return Columns(_ReadColumns(tables.table(name)))


def _as_array(values: Any) -> NDArray[Any]:
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _texts(values)
    if pa.types.is_integer(kind):
        if values.null_count:  # unknown, which the schema writes as -1
            values = values.fill_null(-1)
        return np.asarray(column_values(values), dtype=np.int64)
    if pa.types.is_floating(kind):
        known = column_values(values.fill_null(float("nan")) if values.null_count else values)
        return np.asarray(known, dtype=np.float64)
    return np.array([value if value is not None else "" for value in values.to_pylist()], object)


def _texts(values: Any) -> NDArray[Any]:
    """Return text as an array in which equal texts are one string."""
    parts: list[NDArray[Any]] = [np.empty(0, object)]
    for chunk in values.chunks:
        known = np.array([*chunk.dictionary.to_pylist(), ""], object)
        codes = chunk.indices.fill_null(len(known) - 1) if chunk.null_count else chunk.indices
        parts.append(known[column_values(pa.chunked_array([codes]))])
    return parts[1] if len(parts) == 2 else np.concatenate(parts)
