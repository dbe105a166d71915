"""Recorded tables as Arrow and Parquet: schemas, batches from a store, files.

Text is dictionary-encoded: a table holds each text once, and its number in every row. A closed
table is a file that is read by column. A store is written to files part by part in a long run, and
completely at the end.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headrace.core.arrow_arrays import column_values, dictionary_strings, numbers
from headrace.core.errors import RecordsError
from headrace.core.files import sync_folder
from headrace.records import system_table
from headrace.records.layout import PARQUET, PARTS_FOLDER, part_files
from headrace.records.schema import (
    FORMAT_VERSION,
    OPTIONAL_TABLES,
    TABLES_BY_NAME,
    Kind,
    check_version,
)

if TYPE_CHECKING:
    from headrace.records.store import RecordStore

FORMAT_KEY = b"headrace_records_format"
TEXT = pa.dictionary(pa.int32(), pa.string())
_BATCH_ROWS = 32_768
_TYPES: dict[Kind, pa.DataType] = {"int": pa.int64(), "float": pa.float64(), "text": TEXT}


def arrow_schema(name: str, columns: Sequence[str] = ()) -> pa.Schema:
    """Return a table's schema, for `system` with the host's columns; KeyError: no such table."""
    if name == system_table.NAME:
        types: dict[bool, pa.DataType] = {True: pa.int64(), False: pa.float32()}
        fields = [
            pa.field(column, types[system_table.column_description(column).whole])
            for column in columns or (system_table.TIME_COLUMN,)
        ]
    else:
        fields = [pa.field(field.name, _TYPES[field.kind]) for field in TABLES_BY_NAME[name].fields]
    return pa.schema(fields, metadata={FORMAT_KEY: str(FORMAT_VERSION).encode()})


def record_batch(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows, in the order of the schema's fields, as one record batch."""
    columns: list[Sequence[Any]] = (
        list(zip(*rows, strict=True)) if rows else [()] * len(schema.names)
    )
    arrays = [
        _arrow_array(column, field.type) for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def combined_table(table: pa.Table) -> pa.Table:
    """Return a table with one chunk a column, copied only where it has several."""
    return table.unify_dictionaries().combine_chunks()


def _arrow_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array[Any]:
    if kind == TEXT:
        return dictionary_strings(values)
    if None in values:  # a metric without a value
        return pa.array(values, type=kind)
    return numbers(np.asarray(values, dtype=kind.to_pandas_dtype()), kind)


def stored_schema(connection: sqlite3.Connection, name: str) -> pa.Schema:
    """Return the schema of a store's table."""
    return arrow_schema(name, system_table.stored_columns(connection))


def stored_batches(
    connection: sqlite3.Connection, name: str, condition: str = "1"
) -> Iterator[pa.RecordBatch]:
    """Yield the rows `t` of a store's table for an SQL condition, in the order they were added."""
    schema = stored_schema(connection, name)

    @cache
    def text_of(number: int) -> str | None:  # None for a number that the store lacks
        found = connection.execute("SELECT text FROM texts WHERE id = ?", (number,))
        return next((text for (text,) in found), None)

    text_indexes = TABLES_BY_NAME[name].text_indexes if name != system_table.NAME else ()
    present = {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
    if not present and name in OPTIONAL_TABLES:
        return
    # A store of an older version lacks newer columns.
    chosen = ", ".join(f"t.{column}" if column in present else "NULL" for column in schema.names)
    cursor = connection.execute(
        f"SELECT {chosen} FROM {name} AS t WHERE {condition} ORDER BY t.rowid"  # noqa: S608
    )
    while rows := cursor.fetchmany(_BATCH_ROWS):
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        for index in text_indexes:
            columns[index] = [text_of(number) for number in columns[index]]
        arrays = [
            _arrow_array(column, kind) for column, kind in zip(columns, schema.types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class ParquetTable(Mapping[str, "pa.ChunkedArray[Any]"]):
    """The columns of a closed table, read on access, as a long run's table may not fit into memory.

    Text is dictionary-encoded, and every column is one chunk. Fields that a file of an older
    version lacks are null. May be used by several threads. RecordsError: a newer version wrote it,
    or it is broken or lost.
    """

    def __init__(self, path: Path, name: str, *, is_mapped: bool = True) -> None:
        self._path = path
        self._reading = threading.Lock()  # Arrow's reader of a file is for one thread at a time
        with self._naming_the_file(), _utf8_path(path) as opened:
            self._file = pq.ParquetFile(opened, memory_map=is_mapped)
        stored = self._file.schema_arrow
        check_version(int((stored.metadata or {}).get(FORMAT_KEY, 0)), path)
        self._present = frozenset(stored.names)
        self.schema = stored if name == system_table.NAME else arrow_schema(name)
        self.count: int = self._file.metadata.num_rows

    def __getitem__(self, name: str) -> pa.ChunkedArray[Any]:
        kind = self.schema.field(name).type
        if name not in self._present:
            return pa.chunked_array([pa.nulls(self.count, kind)])
        with self._reading, self._naming_the_file():
            read = self._file.read(columns=[name], use_threads=False)  # there is one column
        if pa.types.is_string(read.column(0).type):  # a file of an older version
            read = pa.table([read.column(0).dictionary_encode().cast(TEXT)], names=[name])
        column = combined_table(read).column(0)
        return column if column.type == kind else column.cast(kind)

    def __iter__(self) -> Iterator[str]:
        return iter(self.schema.names)

    def __len__(self) -> int:
        return len(self.schema)

    def __contains__(self, name: object) -> bool:
        return name in self.schema.names

    def table(self) -> pa.Table:
        """Return the whole table."""
        return pa.Table.from_arrays([self[name] for name in self], schema=self.schema)

    @property
    def group_rows(self) -> list[int]:
        """How many rows each row group has, which lie together in the file."""
        found = self._file.metadata
        return [found.row_group(number).num_rows for number in range(found.num_row_groups)]

    def extremes(self, number: int, column: str) -> tuple[int, int]:
        """Return the least and the greatest value of a column of whole numbers in a row group."""
        group = self._file.metadata.row_group(number)
        place = self._file.schema_arrow.names.index(column)
        statistics = group.column(place).statistics
        if statistics is None or not statistics.has_min_max:
            values = self.numbers(number, column)
            return int(values.min()), int(values.max())
        least, most = statistics.min, statistics.max
        assert isinstance(least, int)
        assert isinstance(most, int)
        return least, most

    def numbers(self, number: int, column: str) -> NDArray[Any]:
        """Return a column of numbers, none of them unknown, of a row group."""
        with self._reading, self._naming_the_file():
            return column_values(self._file.read_row_group(number, columns=[column]).column(0))

    def group(self, number: int) -> pa.Table:
        """Return the rows of a row group, in one or several chunks, with the schema's columns."""
        with self._reading, self._naming_the_file():
            # In one thread: each thread of a pool would hold memory of its own.
            read = self._file.read_row_group(number, use_threads=False)
        columns = []
        for field in self.schema:
            if field.name not in self._present:
                columns.append(pa.nulls(read.num_rows, field.type))
            else:
                column = read.column(field.name)
                columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.Table.from_arrays(columns, schema=self.schema)

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, pa.ArrowException) as error:
            raise RecordsError(
                f"{self._path} cannot be read: {error}. Take it from a copy of the run, or record "
                "it anew."
            ) from error


@contextmanager
def _utf8_path(path: Path) -> Iterator[str]:
    """Yield a path of a file that Arrow can open, which takes none with bytes that are no UTF-8."""
    try:
        str(path).encode()
        yield str(path)
    except UnicodeEncodeError:
        with path.open("rb") as file:
            yield f"/proc/self/fd/{file.fileno()}"


_GROUP_VALUES = 1 << 19
"""So many values lie together: what is read for a short span of a long run."""
_MAX_TEXT_BYTES = 1 << 30
"""Above this size a row group's texts are written row by row; the default of 1 MiB is less than the
stacks of a long run."""


def close_store(store: RecordStore, folder: Path) -> None:
    """Write all of a store to Parquet files in `folder`, then remove it.

    Until the last file is written, readers use the store. After an error it stays as it is.
    """
    store.connection.execute("BEGIN IMMEDIATE")  # rolled back in any case
    try:
        store.complete_totals()
        _write_tables(store, folder)
    finally:
        store.connection.execute("ROLLBACK")
    sync_folder(folder)
    store.close()
    for suffix in ("", "-wal", "-shm"):
        store.path.with_name(store.path.name + suffix).unlink(missing_ok=True)
    shutil.rmtree(store.path.with_name(store.path.name + PARTS_FOLDER), ignore_errors=True)


def _write_tables(store: RecordStore, folder: Path) -> None:
    for name in system_table.TABLE_NAMES:
        schema = stored_schema(store.connection, name)
        pieces = stored_tables(store.connection, store.path, name)
        _write_table(folder / f"{name}{PARQUET}", schema, pieces)


def stored_tables(connection: sqlite3.Connection, path: Path, name: str) -> Iterator[pa.Table]:
    """Yield a store's table piece by piece: its parts, then its rows; raises RecordsError."""
    for file in part_files(connection, path, name):
        yield ParquetTable(file, name).table()
    for batch in stored_batches(connection, name):
        yield pa.Table.from_batches([batch])


def write_oldest_rows(connection: sqlite3.Connection, name: str, count: int, path: Path) -> int:
    """Write the `count` oldest rows of a store's table to a file; return the last one's rowid."""
    (last,) = connection.execute(
        f"SELECT MAX(rowid) FROM (SELECT rowid FROM {name} ORDER BY rowid LIMIT ?)",  # noqa: S608
        (count,),
    ).fetchone()
    batches = stored_batches(connection, name, f"t.rowid <= {last}")
    pieces = (pa.Table.from_batches([batch]) for batch in batches)
    _write_table(path, stored_schema(connection, name), pieces)
    return int(last)


def _write_table(path: Path, schema: pa.Schema, pieces: Iterable[pa.Table]) -> None:
    draft = path.with_name(f".{path.name}.tmp")  # only one process closes a folder
    try:
        with draft.open("wb") as file:
            with pq.ParquetWriter(
                file, schema, compression="zstd", dictionary_pagesize_limit=_MAX_TEXT_BYTES
            ) as writer:
                rows = max(_GROUP_VALUES // len(schema), 1)
                for group in _row_groups(pieces, rows):
                    writer.write_table(group, row_group_size=rows)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _row_groups(pieces: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield so many rows or more of concatenated pieces, with dictionaries of their own."""
    waiting: list[pa.Table] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(each.num_rows for each in waiting) >= rows:
            yield combined_table(pa.concat_tables(waiting))
            waiting = []
    if waiting:
        yield combined_table(pa.concat_tables(waiting))
