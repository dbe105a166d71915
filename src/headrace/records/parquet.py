"""Writes records to Parquet: parts of a long run, and at its end all of it instead of the store."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.records.arrow import in_one_piece, stored_batches, stored_schema
from headrace.records.closed import ClosedTable
from headrace.records.layout import PARQUET
from headrace.records.parts import Parts, part_files
from headrace.records.store import TABLE_NAMES, RecordStore

_GROUP_ROWS = 1 << 18
_MOST_TEXT_BYTES = 1 << 30
"""Above this a row group's texts would be written out row by row; what is usual is 1 MiB, and the
stacks of a long run are more."""


def close_store(store: RecordStore, folder: Path) -> None:
    """Write all of a store to Parquet files in `folder`, then remove it.

    Until the last file is there, the store is what counts.

    Raises:
        OSError: The disk is full or gone; the store stays as it is.
        RecordsError: A part of it is lost or broken.
    """
    for name in TABLE_NAMES:
        schema = stored_schema(store.connection, name)
        pieces = stored_tables(store.connection, store.path, name)
        _write_table(folder / f"{name}{PARQUET}", schema, pieces)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    store.close()
    for suffix in ("", "-wal", "-shm"):
        store.path.with_name(store.path.name + suffix).unlink(missing_ok=True)
    Parts.remove(store.path)


def stored_tables(connection: sqlite3.Connection, path: Path, name: str) -> Iterator[pa.Table]:
    """Yield a store's table piece by piece: its parts, then the rows in the store.

    Args:
        connection: The store.
        path: Its file.
        name: The table.

    Raises:
        RecordsError: A part is lost or broken.
    """
    for file in part_files(connection, path, name):
        yield ClosedTable(file, name).table()
    for batch in stored_batches(connection, name):
        yield pa.Table.from_batches([batch])


def write_oldest(connection: sqlite3.Connection, name: str, count: int, path: Path) -> int:
    """Write so many rows of a store's table, the oldest, to a file; return the last one's number.

    Raises:
        OSError: The disk is full or gone.
    """
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
                file, schema, compression="zstd", dictionary_pagesize_limit=_MOST_TEXT_BYTES
            ) as writer:
                for group in _in_groups(pieces):
                    writer.write_table(group, row_group_size=2 * _GROUP_ROWS)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _in_groups(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield pieces put together: a group has its own dictionaries and is compressed by itself."""
    waiting: list[pa.Table] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(each.num_rows for each in waiting) >= _GROUP_ROWS:
            yield in_one_piece(pa.concat_tables(waiting))
            waiting = []
    if waiting:
        yield in_one_piece(pa.concat_tables(waiting))
