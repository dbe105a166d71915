"""Closed records: a Parquet file a table, read column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.errors import RecordsError
from headrace.records import system
from headrace.records.arrow import FORMAT_KEY, TEXT, in_one_piece, schema_of
from headrace.records.store import refuse_newer


class ClosedTable(Mapping[str, "pa.ChunkedArray[Any]"]):
    """The columns of a closed table, each read when it is asked for.

    A long run's table need not fit into memory: who wants three columns of it reads three. Text is
    dictionary-encoded, and every column in one piece. Fields that the file does not have, as it is
    of an older version, are null.

    Args:
        path: Its file.
        name: The table's name.

    Attributes:
        schema: Its fields.
        count: How many rows it has.

    Raises:
        RecordsError: A newer version wrote it, or it is broken or lost.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        try:
            self._file = pq.ParquetFile(path, memory_map=True)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._unreadable(error) from error
        kept = self._file.schema_arrow
        refuse_newer(int((kept.metadata or {}).get(FORMAT_KEY, 0)), path)
        self._present = frozenset(kept.names)
        self.schema = kept if name == system.NAME else schema_of(name)
        self.count: int = self._file.metadata.num_rows

    def __getitem__(self, name: str) -> pa.ChunkedArray[Any]:
        kind = self.schema.field(name).type
        if name not in self._present:
            return pa.chunked_array([pa.nulls(self.count, kind)])
        try:
            read = self._file.read(columns=[name])
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._unreadable(error) from error
        if pa.types.is_string(read.column(0).type):  # an older version's
            read = pa.table([read.column(0).dictionary_encode().cast(TEXT)], names=[name])
        column = in_one_piece(read).column(0)
        return column if column.type == kind else column.cast(kind)

    def __iter__(self) -> Iterator[str]:
        return iter(self.schema.names)

    def __len__(self) -> int:
        return len(self.schema)

    def __contains__(self, name: object) -> bool:
        return name in self.schema.names

    def table(self) -> pa.Table:
        """Return all of it."""
        return pa.Table.from_arrays([self[name] for name in self], schema=self.schema)

    def _unreadable(self, error: Exception) -> RecordsError:
        return RecordsError(
            f"{self._path} cannot be read: {error}. Take it from a copy of the run, or record it "
            "anew."
        )
