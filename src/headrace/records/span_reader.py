"""Reads of a span of time from long records, without the rows before and after it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from headrace.core.arrow_arrays import numbers
from headrace.core.errors import RecordsError
from headrace.records import store
from headrace.records.compaction import TABLES_WITH_PARTS
from headrace.records.layout import PARQUET, STORE, part_files
from headrace.records.live_reader import BEGIN_COLUMNS, END_COLUMNS, row_spans_ns
from headrace.records.parquet_tables import (
    ParquetTable,
    arrow_schema,
    combined_table,
    stored_batches,
    stored_schema,
)
from headrace.records.reader import Records
from headrace.records.row_totals import totals_table

COUNTED = ("steps", "fetches", "batches")
"""The tables whose rows say how much there is to read: those that grow with every step."""
_TRIES, _PAUSE_S = 20, 0.01
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """Some rows of a Parquet file that lie together, and the time that they are about.

    The file is opened again to read them: what describes many groups takes megabytes.
    """

    path: Path
    number: int
    rows: int
    first_ns: int
    last_ns: int  # at the latest: its last begin and its longest duration

    def overlaps(self, from_ns: int, to_ns: int) -> bool:
        return self.last_ns >= from_ns and self.first_ns < to_ns

    def share(self, from_ns: int, to_ns: int) -> float:
        """Return about how many of its rows are in a span."""
        inside = min(self.last_ns, to_ns) - max(self.first_ns, from_ns)
        return self.rows * min(max(inside, 0) / max(self.last_ns - self.first_ns, 1), 1.0)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where rows of a table are: in Parquet files, and in an open store."""

    files: list[Path]
    store: sqlite3.Connection | None


class SpanReader:
    """Reads the rows of a span from an attempt's records, closed or live.

    Of live records it reads what the collector has stored, up to half a second ago. When the rows
    of a file are is looked up once; a reader is for one thread at a time. All raise RecordsError.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._groups: dict[tuple[Path, int], list[_RowGroup]] = {}  # by file and its time

    def bounds_ns(self, name: str) -> tuple[int, int] | None:
        """Return when the first row of a table with times began and the last ended, if any."""

        def read(sources: list[_Source]) -> tuple[int, int] | None:
            groups = [each for source in sources for each in self._groups_of(source, name)]
            spans = (
                [(min(each.first_ns for each in groups), _last_ns(groups, name))] if groups else []
            )
            for source in sources:
                if source.store is not None:
                    begin, end = _expressions(name)
                    first, last = source.store.execute(
                        f"SELECT MIN({begin}), MAX({end}) FROM {name} AS t"  # noqa: S608
                    ).fetchone()
                    spans += [] if first is None else [(first, last)]
            if not spans:
                return None
            return min(first for first, _ in spans), max(last for _, last in spans)

        return self._reading(name, read)

    def rows(self, name: str) -> int:
        """Return how many rows a table has."""

        def read(sources: list[_Source]) -> int:
            stored = [source.store for source in sources if source.store is not None]
            counts = [
                int(each.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0])  # noqa: S608
                for each in stored
            ]
            groups = (group for source in sources for group in self._groups_of(source, name))
            return sum(counts) + sum(group.rows for group in groups)

        return self._reading(name, read)

    def count(self, from_ns: int, to_ns: int) -> int:
        """Return about how many steps, waits and batches a span has."""
        counts = []
        for name in COUNTED:
            count = partial(self._count, name=name, from_ns=from_ns, to_ns=to_ns)
            counts.append(self._reading(name, count))
        return sum(counts)

    def _count(self, sources: list[_Source], name: str, from_ns: int, to_ns: int) -> int:
        total = 0
        for source in sources:
            total += round(
                sum(each.share(from_ns, to_ns) for each in self._groups_of(source, name))
            )
            if source.store is not None:
                inside = _inside(name, from_ns, to_ns)
                (rows,) = source.store.execute(
                    f"SELECT COUNT(*) FROM {name} AS t WHERE {inside}"  # noqa: S608
                ).fetchone()
                total += rows
        return total

    def table(
        self, name: str, from_ns: int, to_ns: int, *, without_totals: bool = False
    ) -> pa.Table:
        """Return the rows of a table that reach into a span; all rows of one without times.

        Args:
            name: The table's name.
            from_ns: Where the span begins, by the clock of the records.
            to_ns: Where it ends.
            without_totals: Leave out rows that are added up in a table of totals.
        """
        if name not in END_COLUMNS:
            return self._records.table(name)
        totals = totals_table(name) if without_totals else None

        def read(sources: list[_Source]) -> pa.Table:
            found: list[pa.Table] = []
            for source in sources:
                if totals is None or not self._has_totals(source, totals):
                    found += self._rows_of_files(source, name, from_ns, to_ns)
                if source.store is not None:
                    batches = list(
                        stored_batches(source.store, name, _inside(name, from_ns, to_ns))
                    )
                    schema = stored_schema(source.store, name)
                    found.append(pa.Table.from_batches(batches, schema))
            filled = [each for each in found if each.num_rows] or found[:1]
            if not filled:
                return pa.Table.from_batches([], arrow_schema(name))
            return combined_table(pa.concat_tables(filled, promote_options="default"))

        return self._reading(name, read)

    def _rows_of_files(
        self, source: _Source, name: str, from_ns: int, to_ns: int
    ) -> Iterator[pa.Table]:
        for path in source.files:
            groups = self._row_groups(path, name)
            wanted = [each.number for each in groups if each.overlaps(from_ns, to_ns)]
            file = _opened(path, name) if wanted else None
            for number in wanted:
                assert file is not None
                table = file.group(number)
                spans = row_spans_ns(table, name)
                assert spans is not None
                is_inside = (spans[1] >= from_ns) & (spans[0] < to_ns)
                if not is_inside.all():
                    inside = np.flatnonzero(is_inside).astype(np.int64)
                    table = table.take(numbers(inside, pa.int64()))
                yield table

    def _has_totals(self, source: _Source, totals: str) -> bool:
        """Whether the rows in files are added up: those of parts are, of a closed run's perhaps."""
        if source.store is not None:
            return store.has_table(source.store, totals)
        path = self._records.folder / f"{totals}{PARQUET}"
        return path.exists() and ParquetTable(path, totals).count > 0

    def _reading(self, name: str, read: Callable[[list[_Source]], _T]) -> _T:
        """Return what is read of a table's sources, while they are as they are."""
        fault: Exception | None = None
        for _ in range(_TRIES):
            try:
                with ExitStack() as stack:
                    return read(self._sources(name, stack))
            except (sqlite3.Error, RecordsError) as error:  # it is being closed, or broken
                fault = error
                time.sleep(_PAUSE_S)
        raise RecordsError(f"{self._records.folder} cannot be read: {fault}") from fault

    def _sources(self, name: str, stack: ExitStack) -> list[_Source]:
        found = []
        for path in sorted(self._records.folder.glob(f"*{STORE}")):
            connection = stack.enter_context(closing(store.open_read_only(path)))
            connection.execute("BEGIN")  # one snapshot for rows and parts
            if store.has_tables(connection) and store.has_table(connection, name):
                has_parts = name in TABLES_WITH_PARTS
                parts = list(part_files(connection, path, name)) if has_parts else []
                found.append(_Source(parts, connection))
        file = self._records.folder / f"{name}{PARQUET}"
        return found or ([_Source([file], None)] if file.exists() else [])

    def _groups_of(self, source: _Source, name: str) -> Iterator[_RowGroup]:
        for path in source.files:
            yield from self._row_groups(path, name)

    def _row_groups(self, path: Path, name: str) -> list[_RowGroup]:
        try:
            key = path, path.stat().st_mtime_ns  # another run may have taken the folder's place
        except OSError as error:
            raise RecordsError(f"{path} cannot be read: {error}") from error
        known = self._groups.get(key)
        if known is None:
            file = _opened(path, name)
            known = self._groups[key] = [
                _RowGroup(path, number, rows, *_group_span(file, number, name))
                for number, rows in enumerate(file.group_rows)
                if rows
            ]
        return known


def _opened(path: Path, name: str) -> ParquetTable:
    return ParquetTable(path, name, is_mapped=False)


def _group_span(file: ParquetTable, number: int, name: str) -> tuple[int, int]:
    """Return when the first row of a row group began and the last ended, at the latest."""
    first, _ = file.extremes(number, BEGIN_COLUMNS[name])
    return first, sum(file.extremes(number, column)[1] for column in END_COLUMNS[name])


def _last_ns(groups: list[_RowGroup], name: str) -> int:
    """Return when the last row of some row groups ended, from the values of as few as possible."""
    last_ns = 0
    for group in sorted(groups, key=lambda each: -each.last_ns):
        if group.last_ns <= last_ns:
            break
        file = _opened(group.path, name)
        ends = sum(file.numbers(group.number, column) for column in END_COLUMNS[name])
        last_ns = max(last_ns, int(np.max(ends)))
    return last_ns


def _expressions(name: str) -> tuple[str, str]:
    """Return when a row `t` of a store's table began and ended, in SQL."""
    return f"t.{BEGIN_COLUMNS[name]}", " + ".join(f"t.{each}" for each in END_COLUMNS[name])


def _inside(name: str, from_ns: int, to_ns: int) -> str:
    begin, end = _expressions(name)
    return f"{begin} < {int(to_ns)} AND {end} >= {int(from_ns)}"
