"""Recorded tables as Arrow: their schemas, and record batches from rows or from a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow_arrays import numbers, strings
from headrace.records import system
from headrace.records.schema import BY_NAME, FORMAT_VERSION, Kind
from headrace.records.store import system_columns

FORMAT_KEY = b"headrace_records_format"
_BATCH_ROWS = 32_768
_TYPES: dict[Kind, pa.DataType] = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}


def schema_of(name: str, columns: Sequence[str] = ()) -> pa.Schema:
    """Return a table's schema; for `system`, of the columns that the host has.

    Raises:
        KeyError: There is no such table.
    """
    if name == system.NAME:
        types: dict[bool, pa.DataType] = {True: pa.int64(), False: pa.float32()}
        fields = [
            pa.field(column, types[system.described(column).whole])
            for column in columns or ("t_ns",)
        ]
    else:
        fields = [pa.field(field.name, _TYPES[field.kind]) for field in BY_NAME[name].fields]
    return pa.schema(fields, metadata={FORMAT_KEY: str(FORMAT_VERSION).encode()})


def batch_of(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows, in the order of the schema's fields, as one record batch."""
    columns: list[Sequence[Any]] = (
        list(zip(*rows, strict=True)) if rows else [()] * len(schema.names)
    )
    arrays = [_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array[Any]:
    if None in values:  # a metric that was not there at that moment
        return pa.array(values, type=kind)
    if kind == pa.string():
        return strings(values)
    return numbers(np.asarray(values, dtype=kind.to_pandas_dtype()), kind)


def stored_schema(connection: sqlite3.Connection, name: str) -> pa.Schema:
    """Return the schema of a store's table."""
    return schema_of(name, system_columns(connection))


def stored_batches(connection: sqlite3.Connection, name: str) -> Iterator[pa.RecordBatch]:
    """Yield a store's table, in the order in which the rows were added.

    Fields that it does not have, of an older version, are null.
    """
    schema = stored_schema(connection, name)
    present = {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
    cursor = connection.execute(_selection(name, schema.names, present))
    while rows := cursor.fetchmany(_BATCH_ROWS):
        yield batch_of(schema, rows)


def _selection(name: str, columns: Sequence[str], present: AbstractSet[str]) -> str:
    if name == system.NAME:
        return f"SELECT {', '.join(columns)} FROM {name} ORDER BY rowid"  # noqa: S608
    chosen, joins = [], []
    for field in BY_NAME[name].fields:
        if field.name not in present:
            chosen.append("NULL")
        elif field.kind == "text":
            joins.append(f"LEFT JOIN texts AS {field.name}_ ON {field.name}_.id = t.{field.name}")
            chosen.append(f"{field.name}_.text")
        else:
            chosen.append(f"t.{field.name}")
    return f"SELECT {', '.join(chosen)} FROM {name} AS t {' '.join(joins)} ORDER BY t.rowid"  # noqa: S608
