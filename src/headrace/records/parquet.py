"""The records of an attempt once they are closed: one Parquet file a table."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.errors import RecordsError
from headrace.records import system
from headrace.records.arrow import FORMAT_KEY, schema_of, stored_batches, stored_schema
from headrace.records.places import PARQUET
from headrace.records.store import TABLE_NAMES, RecordStore, refuse_newer


def close_store(store: RecordStore, folder: Path) -> None:
    """Write all of a store to Parquet files in `folder`, then remove it.

    Until the last file is there, the store is what counts.

    Raises:
        OSError: The disk is full or gone; the store stays as it is.
    """
    for name in TABLE_NAMES:
        _write_table(
            folder / f"{name}{PARQUET}",
            stored_schema(store.connection, name),
            stored_batches(store.connection, name),
        )
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    store.close()
    for suffix in ("", "-wal", "-shm"):
        store.path.with_name(store.path.name + suffix).unlink(missing_ok=True)


def read_table(folder: Path, name: str) -> pa.Table:
    """Return a closed table; fields that it does not have, of an older version, are null.

    Raises:
        RecordsError: A newer version wrote it, or it is broken or lost.
    """
    path = folder / f"{name}{PARQUET}"
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            kept = file.schema_arrow
            refuse_newer(int((kept.metadata or {}).get(FORMAT_KEY, 0)), path)
            table = file.read()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise RecordsError(
            f"{path} cannot be read: {error}. Take it from a copy of the run, or record it anew."
        ) from error
    if name == system.NAME:
        return table
    schema = schema_of(name)
    arrays = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _write_table(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    draft = path.with_name(f".{path.name}.tmp")  # only one process closes a folder
    try:
        with draft.open("wb") as file:
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                for batch in batches:
                    writer.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
