"""A run's tables as NumPy columns.

A long run has millions of rows. So columns of closed records are read when needed and only the
recent ones are cached, numbers are views of Arrow's memory, equal texts share one Python string,
and rows are selected column by column.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.core.arrow_arrays import column_values

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Columns: TypeAlias = Mapping[str, NDArray[Any]]

_MAX_CACHED_BYTES = 400 << 20


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

    def __init__(self, source: Tables) -> None:
        self._source = source
        self._known: dict[str, Columns] = {}
        self._recent: OrderedDict[tuple[str, str], NDArray[Any]] = OrderedDict()

    def table(self, name: str) -> pa.Table:
        """Return a table of `headrace.records.schema`, or `system`, as it is now."""
        return self._source.table(name)

    def columns(self, name: str) -> Columns:
        """Return a table's columns; see the function of this name."""
        if name not in self._known:
            source = self._source
            stored = source.by_column(name) if isinstance(source, ColumnSource) else None
            self._known[name] = (
                _all_columns(source, name)
                if stored is None
                else _CachedColumns(name, stored, self._recent)
            )
        return self._known[name]


class _LazyColumns(Mapping[str, NDArray[Any]]):
    """Columns with the names of others, each made on access."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


class _CachedColumns(_LazyColumns):
    """Columns of a closed table, with a cache of the recent ones."""

    def __init__(
        self,
        name: str,
        stored: Mapping[str, pa.ChunkedArray[Any]],
        cache: OrderedDict[tuple[str, str], NDArray[Any]],
    ) -> None:
        super().__init__(stored)
        self._name, self._stored, self._cache = name, stored, cache

    def __getitem__(self, column: str) -> NDArray[Any]:
        key = (self._name, column)
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = _as_array(self._stored[column])
            cache_bytes = sum(values.nbytes for values in self._cache.values())
            while cache_bytes > _MAX_CACHED_BYTES and len(self._cache) > 1:
                cache_bytes -= self._cache.popitem(last=False)[1].nbytes
        self._cache.move_to_end(key)
        return found


class _RowSelection(_LazyColumns):
    """Some rows of other columns; each column is selected on access."""

    def __init__(self, rows: Columns, places: Ints | slice, count: int) -> None:
        super().__init__(rows)
        self.rows, self.places, self.count = rows, places, count

    def __getitem__(self, name: str) -> NDArray[Any]:
        chosen: NDArray[Any] = self.rows[name][self.places]
        return chosen


def columns(tables: Tables, name: str) -> Columns:
    """Return a table's columns: text as Python strings, numbers as they are, no missing values.

    The arrays may be views of the table, so they must not be changed.
    """
    return tables.columns(name) if isinstance(tables, CachedTables) else _all_columns(tables, name)


def row_count(rows: Columns) -> int:
    """Return the number of rows."""
    return rows.count if isinstance(rows, _RowSelection) else len(next(iter(rows.values()), ()))


def select_rows(rows: Columns, where: Flags | Ints) -> Columns:
    """Return the rows selected by a mask or by indices."""
    places: Ints = np.asarray(np.flatnonzero(where) if where.dtype == np.bool_ else where)
    below = rows
    # Select from the original rows, so that a column is copied once.
    if isinstance(rows, _RowSelection):
        below, places = rows.rows, _places_in(rows)[places]
    return _RowSelection(below, _as_slice(places), len(places))


def group_rows(rows: Columns, by: Sequence[str]) -> list[Ints]:
    """Return the indices of rows with equal values in some columns, one array for each group.

    Groups are in the order of their first row, and so are the indices in each.
    """
    numbers: dict[tuple[Any, ...], int] = {}
    keys = zip(*(rows[name].tolist() for name in by), strict=True)
    group_of = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    ends = np.cumsum(np.bincount(group_of, minlength=len(numbers)))
    order = np.argsort(group_of, kind="stable")
    return np.split(order, ends[:-1]) if numbers else []


def sum_rows(rows: Columns, *, by: Sequence[str], sums: Sequence[str]) -> Columns:
    """Return one row for each group with equal values in some columns, with the sums of others."""
    groups = group_rows(rows, by)
    first = np.array([places[0] for places in groups], dtype=np.int64)
    added: dict[str, NDArray[Any]] = {name: rows[name][first] for name in by}
    for name in sums:
        values = rows[name]
        added[name] = np.array([values[places].sum() for places in groups], dtype=values.dtype)
    return added


def _places_in(rows: _RowSelection) -> Ints:
    if isinstance(rows.places, slice):
        return np.arange(rows.places.start, rows.places.stop, dtype=np.int64)
    return rows.places


def _as_slice(places: Ints) -> Ints | slice:
    """Return consecutive indices as a slice, so that no column is copied."""
    if len(places) == 0:
        return slice(0, 0)
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 != len(places) or (np.diff(places) != 1).any() or first < 0:
        return places
    return slice(first, last + 1)


def _all_columns(tables: Tables, name: str) -> Columns:
    table = tables.table(name)
    return {column: _as_array(table.column(column)) for column in table.column_names}


def _as_array(values: Any) -> NDArray[Any]:
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _texts(values)
    if pa.types.is_integer(kind):
        if values.null_count:  # unknown, which the schema writes as -1
            values = values.fill_null(-1)
        return np.asarray(column_values(values), dtype=np.int64)
    if pa.types.is_floating(kind):
        known = values.to_numpy() if values.null_count else column_values(values)
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
