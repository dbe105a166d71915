"""The rows of a table in a span of time, read column by column from files and stores.

A chart reads few of a table's columns, and a long run's table is much larger than these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.core.arrow_arrays import numbers
from headrace.records.parquet_tables import ParquetTable, ReadColumns, combined_column


class Rows(Protocol):
    """Some rows of a table, such as a `pyarrow.Table`."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that they have."""
        ...

    @property
    def num_rows(self) -> int:
        """How many they are."""
        ...

    def column(self, name: str) -> pa.ChunkedArray[Any]:
        """Return a column of the schema."""
        ...


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of a Parquet file, which stays open: it may be removed while they are read.

    Attributes:
        file: The file.
        groups: The row groups that the rows are in.
        places: Of the rows among those of the groups, from 0 on; None: all of them.
    """

    file: ParquetTable
    groups: Sequence[int]
    places: NDArray[np.int64] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file."""
        return self.file.schema

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        if self.places is not None:
            return len(self.places)
        return sum(self.file.group_rows[number] for number in self.groups)

    def column(self, name: str) -> pa.ChunkedArray[Any]:
        """Return a column; raises RecordsError."""
        column = self.file.column(name, self.groups)
        if self.places is None:
            return column
        return combined_column(column).take(numbers(self.places, pa.int64()))


class SpanColumns(ReadColumns):
    """The columns of rows that lie in several places, each read on access, as one chunk.

    Text is dictionary-encoded. What some of the places lack, such as the cores of other hosts, is
    null in their rows.

    Args:
        places: The rows, one place or more.
    """

    def __init__(self, places: Sequence[Rows]) -> None:
        filled = [each for each in places if each.num_rows] or places[:1]
        self._places = filled
        self.count = sum(each.num_rows for each in filled)
        self.schema = pa.unify_schemas([each.schema for each in filled])

    def __getitem__(self, name: str) -> pa.ChunkedArray[Any]:
        kind = self.schema.field(name).type
        chunks = [
            chunk
            for each in self._places
            for chunk in (
                each.column(name).chunks
                if name in each.schema.names
                else [pa.nulls(each.num_rows, kind)]
            )
        ]
        return combined_column(pa.chunked_array(chunks, kind))
