"""A run's tables as NumPy columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.core.arrow_arrays import values_of

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Columns: TypeAlias = Mapping[str, NDArray[Any]]


class Tables(Protocol):
    """What holds a run's records, by table; `headrace.records.reading.Records` is one."""

    def table(self, name: str) -> pa.Table:
        """Return a table of `headrace.records.schema`, or `system`."""
        ...


def columns(tables: Tables, name: str) -> Columns:
    """Return a table's columns: text as Python strings, numbers as they are, none missing.

    Args:
        tables: Where the records are.
        name: The table's name.
    """
    return {column: _as_array(values) for column, values in _named(tables.table(name))}


def length(rows: Columns) -> int:
    """Return how many rows there are."""
    return len(next(iter(rows.values()), ()))


def chosen(rows: Columns, where: Flags | Ints) -> Columns:
    """Return the rows that a mask or a list of places chooses."""
    return {name: values[where] for name, values in rows.items()}


def _named(table: pa.Table) -> list[tuple[str, Any]]:
    return [(name, table.column(name)) for name in table.column_names]


def _as_array(values: Any) -> NDArray[Any]:
    kind = values.type
    if pa.types.is_integer(kind):
        if values.null_count:  # "not known", which the schema writes as -1
            values = values.fill_null(-1)
        return np.asarray(values_of(values), dtype=np.int64)
    if pa.types.is_floating(kind):
        known = values.to_numpy() if values.null_count else values_of(values)
        return np.asarray(known, dtype=np.float64)
    return np.array([value if value is not None else "" for value in values.to_pylist()], object)
