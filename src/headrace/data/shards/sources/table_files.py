"""The cells of CSV, TSV, JSON lines and Parquet files, names and labels as they are written.

Arrow guesses what the cells of a text file mean: 000007 becomes 7, True true, a date a moment.
Cells that say where a file is, or of which class it is, are taken as written; others are values
only where that loses nothing.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from numpy.typing import NDArray

from headrace.core.errors import DatasetError

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")

# The longest beginnings first: that of UTF-32 begins as that of UTF-16 does.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"), (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
_DELIMITERS = (",", ";", "\t", "|")
_LEADING_ZERO = r"^[+-]?0[0-9xX]"
_MOST_EXACT = 2**53  # whole numbers up to here are exact as doubles
_NO_BLANK = re.compile(r"\S")
_LONGEST_BLOCK = 2**31 - 1


class TableCells:
    """The cells of a table, by column: as values, and as texts."""

    def __init__(
        self,
        values: pa.Table,
        where: str,
        written: pa.Table | None = None,
        json_text: bytes | None = None,
    ) -> None:
        self.where = where
        self._values = values  # as Arrow reads them
        self._written = written  # of a CSV or TSV file: the texts; else None
        self._json_text = json_text  # of JSON lines: all of them; else None
        self.class_names = _class_names(values.schema)
        """Names of the classes that numbers stand for, by column, as Hugging Face writes them."""
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise DatasetError(f"{where} has several columns {twice[0]!r}. Rename or remove one.")

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return list(self._values.column_names)

    def __len__(self) -> int:
        return int(self._values.num_rows)

    def kind(self, name: str) -> pa.DataType:
        """Return the type of a column's values; where they are retyped texts, that of texts."""
        kind: pa.DataType = self.values(name).type
        return kind

    def values(self, name: str) -> pa.ChunkedArray[Any]:
        """Return a column's values, which are its texts where values would say something else."""
        column = self._values.column(name)
        if pa.types.is_dictionary(column.type):
            return column.cast(column.type.value_type)
        if self._written is None or _is_faithful(column, self._stripped(name)):
            return column
        return self._written.column(name)

    def texts(self, name: str) -> pa.LargeStringArray:
        """Return a column as texts, null where a cell has no value; raises DatasetError."""
        column = self.values(name)
        if self._written is not None:
            is_text = pa.types.is_string(self._values.column(name).type)
            column = self._written.column(name) if is_text else self._stripped(name)
        elif pa.types.is_struct(column.type):
            column = _path_field(column, name, self.where)
        try:
            if pa.types.is_floating(column.type):
                raise DatasetError(
                    f"{self.where}: column {name!r} holds numbers with decimals, or of 20 digits, "
                    "and names are looked for there. Write them as texts."
                )
            chunks = column.cast(pa.large_string()).chunks or [pa.array([], pa.large_string())]
        except pa.ArrowException:
            raise _no_texts(column, name, self.where) from None
        return cast("pa.LargeStringArray", pa.concat_arrays(chunks))

    def rows(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows of some columns, by name; None where a row has no such cell.

        Those of JSON lines are as they are written: Arrow would make decimals of whole numbers
        beside others with decimals, and give each object the keys of all. ValueError,
        OverflowError, ArrowException: a cell has no value in Python.
        """
        if self._json_text is not None:
            for row in _json_objects(self._json_text.decode()):
                yield {name: row.get(name) for name in names}
        else:
            table = pa.Table.from_arrays([self.values(name) for name in names], [*names])
            yield from table.to_pylist()

    def unread(self, name: str) -> NDArray[np.bool_]:
        """Return which cells of a column have no value, such as NA among numbers: bool[rows]."""
        column = self._values.column(name)
        return np.asarray(pc.is_null(column).to_numpy(), dtype=np.bool_)

    def are_written_whole(self, name: str) -> bool:
        """Return whether no cell of a column of numbers is written with a decimal point."""
        if self._written is None:
            return False
        return not pc.any(pc.match_substring(self._written.column(name), ".")).as_py()

    def _stripped(self, name: str) -> pa.ChunkedArray[Any]:
        assert self._written is not None
        return pc.utf8_trim_whitespace(self._written.column(name))


def parse_table(data: bytes, name: str, where: str, columns: Sequence[str] = ()) -> TableCells:
    """Return the cells of a file, read as its name's end says.

    One of the `columns` is in each table; what separates the cells of a text table is chosen so.
    Raises DatasetError where the file cannot be read.
    """
    try:
        if name.lower().endswith(".parquet"):
            table = pyarrow.parquet.read_table(io.BytesIO(data))
            table.validate(full=True)  # texts that are not UTF-8, as other writers leave them
            return TableCells(table, where)
        text = utf8_bytes(data, where)
        if name.lower().endswith((".csv", ".tsv")):
            return _parse_csv(text, name, where, columns)
        return _parse_json(text, where)
    except (pa.ArrowException, OSError, RecursionError) as error:
        raise DatasetError(f"{where} cannot be read as its name says: {error}.") from None


def join_tables(parts: Sequence[TableCells], where: str) -> TableCells:
    """Return the rows of Parquet files one after the other; DatasetError: they do not fit."""
    try:
        tables = [part._values for part in parts]  # noqa: SLF001 - its own class
        if any(part.class_names != parts[0].class_names for part in parts):
            raise DatasetError(
                f"{where}: the tables differ in the names of their classes, so that one number is "
                "not the same class in all of them. Pack each by itself."
            )
        return TableCells(pa.concat_tables(tables, promote_options="permissive"), where)
    except pa.ArrowException as error:
        raise DatasetError(
            f"{where}: the tables differ in their columns' types: {error}. Pack each by itself."
        ) from None


def _class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the names of classes by number, of each column of the type ClassLabel.

    Hugging Face's datasets keep them in the metadata of a schema alone (datasets/features).
    """
    try:
        described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = described.get("info", described).get("features") or {}
        return {
            column: tuple(map(str, feature["names"]))
            for column, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (ValueError, AttributeError, KeyError, TypeError):  # of another writer
        return {}


def utf8_bytes(data: bytes, where: str) -> bytes:
    """Return a text file's content in UTF-8, without a byte order mark; raises DatasetError."""
    encoding = "utf-8"
    for mark, named in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            data, encoding = data[len(mark) :], named
            break
    else:  # tables begin with a letter, a quote or a bracket, of which UTF-16 makes two bytes
        if len(data) > 1 and data[:2].count(0) == 1:
            encoding = "utf-16-le" if data[1] == 0 else "utf-16-be"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DatasetError(
            f"{where} is no text in {encoding.upper()}: line {line} has the bytes "
            f"{data[error.start : error.start + 4].hex(' ')}. Convert it, from Latin-1 say: iconv "
            "-f latin1 -t utf-8 OLD > NEW"
        ) from None
    return data if encoding == "utf-8" else text.encode()


def _parse_csv(data: bytes, name: str, where: str, columns: Sequence[str]) -> TableCells:
    usual = "\t" if name.lower().endswith(".tsv") else ","
    delimiter = _delimiter(data, usual, columns)
    if data.count(b'"') % 2:
        _refuse_open_quote(data, delimiter, where)
    parsing = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=b'"' in data)

    def read(converting: pyarrow.csv.ConvertOptions) -> pa.Table:
        return _in_blocks(
            data,
            lambda block: pyarrow.csv.read_csv(
                io.BytesIO(data),
                read_options=pyarrow.csv.ReadOptions(block_size=block),
                parse_options=parsing,
                convert_options=converting,
            ),
        )

    values = read(pyarrow.csv.ConvertOptions())
    text = pa.string()
    written = read(
        pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(values.column_names, text))
    )
    if delimiter == "\t":
        _refuse_rows_in_cells(written, where)
    names = [column.strip() for column in values.column_names]  # "path, label" is usual
    return TableCells(values.rename_columns(names), where, written.rename_columns(names))


def _refuse_open_quote(data: bytes, delimiter: str, where: str) -> None:
    """Raise DatasetError where a quote is not closed: all rows after it would be one cell."""
    rows, first_line = csv.reader(io.StringIO(data.decode()), delimiter=delimiter, strict=True), 1
    try:
        for _ in rows:
            first_line = rows.line_num + 1
    except csv.Error as error:
        if "unexpected end" in str(error):
            raise DatasetError(
                f"{where}: a quote that opens in the row at line {first_line} is not closed, so "
                "that the rows after it would be one cell. Close it, or write it twice within a "
                "cell in quotes."
            ) from None


def _refuse_rows_in_cells(written: pa.Table, where: str) -> None:
    """Raise DatasetError where a cell of a TSV file holds tabs and lines: rows between two quotes.

    Many such files have no quoting, so that a quote at a cell's beginning is a character of it.
    """
    for name in written.column_names:
        is_wrong = pc.match_substring_regex(written.column(name), "(?s)\t.*\n|\n.*\t")
        rows = np.flatnonzero(is_wrong.to_numpy())
        if len(rows):
            raise DatasetError(
                f"{where}: column {name!r} holds tabs and lines between two quotes in row "
                f"{rows[0] + 1}: likely whole rows. Put such cells in quotes, and write quotes "
                "within them twice."
            )


def _delimiter(data: bytes, usual: str, columns: Sequence[str]) -> str:
    """Return what separates cells: the usual one, unless only another gives a known column."""
    first = data[: data.find(b"\n") if b"\n" in data else len(data)].decode()
    for delimiter in dict.fromkeys((usual, *_DELIMITERS)):
        if {cell.strip(' "\r').lower() for cell in first.split(delimiter)} & set(columns):
            return delimiter
    return usual


def _parse_json(data: bytes, where: str) -> TableCells:
    def read(schema: pa.Schema | None) -> pa.Table:
        parsing = pyarrow.json.ParseOptions(explicit_schema=schema)
        return _in_blocks(
            data,
            lambda block: pyarrow.json.read_json(
                io.BytesIO(data),
                read_options=pyarrow.json.ReadOptions(block_size=block),
                parse_options=parsing,
            ),
        )

    values = read(None)
    as_texts = [field.with_type(_without_times(field.type)) for field in values.schema]
    changed = [new for new, old in zip(as_texts, values.schema, strict=True) if new != old]
    if changed:  # texts that look like times
        values = read(pa.schema(changed))
    return TableCells(values, where, json_text=data)


def _without_times(kind: pa.DataType) -> pa.DataType:
    """Return a type with texts in the place of times, also within lists and objects."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([field.with_type(_without_times(field.type)) for field in fields])
    return kind


def _json_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of JSON lines, each number and key as it is written."""
    decoder, position = json.JSONDecoder(strict=False), 0
    while (found := _NO_BLANK.search(text, position)) is not None:
        value, position = decoder.raw_decode(text, found.start())
        yield value


def _in_blocks(data: bytes, read: Callable[[int], pa.Table]) -> pa.Table:
    """Return a table read in blocks of 1 MiB, or in one where a row is longer than that."""
    try:
        return read(2**20)
    except pa.ArrowInvalid as error:
        if "straddling" not in str(error):
            raise
        return read(min(len(data) + 1, _LONGEST_BLOCK))


def _is_faithful(column: pa.ChunkedArray[Any], written: pa.ChunkedArray[Any]) -> bool:
    """Return whether values that Arrow read from texts say what the texts do."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_null(kind) or pa.types.is_boolean(kind):
        # NA alone in its column may be Namibia, and 1 among true and false is a number.
        doubtful = {pa.bool_(): r"^[01]$", pa.null(): "."}.get(kind)
        return not (doubtful and pc.any(pc.match_substring_regex(written, doubtful)).as_py())
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return False  # a time: 10:00 would become 10:00:00
    written = written.filter(pc.is_valid(column))
    if pc.any(pc.match_substring_regex(written, _LEADING_ZERO)).as_py():
        return False
    if pa.types.is_integer(kind):
        return True
    numbers = column.drop_null().to_numpy()
    if not np.isfinite(numbers).all():
        return False
    whole = pc.match_substring_regex(written, r"^[+-]?\d+$").to_numpy()
    long = np.flatnonzero(whole & (np.abs(numbers) >= _MOST_EXACT))
    return all(int(written[int(row)].as_py()) == int(numbers[row]) for row in long)


def _path_field(column: pa.ChunkedArray[Any], name: str, where: str) -> pa.ChunkedArray[Any]:
    """Return the paths of images as Hugging Face stores them, where it stores no bytes."""
    fields = {field.name for field in column.type}
    if fields != {"bytes", "path"}:
        raise _no_texts(column, name, where)
    content = pc.struct_field(column, "bytes")
    if content.null_count < len(content):
        raise _holds_bytes(name, where)
    paths: pa.ChunkedArray[Any] = pc.struct_field(column, "path")
    return paths


def _no_texts(column: pa.ChunkedArray[Any], name: str, where: str) -> DatasetError:
    kind = column.type
    if "binary" in str(kind) and not pa.types.is_nested(kind):
        return _holds_bytes(name, where)
    what = "lists" if pa.types.is_list(kind) or pa.types.is_large_list(kind) else f"values ({kind})"
    return DatasetError(
        f"{where}: column {name!r} holds {what}, and one text or number a row is needed there. "
        'Rename the column, and its values go into each sample\'s member "json"; or write one '
        "value a row."
    )


def _holds_bytes(name: str, where: str) -> DatasetError:
    return DatasetError(
        f"{where}: column {name!r} holds the files themselves, and tables are read that hold their "
        "paths or URLs. Write the files out beside a table of their names, as docs/data.md shows."
    )
