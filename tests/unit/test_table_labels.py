"""Labels of tables: names that numbers stand for, and names that look the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.core.errors import DatasetError
from headrace.data.shards.sources.sample_table import SampleTable
from headrace.data.shards.sources.source_kinds import SourceOptions, list_source
from image_trees import jpeg, write


def listed(path: Path, *classes: str) -> SampleTable:
    return list_source(str(path), SourceOptions(classes=classes))


def labels(table: SampleTable) -> list[int]:
    assert table.labels is not None
    return list(table.labels.tolist())


def hugging_face(path: Path, names: list[str], numbers: list[int], column: str = "label") -> Path:
    """Write a Parquet file as `datasets` does: what numbers mean is in the schema's metadata."""
    features = {
        "path": {"dtype": "string", "_type": "Value"},
        column: {"names": names, "_type": "ClassLabel"},
        "boxes": [{"dtype": "int64", "_type": "Value"}],
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    paths = [f"{path.stem}-{row}.jpg" for row in range(len(numbers))]
    table = pa.table({"path": paths, column: pa.array(numbers, pa.int64())})
    path.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), path)
    return path


def test_names_of_classes_in_the_metadata_of_parquet_are_kept(tmp_path: Path):
    names = ["zebra", "ant", "bee"]
    table = listed(hugging_face(tmp_path / "a.parquet", names, [2, 0, 0]))
    assert (table.classes, labels(table)) == (("zebra", "ant", "bee"), [2, 0, 0])
    assert listed(hugging_face(tmp_path / "b.parquet", names, [1], "Label")).classes[0] == "zebra"


def test_a_list_of_classes_numbers_those_of_parquet_by_their_names(tmp_path: Path):
    path = hugging_face(tmp_path / "a.parquet", ["zebra", "ant", "bee"], [2, 0, 1])
    table = listed(path, "ant", "bee", "cat", "zebra")
    assert (table.classes, labels(table)) == (("ant", "bee", "cat", "zebra"), [1, 3, 0])
    assert labels(listed(hugging_face(tmp_path / "b.parquet", ["x", "ant"], [1]), "ant")) == [0]
    with pytest.raises(DatasetError, match="unknown class 'zebra'"):
        listed(path, "ant", "bee")


def test_rows_without_a_class_and_parts_with_other_names_are_refused(tmp_path: Path):
    with pytest.raises(DatasetError, match=r"own 2 classes \(0 to 1\) in row 1, 3"):
        listed(hugging_face(tmp_path / "a.parquet", ["x", "y"], [-1, 0, 2]))
    for part, names in enumerate((["x", "y"], ["y", "x"])):
        hugging_face(tmp_path / "parts" / f"train-{part}.parquet", names, [0, 1])
    with pytest.raises(DatasetError, match="differ in the names of their classes"):
        listed(tmp_path / "parts")


@pytest.mark.parametrize("text", ["{", "[]", '{"info": 1}', '{"info": {"features": {"label": 1}}}'])
def test_metadata_of_another_writer_name_no_classes(tmp_path: Path, text: str):
    table = pa.table({"path": ["a.jpg"], "label": [4]})
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": text}), path)
    assert (listed(path).classes, labels(listed(path))) == ((), [4])


LOOK_THE_SAME = [
    ("cat", "cat "), (" cat", "cat"), ("cat", "cat\u00a0"), ("cat", "cat\u200b"), ("cat", "cat\t"),
    (normalize("NFC", "Löwe"), normalize("NFD", "Löwe")),
]  # fmt: skip


@pytest.mark.parametrize("names", LOOK_THE_SAME)
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "folders"])
def test_one_class_in_two_spellings_does_not_become_two(
    tmp_path: Path, names: tuple[str, str], ending: str
):
    rows: list[dict[str, Any]] = [
        {"path": f"{row}.jpg", "label": name} for row, name in enumerate((*names, "dog"))
    ]
    path = tmp_path / f"a.{ending}"
    if ending == "csv":
        path.write_text(
            "".join(f"{a},{b}\n" for a, b in [("path", "label"), *map(dict.values, rows)])
        )
    elif ending == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif ending == "parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        write(path, {f"{row['label']}/{row['path']}": jpeg() for row in rows})
    with pytest.raises(DatasetError, match=r"differ in (blanks|their Unicode form)"):
        listed(path)
    assert listed(path, *names, "dog").classes == (*names, "dog")


@pytest.mark.parametrize("values", [("cat",), ("cat", "dog")])
@pytest.mark.parametrize("within", ["", "data/"])
def test_a_column_in_the_names_of_folders_is_not_lost(
    tmp_path: Path, values: tuple[str, ...], within: str
):
    for value in values:
        folder = tmp_path / "t" / within / f"label={value}"
        folder.mkdir(parents=True)
        pyarrow.parquet.write_table(pa.table({"path": [f"{value}.jpg"]}), folder / "0.parquet")
    with pytest.raises(DatasetError, match="cells of the column 'label' are the names of folders"):
        listed(tmp_path / "t")


def test_a_part_without_rows_is_none_the_less_a_part(tmp_path: Path):
    for part, paths in enumerate(([], ["1.jpg"], [])):
        table = pa.table({"path": pa.array(paths, pa.string()), "label": [7] * len(paths)})
        schema = pa.schema({"path": pa.string(), "label": pa.int64()})
        pyarrow.parquet.write_table(table.cast(schema), tmp_path / f"part-{part}.parquet")
    assert labels(listed(tmp_path)) == [7]


def test_one_name_at_two_places_is_told_with_what_names_samples_otherwise(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("url\nhttp://a/1.jpg\nhttp://b/1.jpg\n")
    with pytest.raises(DatasetError, match="or name the samples in a column 'key'"):
        listed(path)


@pytest.mark.parametrize(
    ("header", "cells", "is_fine"),
    [
        ("path,note", "a.json,x", False), ("path,label", "a.CLS,1", False),
        ("image,mask,note", "a.jpg,a.json,x", False), ("path,label", "http://h/a.cls?x=1,1", False),
        ("path,label", "a.json,1", True), ("path,note", "a.cls,x", True), ("path", "a.json", True),
    ],
)  # fmt: skip
def test_a_file_is_not_dropped_for_the_member_that_columns_make(
    tmp_path: Path, header: str, cells: str, is_fine: bool
):
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n{cells}\n")
    if is_fine:
        assert len(listed(path)) == 1
    else:
        with pytest.raises(DatasetError, match="which other columns make, in row 1"):
            listed(path)


@pytest.mark.parametrize(
    "rows", ["url\nhttp://h/a/\n", "path,key\na.jpg,x/\n", "path,key\na.jpg,/\n"]
)
def test_samples_without_a_name_are_refused(tmp_path: Path, rows: str):
    path = tmp_path / "a.csv"
    path.write_text(rows)
    with pytest.raises(DatasetError, match=r"ends in '/'|a leading '/'"):
        listed(path)
