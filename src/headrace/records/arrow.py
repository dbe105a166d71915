"""Recorded tables as Arrow: their schemas, and record batches from rows or from a store.

Text is dictionary-encoded: a table holds each text once, and a number for it in every row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow_arrays import coded_strings, numbers
from headrace.records import system
from headrace.records.schema import BY_NAME, FORMAT_VERSION, LATER, Kind

FORMAT_KEY = b"headrace_records_format"
TEXT = pa.dictionary(pa.int32(), pa.string())
_BATCH_ROWS = 32_768
_TYPES: dict[Kind, pa.DataType] = {"int": pa.int64(), "float": pa.float64(), "text": TEXT}


def schema_of(name: str, columns: Sequence[str] = ()) -> pa.Schema:
    """Return a table's schema; for `system`, of the columns that the host has.

    Raises:
        KeyError: There is no such table.
    """
    if name == system.NAME:
        types: dict[bool, pa.DataType] = {True: pa.int64(), False: pa.float32()}
        fields = [
            pa.field(column, types[system.described(column).whole])
            for column in columns or (system.MOMENT,)
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


def in_one_piece(table: pa.Table) -> pa.Table:
    """Return a table whose columns are in one piece, each text in it once.

    What is in one piece already is not copied.
    """
    return table.unify_dictionaries().combine_chunks()


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array[Any]:
    if kind == TEXT:
        return coded_strings(values)
    if None in values:  # a metric that was not there at that moment
        return pa.array(values, type=kind)
    return numbers(np.asarray(values, dtype=kind.to_pandas_dtype()), kind)


def stored_schema(connection: sqlite3.Connection, name: str) -> pa.Schema:
    """Return the schema of a store's table."""
    return schema_of(name, system.columns_in(connection))


def stored_batches(
    connection: sqlite3.Connection, name: str, condition: str = "1"
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a store's table, in the order in which they were added.

    Args:
        connection: The store, open.
        name: The table's name.
        condition: Which rows, in SQL, the table being `t`; all by default.
    """
    schema = stored_schema(connection, name)
    texts = _Texts(connection)
    places = BY_NAME[name].text_places if name != system.NAME else ()
    present = {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
    if not present and name in LATER:
        return
    # An older version's store lacks what was added since.
    chosen = ", ".join(f"t.{column}" if column in present else "NULL" for column in schema.names)
    cursor = connection.execute(
        f"SELECT {chosen} FROM {name} AS t WHERE {condition} ORDER BY t.rowid"  # noqa: S608
    )
    while rows := cursor.fetchmany(_BATCH_ROWS):
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        for place in places:
            columns[place] = texts.of(columns[place])
        arrays = [_array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Texts:
    """The texts of a store by their numbers, each read when it is first met."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[int, str | None] = {}

    def of(self, ids: Sequence[int]) -> list[str | None]:
        """Return texts; None where the store has none of that number."""
        for each in set(ids) - self._known.keys():
            found = self._connection.execute("SELECT text FROM texts WHERE id = ?", (each,))
            self._known[each] = next((text for (text,) in found), None)
        return [self._known[each] for each in ids]
