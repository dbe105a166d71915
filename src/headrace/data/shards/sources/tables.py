"""Sources that are tables of URLs and labels: CSV, TSV, JSON lines or Parquet, a row a sample."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.core.arrow_arrays import large_strings
from headrace.core.errors import DatasetError
from headrace.data.shards.data_files import IgnoredFiles
from headrace.data.shards.manifest import DatasetSource
from headrace.data.shards.members import (
    extension_of,
    key_of,
    path_of_url,
    refusal,
    split_name,
    stem_of,
)
from headrace.data.shards.reports import BadFile
from headrace.data.shards.sources.sample_table import (
    FileColumn,
    SampleTable,
    names_of_masks,
    number_classes,
    refuse_shared_stems,
    texts,
)
from headrace.data.shards.sources.table_files import TableCells, join_tables, parse_table
from headrace.data.storage import Store, join_url, open_store, parent_url, safe_url, split_url

_IMAGE_COLUMNS = ("url", "image", "image_url", "path", "file", "file_name")
_MASK_COLUMNS = ("mask", "mask_url", "mask_path")
_LABEL_COLUMNS = ("label", "class", "cls")


def list_table(url: str, known_classes: Sequence[str] = ()) -> SampleTable:
    """List the rows of a table in their own order.

    Columns, by name: one of url, image, path, file, file_name (required); mask; one of label,
    class, cls (class numbers, or names, which are numbered in sorted order); key (the samples'
    names; by default their paths without extension). All other columns are combined in a member
    "json". Paths that are no URLs are relative to the table. DatasetError: no such column, an empty
    cell, an unknown class, two rows with one key, a path or key with "..", a key that begins
    with "/", a column whose cells are no texts.
    """
    folder, name = split_url(url)
    store = open_store(folder)
    data = bytes(store.get(name))
    cells = parse_table(data, name, safe_url(url), _IMAGE_COLUMNS)
    # The same paths in another folder are other files.
    digest = hashlib.sha256(_name_of(store) + data)
    return _samples(cells, parent_url(url), digest.hexdigest(), known_classes)


def list_tables(
    store: Store,
    paths: Sequence[str],
    known_classes: Sequence[str] = (),
    ignored: IgnoredFiles | None = None,
    bad: Sequence[BadFile] = (),
) -> SampleTable:
    """List the rows of Parquet files of one folder, one file after the other.

    `ignored` are the folder's other files, `bad` tables that cannot be read.

    Raises DatasetError as `list_table` does, and where the files are not the parts of one table.
    """
    names = one_table(sorted(paths), store.url, bad)
    digest, parts = hashlib.sha256(_name_of(store)), []
    for name in names:
        data = bytes(store.get(name))
        digest.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode())
        parts.append(parse_table(data, name, f"{store.url}/{name}"))
        if len(parts) == 1:  # all parts together may be larger than the memory
            _refuse_images(parts[0])
    cells = parts[0] if len(parts) == 1 else join_tables(parts, store.url)
    folder = names[0].rpartition("/")[0]
    url = join_url(store.url, folder) if folder else store.url
    table = _samples(cells, url, digest.hexdigest(), known_classes)
    source = replace(table.source, **(ignored or IgnoredFiles()).described())
    return replace(table, bad=tuple(bad), source=source)


def _name_of(store: Store) -> bytes:
    """Return a folder's name, which may not be UTF-8, as a part of what is hashed."""
    return f"{store.url}\0".encode("utf-8", "backslashreplace")


def _refuse_images(cells: TableCells) -> None:
    """Raise DatasetError where a table holds images in place of their paths."""
    name = _first_of(_IMAGE_COLUMNS, cells)
    if name is not None:
        cells.texts(name)


def one_table(paths: Sequence[str], url: str, bad: Sequence[BadFile] = ()) -> Sequence[str]:
    """Return sorted paths of tables if they are Parquet files that are parts of one table.

    `bad` are parts that are there and cannot be read. Names of parts differ in their numbers alone:
    train-00000-of-00002.parquet. DatasetError: there are several tables, another kind of table, a
    part is missing, or a column is in folders' names.
    """
    for path in paths:
        partition = _PARTITION.search(path)
        if partition is not None:
            raise DatasetError(
                f"{url}: {path} is a part of a partitioned table, of which the cells of the column "
                f"{partition[1]!r} are the names of folders. Write it as one table, which has that "
                "column: pandas.read_parquet(FOLDER).to_parquet(FILE)."
            )
    tables: dict[str, list[str]] = {}
    for path in paths:
        folder, slash, name = path.rpartition("/")
        tables.setdefault(f"{folder}{slash}{_NUMBER.sub('#', name)}", []).append(path)
    parts = next(iter(tables.values()))
    if len(tables) > 1 or not paths[0].lower().endswith(".parquet"):
        shown = ", ".join(
            each[0] + (f" ({len(each)} files)" if len(each) > 1 else "")
            for each in list(tables.values())[:5]
        )
        raise DatasetError(
            f"{url} holds no images but {len(tables)} tables: {shown}. Name one, such as "
            f"{join_url(url, parts[0])}; of Parquet files in parts, a folder that holds one "
            "split's alone, or --split."
        )
    counted = _OF.search(parts[0])
    if counted is not None and int(counted[1]) != len(parts) + len(bad):
        unread = f" {len(bad)} more cannot be read, such as {bad[0]}." if bad else ""
        raise DatasetError(
            f"{url}: {parts[0]} is one of {int(counted[1])} files, and {len(parts)} are there."
            f"{unread} Bring the others, too."
        )
    return parts


# Also a hash of each part's own content, as in train-00000-of-00002-6ef3991c06080e14.parquet.
_NUMBER = re.compile(r"(?<=\d-)[0-9a-f]{16}(?=\.)|\d+")
# As Hive, Spark and Arrow write a table with a column in its folders' names: label=cat/0.parquet.
_PARTITION = re.compile(r"(?:^|/)([^/=]+)=[^/]*/")
_OF = re.compile(r"-of-(\d+)")


def _samples(
    cells: TableCells, folder: str, listing: str, known_classes: Sequence[str]
) -> SampleTable:
    columns = _Columns(cells)
    paths = columns.paths(columns.image)
    images = _column(paths)
    masks = _column(columns.paths(columns.mask)) if columns.mask else None
    labels, classes = _labels(columns, known_classes)
    notes = _notes(columns)
    columns.refuse_members(("cls",) * (labels is not None) + ("json",) * (notes is not None))
    table = SampleTable(
        url=safe_url(folder),
        stems=_stems(columns, paths),
        images=images,
        masks=masks,
        mask_names=frozenset() if masks is None else names_of_masks(images, masks),
        labels=labels,
        classes=classes,
        notes=notes,
        source=DatasetSource(
            kind="table",
            url=columns.where,
            num_files=len(paths) * (1 if masks is None else 2),
            size_bytes=0,
            listing=listing,
        ),
    )
    refuse_shared_stems(table.sorted_by_stem())
    return table


class _Columns:
    """The columns of a table by their role."""

    def __init__(self, cells: TableCells) -> None:
        self.where = cells.where
        self.cells = cells
        self.mask = _first_of(_MASK_COLUMNS, cells)
        self.label = _first_of(_LABEL_COLUMNS, cells)
        self.key = "key" if "key" in cells.names else None
        image = _first_of(_IMAGE_COLUMNS, cells)
        if image is None:
            raise DatasetError(
                f"{self.where} has the columns {', '.join(cells.names) or '(none)'}; one of "
                f"{', '.join(_IMAGE_COLUMNS)} is needed, with each sample's URL or path."
            )
        if len(cells) == 0:
            raise DatasetError(f"{self.where} has no rows, so there is nothing to pack.")
        self.image = image

    def used(self) -> set[str]:
        return {name for name in (self.image, self.mask, self.label, self.key) if name}

    def strings(self, name: str) -> pa.LargeStringArray:
        array = self.cells.texts(name)
        empty = pc.or_kleene(pc.is_null(array), pc.equal(array, pa.scalar("", pa.large_string())))
        self.refuse_rows(np.flatnonzero(empty.to_numpy(zero_copy_only=False)), name, "is empty")
        return array

    def paths(self, name: str) -> pa.LargeStringArray:
        paths = [_plain_path(path) for path in texts(self.strings(name))]
        wrong = [row for row, path in enumerate(paths) if _leads_out(path)]
        problem = "leads out of the table's folder ('..')"
        self.refuse_rows(wrong, name, problem, "Write a whole path or URL there.")
        nowhere = [row for row, path in enumerate(paths) if not path]
        self.refuse_rows(nowhere, name, "names the table's own folder")
        no_names = [row for row, path in enumerate(paths) if "\0" in path]
        self.refuse_rows(no_names, name, "has a zero byte, which no name of a file has,")
        return large_strings(paths)

    def refuse_members(self, made: Sequence[str]) -> None:
        """Raise DatasetError where a file is named as a member that other columns make."""
        for name in filter(None, (self.image, self.mask)):
            files = enumerate(texts(self.paths(name)))
            wrong = [row for row, path in files if extension_of(path_of_url(path)) in made]
            problem = f"names a file of the kind {' or '.join(made)}, which other columns make,"
            self.refuse_rows(wrong, name, problem, "Rename those files, or leave the columns out.")

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
                f"{len(self.cells)}). {advice}"
            )


def _first_of(names: Sequence[str], cells: TableCells) -> str | None:
    """Return the first of these columns that there is, in upper or lower case; or None."""
    exact = [name for name in names if name in cells.names]
    by_lower = {column.lower(): column for column in reversed(cells.names)}
    found = exact or [by_lower[name] for name in names if name in by_lower]
    return found[0] if found else None


def _labels(
    columns: _Columns, known: Sequence[str]
) -> tuple[NDArray[np.int32] | None, tuple[str, ...]]:
    if columns.label is None:
        return None, ()
    column, kind = columns.cells.values(columns.label), columns.cells.kind(columns.label)
    if pa.types.is_integer(kind) and column.null_count == 0:
        numbers = column.to_numpy()
        named = columns.cells.class_names.get(columns.label)
        if named:
            return _numbered_as(named, numbers, known, columns)
        labels = _class_numbers(numbers, known, columns)
        if labels is not None:
            return labels, tuple(known)
    if not pa.types.is_string(kind):
        columns.refuse_rows(
            np.flatnonzero(columns.cells.unread(columns.label)), columns.label, "is empty"
        )
    if pa.types.is_decimal(kind) or (
        pa.types.is_floating(kind) and not columns.cells.are_written_whole(columns.label)
    ):
        raise DatasetError(
            f"{columns.where}: column {columns.label!r} holds numbers with decimals. Classes are "
            "whole numbers or names. Give the column another name, and its values go into each "
            'sample\'s member "json".'
        )
    names = columns.strings(columns.label)
    encoded = names.dictionary_encode()
    occurring = texts(cast("pa.LargeStringArray", encoded.dictionary))
    if all(map(_is_class_number, occurring)):
        numbers = np.array(list(map(int, occurring)), dtype=np.int64)[encoded.indices.to_numpy()]
        labels = _class_numbers(numbers, known, columns)
        if labels is not None:
            return labels, tuple(known)
    classes, number_of = number_classes(occurring, known, columns.where)
    order = np.array([number_of[name] for name in occurring], dtype=np.int32)
    return order[encoded.indices.to_numpy()], classes


def _is_class_number(text: str) -> bool:
    """Return whether a text is a whole number of 32 bits without leading zeros."""
    return _WHOLE_NUMBER.fullmatch(text) is not None and int(text) < _CLASS_NUMBERS


_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_CLASS_NUMBERS = 2**31


def _class_numbers(
    numbers: NDArray[Any], known: Sequence[str], columns: _Columns
) -> NDArray[np.int32] | None:
    """Return the labels that are numbers; None: they are names of known classes, such as years."""
    assert columns.label is not None
    if _are_names(np.unique(numbers).tolist(), known, columns):
        return None
    limit = len(known) or _CLASS_NUMBERS
    wrong = np.flatnonzero((numbers < 0) | (numbers >= limit))
    columns.refuse_rows(wrong, columns.label, f"is an unknown class (not 0 to {limit - 1})")
    return numbers.astype(np.int32)


def _numbered_as(
    names: Sequence[str], numbers: NDArray[Any], known: Sequence[str], columns: _Columns
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return labels and classes of numbers that stand for names, in the order of those."""
    assert columns.label is not None
    wrong = np.flatnonzero((numbers < 0) | (numbers >= len(names)))
    what = f"is none of the table's own {len(names)} classes (0 to {len(names) - 1})"
    columns.refuse_rows(wrong, columns.label, what)
    if not known:
        return numbers.astype(np.int32), tuple(names)
    occurring = [names[number] for number in np.unique(numbers)]
    classes, number_of = number_classes(occurring, known, columns.where)
    order = np.array([number_of.get(name, -1) for name in names], dtype=np.int32)
    return order[numbers], classes


def _are_names(numbers: Sequence[int], known: Sequence[str], columns: _Columns) -> bool:
    """Return whether labels that are numbers are names of known classes, such as years.

    Raises DatasetError where they may be either, and that makes a difference.
    """
    if not {str(number) for number in numbers} <= set(known):
        return False
    for number in numbers:
        if number < 0 or number >= len(known):
            return True
        if known[number] != str(number):
            raise DatasetError(
                f"{columns.where}: column {columns.label!r}: {number} is the number of the class "
                f"{known[number]!r} or the name of the class number {known.index(str(number))}. "
                "Write the names of classes otherwise, or their numbers in the list's own order."
            )
    return False


def _stems(columns: _Columns, paths: pa.LargeStringArray) -> pa.LargeStringArray:
    if columns.key is not None:
        name, stems = columns.key, columns.strings(columns.key)
    else:
        name = columns.image
        stems = large_strings([stem_of(path_of_url(path)) for path in texts(paths)])
    # Names that lint and other readers refuse must not be written.
    members = [f"{key_of(stem)}.x" for stem in texts(stems)]
    wrong = [row for row, member in enumerate(members) if refusal(member)]
    problem = "would name a sample with '..' or a leading '/'"
    advice = "Correct those rows, or name the samples in a column 'key'."
    columns.refuse_rows(wrong, name, problem, advice)
    nameless = [row for row, member in enumerate(members) if split_name(member) is None]
    problem = "ends in '/', so that its sample would have no name,"
    columns.refuse_rows(nameless, name, problem, advice)
    return stems


def _is_relative(path: str) -> bool:
    return "://" not in path and not path.startswith("/")


def _plain_path(path: str) -> str:
    """Return a path as stores take it: of one below the table without "./" and double slashes."""
    if not _is_relative(path):
        return path
    return "/".join(part for part in path.split("/") if part not in {"", "."})


def _leads_out(path: str) -> bool:
    return _is_relative(path) and ".." in path.split("/")


def _column(paths: pa.LargeStringArray) -> FileColumn:
    return FileColumn(paths=paths, sizes=np.full(len(paths), -1, dtype=np.int64))


def _notes(columns: _Columns) -> pa.LargeStringArray | None:
    names = [name for name in columns.cells.names if name not in columns.used()]
    if not names:
        return None
    try:
        return large_strings(_json_rows(columns.cells, names))
    except _NO_JSON:
        wrong = next((name for name in names if not _fits_json(columns.cells, name)), names[0])
    kind = str(columns.cells.kind(wrong))
    what = "bytes" if _BYTES in kind else f"values ({kind}) beyond those of Python"
    raise DatasetError(
        f'{columns.where}: column {wrong!r} holds {what}, which a sample\'s member "json" cannot. '
        "Remove the column, or write texts there."
    )


def _json_rows(cells: TableCells, names: Sequence[str]) -> list[str]:
    """Return the rows of some columns as JSON objects; raises one of `_NO_JSON`."""
    return [
        json.dumps(row, sort_keys=True, default=_as_json, ensure_ascii=False)
        for row in cells.rows(names)
    ]


def _fits_json(cells: TableCells, name: str) -> bool:
    with suppress(*_NO_JSON):
        _json_rows(cells, [name])
        return True
    return False


_NO_JSON = (ValueError, OverflowError, RecursionError, pa.ArrowException)
"""Errors of bytes that are no text, of deep nesting, and of times that Python's do not reach."""

_BYTES = "binary"  # in the names of Arrow's types, also within lists and structs


def _as_json(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
