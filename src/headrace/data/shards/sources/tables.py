"""Sources that are tables of URLs and labels: CSV, JSON lines or Parquet, one row a sample."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from numpy.typing import NDArray

from headrace.core.arrow_arrays import large_strings
from headrace.core.errors import DatasetError
from headrace.data.shards.manifest import DatasetSource
from headrace.data.shards.members import key_of, path_of_url, refusal, stem_of
from headrace.data.shards.sources.sample_table import (
    FileColumn,
    SampleTable,
    number_classes,
    refuse_shared_stems,
    texts,
)
from headrace.data.storage import open_store, safe_url, split_url

TABLE_SUFFIXES = (".csv", ".jsonl", ".ndjson", ".parquet")

_IMAGE_COLUMNS = ("url", "image", "image_url", "path", "file", "file_name")
_MASK_COLUMNS = ("mask", "mask_url", "mask_path")
_LABEL_COLUMNS = ("label", "class", "cls")
_KEY_COLUMNS = ("key",)


def list_table(url: str, known_classes: Sequence[str] = ()) -> SampleTable:
    """List the rows of a table in their own order.

    Columns, by name: one of url, image, path, file, file_name (required); mask; one of label,
    class, cls (class numbers, or names, which are numbered in sorted order); key (the samples'
    names; by default their paths without extension). All other columns are combined in a member
    "json". Paths that are no URLs are relative to the table. DatasetError: no such column, an empty
    cell, an unknown class, two rows with one key, a path or key with "..", a key that begins
    with "/".
    """
    folder, name = split_url(url)
    shown = safe_url(url)
    data = bytes(open_store(folder).get(name))
    content = _parse(data, name, shown)
    columns = _Columns(content, shown)
    paths = columns.paths(columns.image)
    masks = columns.paths(columns.mask) if columns.mask else None
    labels, classes = _labels(columns, known_classes)
    table = SampleTable(
        url=safe_url(folder),
        stems=_stems(columns, paths),
        images=_column(paths),
        masks=None if masks is None else _column(masks),
        labels=labels,
        classes=classes,
        notes=_notes(content, columns),
        source=DatasetSource(
            kind="table",
            url=shown,
            num_files=len(paths) * (1 if masks is None else 2),
            size_bytes=0,
            listing=hashlib.sha256(data).hexdigest(),
        ),
    )
    refuse_shared_stems(table.sorted_by_stem())
    return table


class _Columns:
    """The columns of a table by their role."""

    def __init__(self, content: pa.Table, where: str) -> None:
        self.where = where
        self.content = content
        self.mask = self._first(_MASK_COLUMNS)
        self.label = self._first(_LABEL_COLUMNS)
        self.key = self._first(_KEY_COLUMNS)
        image = self._first(_IMAGE_COLUMNS)
        if image is None:
            raise DatasetError(
                f"{where} has the columns {', '.join(content.column_names) or '(none)'}; one of "
                f"{', '.join(_IMAGE_COLUMNS)} is needed, with each sample's URL or path."
            )
        if content.num_rows == 0:
            raise DatasetError(f"{where} has no rows, so there is nothing to pack.")
        self.image = image

    def used(self) -> set[str]:
        return {name for name in (self.image, self.mask, self.label, self.key) if name}

    def strings(self, name: str) -> pa.LargeStringArray:
        chunks = self.content.column(name).cast(pa.large_string()).chunks
        array = cast("pa.LargeStringArray", pa.concat_arrays(chunks))
        empty = pc.or_kleene(pc.is_null(array), pc.equal(array, pa.scalar("", pa.large_string())))
        self.refuse_rows(np.flatnonzero(empty.to_numpy(zero_copy_only=False)), name, "is empty")
        return array

    def paths(self, name: str) -> pa.LargeStringArray:
        array = self.strings(name)
        wrong = [row for row, path in enumerate(texts(array)) if _leads_out(path)]
        problem = "leads out of the table's folder ('..')"
        self.refuse_rows(wrong, name, problem, "Write a whole path or URL there.")
        return array

    def refuse_rows(
        self,
        rows: Sequence[int] | NDArray[np.intp],
        name: str,
        what: str,
        advice: str = "Correct or remove those rows.",
    ) -> None:
        if len(rows):
            shown = ", ".join(str(row + 1) for row in rows[:10])
            more = f" and {len(rows) - 10} more" if len(rows) > 10 else ""
            raise DatasetError(
                f"{self.where}: column {name!r} {what} in row {shown}{more} (of "
                f"{self.content.num_rows}). {advice}"
            )

    def _first(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self.content.column_names), None)


def _parse(data: bytes, name: str, where: str) -> pa.Table:
    source = io.BytesIO(data)
    try:
        if name.lower().endswith(".csv"):
            return pyarrow.csv.read_csv(source)
        if name.lower().endswith(".parquet"):
            return pyarrow.parquet.read_table(source)
        return pyarrow.json.read_json(source)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{where} cannot be read as its name says: {error}.") from None


def _labels(
    columns: _Columns, known: Sequence[str]
) -> tuple[NDArray[np.int32] | None, tuple[str, ...]]:
    if columns.label is None:
        return None, ()
    column = columns.content.column(columns.label)
    if pa.types.is_integer(column.type) and column.null_count == 0:
        numbers = column.to_numpy()
        limit = len(known) or 2**31
        wrong = np.flatnonzero((numbers < 0) | (numbers >= limit))
        columns.refuse_rows(wrong, columns.label, f"is an unknown class (not 0 to {limit - 1})")
        return numbers.astype(np.int32), tuple(known)
    if pa.types.is_floating(column.type):
        raise DatasetError(
            f"{columns.where}: column {columns.label!r} holds numbers with decimals. Classes are "
            "whole numbers or names. Give the column another name, and its values go into each "
            'sample\'s member "json".'
        )
    names = columns.strings(columns.label)
    encoded = names.dictionary_encode()
    occurring = texts(cast("pa.LargeStringArray", encoded.dictionary))
    classes, number_of = number_classes(occurring, known, columns.where)
    order = np.array([number_of[name] for name in occurring], dtype=np.int32)
    return order[encoded.indices.to_numpy()], classes


def _stems(columns: _Columns, paths: pa.LargeStringArray) -> pa.LargeStringArray:
    if columns.key is not None:
        name, stems = columns.key, columns.strings(columns.key)
    else:
        name = columns.image
        stems = large_strings([stem_of(path_of_url(path)) for path in texts(paths)])
    # Names that lint and other readers refuse must not be written.
    wrong = [row for row, stem in enumerate(texts(stems)) if refusal(f"{key_of(stem)}.x")]
    problem = "would name a sample with '..' or a leading '/'"
    advice = "Correct those rows, or name the samples in a column 'key'."
    columns.refuse_rows(wrong, name, problem, advice)
    return stems


def _leads_out(path: str) -> bool:
    return "://" not in path and not path.startswith("/") and ".." in path.split("/")


def _column(paths: pa.LargeStringArray) -> FileColumn:
    return FileColumn(paths=paths, sizes=np.full(len(paths), -1, dtype=np.int64))


def _notes(content: pa.Table, columns: _Columns) -> pa.LargeStringArray | None:
    rest = content.drop_columns([name for name in content.column_names if name in columns.used()])
    if rest.num_columns == 0:
        return None
    rows: list[dict[str, Any]] = rest.to_pylist()
    return large_strings(
        [json.dumps(row, sort_keys=True, default=str, ensure_ascii=False) for row in rows]
    )
