"""Tables of files and labels: cells keep what is written; what cannot be read is one sentence."""

from __future__ import annotations

import codecs
import datetime as dt
import decimal
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import DatasetError, HeadraceError, NotFoundError
from headrace.data.image_files import masks_among
from headrace.data.shards.sources.sample_table import SampleTable, samples_of
from headrace.data.shards.sources.source_kinds import SourceOptions, list_source, read_classes


def listed(path: Path, *classes: str, split: str | None = None) -> SampleTable:
    return list_source(str(path), SourceOptions(classes=classes, split=split))


def rows(table: SampleTable) -> list[tuple[Any, ...]]:
    """Return each row's path, key, class number, and the rest of its cells."""
    return [
        (
            sample.files[0].path,
            sample.key,
            int(dict(sample.values).get("cls", b"-1")),
            json.loads(dict(sample.values).get("json", b"{}")),
        )
        for sample in samples_of(table)
    ]


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def parquet(folder: Path, name: str, /, **columns: Any) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


CELLS = ["000007", "0x1F", "True", "TRUE", "1e3", "2024-01-05", "2024-01-05 10:00", "10:00", "NA",
         "nan", "null", "12345678901234567890", "007.50", "+1", "inf", "Löwe"]  # fmt: skip


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_cells_that_name_files_classes_and_samples_keep_their_text(tmp_path: Path, ending: str):
    for cell in CELLS:
        names = [cell, cell.replace("1", "2").replace("T", "F") + "2"]
        if ending == "parquet":
            path = parquet(tmp_path, "t.parquet", path=names, label=names, key=names, more=names)
        elif ending == "jsonl":
            lines = [json.dumps(dict.fromkeys(("path", "label", "key", "more"), n)) for n in names]
            path = written(tmp_path, "t.jsonl", "\n".join(lines))
        else:
            comma = "," if ending == "csv" else "\t"
            lines = [
                comma.join(cells)
                for cells in [("path", "label", "key"), *([name] * 3 for name in names)]
            ]
            path = written(tmp_path, f"t.{ending}", "\n".join(lines))
        table = listed(path)
        assert [each[0] for each in rows(table)] == names
        assert table.stems.to_pylist() == names
        assert table.classes == tuple(sorted(names))
        assert [table.classes[each[2]] for each in rows(table)] == names
        if ending in {"jsonl", "parquet"}:
            assert [each[3]["more"] for each in rows(table)] == names


def test_the_same_cells_alone_in_a_column_of_their_kind(tmp_path: Path):
    """Arrow would read all of a column as numbers, truths or times."""
    for names in (
        ["000007", "000045"], ["01", "10"], ["True", "False"], ["1e3", "2e3"], ["10:00", "11:30"],
        ["2024-01-05", "2024-01-06"], ["2024-01-05T10:00:00Z", "2024-01-05T10:00:01Z"],
        ["12345678901234567890", "12345678901234567891"], ["0x1F", "0x20"],
    ):  # fmt: skip
        lines = [f"path,label,more\n{names[0]},{names[0]},{names[0]}", ",".join([names[1]] * 3)]
        table = listed(written(tmp_path, "t.csv", "\n".join(lines)))
        assert [each[0] for each in rows(table)] == names
        assert [table.classes[each[2]] for each in rows(table)] == names
        known = listed(tmp_path / "t.csv", "other", *names)
        assert known.labels is not None
        assert known.labels.tolist() == [1, 2]


def test_other_cells_are_values_where_that_loses_nothing(tmp_path: Path):
    for cells, values in (
        (["1", "-20"], [1, -20]), (["1", ""], [1, None]), (["1.50", "2"], [1.5, 2.0]),
        (["1e-3", "NaN"], [0.001, None]), (["true", "False"], [True, False]),
        (["a", ""], ["a", ""]),
        (["", ""], [None, None]), (["2024-01-05", "2024-01-06"], ["2024-01-05", "2024-01-06"]),
        (["01234", "10115"], ["01234", "10115"]), (["10:00", ""], ["10:00", ""]),
        (["12345678901234567890", "1"], ["12345678901234567890", "1"]),
        (["inf", "1"], ["inf", "1"]), (["0x1F", "1"], ["0x1F", "1"]),
        (["0.123456789012345678901", "0.5"], [0.12345678901234568, 0.5]),
    ):  # fmt: skip
        lines = ["path,more", *(f"{n}.jpg,{cell}" for n, cell in enumerate(cells))]
        table = listed(written(tmp_path, "t.csv", "\n".join(lines)))
        assert [each[3]["more"] for each in rows(table)] == values, cells


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    labels=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    lat=st.floats(-90, 90) | st.integers(-5, 5),
)
def test_tables_that_were_right_before_give_the_same(tmp_path: Path, labels: list[int], lat: float):
    records = [{"path": f"a/{n}.jpg", "label": label, "lat": lat} for n, label in enumerate(labels)]
    expected = [(f"a/{n}.jpg", f"a/{n}", label, {"lat": lat}) for n, label in enumerate(labels)]
    text = "path,label,lat\n" + "".join(f"a/{n}.jpg, {x},{lat}\n" for n, x in enumerate(labels))
    for path in (
        written(tmp_path, "t.csv", text),
        written(tmp_path, "t.jsonl", "\n".join(map(json.dumps, records))),
        parquet(tmp_path, "t.parquet", **{k: [r[k] for r in records] for k in records[0]}),
    ):
        table = listed(path)
        assert (rows(table), table.classes) == (expected, ())


@pytest.mark.parametrize(
    ("cells", "labels", "classes"),
    [
        (["0", "2", "10"], [0, 2, 10], ()),
        (["7"], [7], ()),
        (["2147483647", "0"], [2**31 - 1, 0], ()),
        (["01", "10"], [0, 1], ("01", "10")),  # a leading zero: names
        (["2", "x", "10"], [1, 2, 0], ("10", "2", "x")),
        (["00", "0"], [1, 0], ("0", "00")),
        (["99999999999999999999", "5"], [1, 0], ("5", "99999999999999999999")),
    ],
)
def test_class_numbers_are_numbers_also_as_texts(
    tmp_path: Path, cells: list[str], labels: list[int], classes: tuple[str, ...]
):
    records = [{"path": f"{n}.jpg", "label": cell} for n, cell in enumerate(cells)]
    paths = [record["path"] for record in records]
    plain = ["path,label", *(f"{n}.jpg,{cell}" for n, cell in enumerate(cells))]
    quoted = ["path,label", *(f'{n}.jpg,"{cell}"' for n, cell in enumerate(cells))]
    for path in (
        written(tmp_path, "t.csv", "\n".join(plain)),
        written(tmp_path, "q.csv", "\n".join(quoted)),
        written(tmp_path, "t.jsonl", "\n".join(map(json.dumps, records))),
        parquet(tmp_path, "t.parquet", path=paths, label=cells),
        parquet(tmp_path, "l.parquet", path=paths, label=pa.array(cells, pa.large_string())),
        parquet(tmp_path, "d.parquet", path=paths, label=pa.array(cells).dictionary_encode()),
        parquet(tmp_path, "b.parquet", path=paths, label=[cell.encode() for cell in cells]),
    ):
        table = listed(path)
        assert [each[2] for each in rows(table)] == labels, path.name
        assert table.classes == classes, path.name


def test_texts_of_numbers_are_checked_against_given_classes(tmp_path: Path):
    path = written(tmp_path, "t.jsonl", '{"path": "1.jpg", "label": "2"}\n')
    assert [each[2] for each in rows(listed(path, *"abc"))] == [2]
    with pytest.raises(DatasetError, match=r"is an unknown class \(not 0 to 1\) in row 1"):
        listed(path, *"ab")
    assert [each[2] for each in rows(listed(path, "1", "2"))] == [1]  # by name


def test_a_list_of_names_that_are_numbers(tmp_path: Path):
    path = written(tmp_path, "t.csv", "path,label\na.jpg,10\nb.jpg,10\n")
    for classes, numbers in (
        (("01", "10"), [1, 1]),  # by name: there is no class number 10
        (tuple(map(str, range(11))), [10, 10]),  # by name and by number
        (tuple("abcdefghijkl"), [10, 10]),  # by number
    ):
        table = listed(path, *classes)
        assert table.labels is not None
        assert table.labels.tolist() == numbers
    folders = sorted(map(str, range(12)))  # as class folders are numbered: 10 is the number 2
    with pytest.raises(DatasetError, match=r"10 is the number of the class '8' or the name"):
        listed(path, *folders)


def test_encodings(tmp_path: Path):
    text = "path,label\n1.jpg,Löwe\n2.jpg,Ü\n"
    for data in (
        text.encode(),
        text.encode("utf-8-sig"),
        text.encode("utf-16"),
        text.encode("utf-16-le"),
        text.encode("utf-16-be"),
        codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
        text.encode("utf-32"),
        text.replace("\n", "\r\n").encode("utf-16"),
        text.replace(",", ";").encode(),
        text.replace(",", "\t").encode("utf-8-sig"),
        text.replace("path", '"path"').encode("utf-8-sig"),
    ):
        assert listed(written(tmp_path, "t.csv", data)).classes == ("Löwe", "Ü")
    lines = '{"path": "1.jpg", "label": "Löwe"}\n'
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        assert listed(written(tmp_path, "t.jsonl", lines.encode(encoding))).classes == ("Löwe",)
    names = written(tmp_path, "names.txt", "Löwe\nÜ\n".encode("utf-8-sig"))
    assert read_classes(str(names)) == ("Löwe", "Ü")
    for name in ("t.csv", "t.tsv", "t.jsonl"):
        with pytest.raises(DatasetError, match=r"no text in UTF-8: line 2 .*iconv"):
            listed(written(tmp_path, name, text.encode("latin-1")))
    with pytest.raises(DatasetError, match=r"names\.txt is no text in UTF-8: line 1"):
        read_classes(str(written(tmp_path, "names.txt", "Löwe\n".encode("cp1252"))))


def test_rows_longer_than_a_block_and_lines_within_cells(tmp_path: Path):
    long = "x" * (3 << 20)
    for path in (
        written(tmp_path, "t.csv", f'path,more\n1.jpg,"{long}"\n2.jpg,"two\nlines"\n'),
        written(tmp_path, "t.jsonl", "\n".join(
            json.dumps({"path": f"{n}.jpg", "more": text})
            for n, text in ((1, long), (2, "two\nlines"))
        )),
    ):  # fmt: skip
        assert [each[3]["more"] for each in rows(listed(path))] == [long, "two\nlines"]


JPEG = b"\xff\xd8\xff"
STRUCTS = [{"bytes": JPEG, "path": "1.jpg"}, {"bytes": None, "path": "2.jpg"}]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"image": STRUCTS}, "'image' holds the files themselves"),
    ({"image": pa.array([JPEG, JPEG])}, "'image' holds the files themselves"),
    ({"image": pa.array([JPEG, JPEG], pa.large_binary())}, "'image' holds the files themselves"),
    ({"image": pa.array([JPEG, JPEG], pa.binary(3))}, "'image' holds the files themselves"),
    ({"image": [["1.jpg"], []]}, "'image' holds lists"),
    ({"image": [{"url": "1.jpg"}] * 2}, "'image' holds values"),
    ({"image": [1.5, 2.5]}, "'image' holds numbers with decimals"),
    ({"path": ["1.jpg", None]}, "'path' is empty in row 2"),
    ({"path": ["1.jpg", "2.jpg"], "label": [[0, 1], [1]]}, "'label' holds lists"),
    ({"path": ["1.jpg", "2.jpg"], "label": [{"a": 1}, {"a": 2}]}, "'label' holds values"),
    ({"path": ["1.jpg", "2.jpg"], "label": [1.0, 2.0]}, "'label' holds numbers with decimals"),
    ({"path": ["1.jpg", "2.jpg"], "label": [1, None]}, "'label' is empty in row 2"),
    ({"path": ["1.jpg", "2.jpg"], "label": [None, None]}, "'label' is empty in row 1, 2"),
    ({"path": ["1.jpg", "2.jpg"], "label": [decimal.Decimal("1.0")] * 2}, "with decimals"),
    ({"path": ["1.jpg", "2.jpg"], "mask": [[1], [2]]}, "'mask' holds lists"),
    ({"path": ["1.jpg", "2.jpg"], "key": [[1], [2]]}, "'key' holds lists"),
    ({"path": ["1.jpg", "2.jpg"], "thumb": [JPEG, JPEG]}, "'thumb' holds bytes"),
    ({"path": ["1.jpg", "2.jpg"], "more": [[JPEG], [JPEG]]}, "'more' holds bytes"),
]


def test_columns_that_cannot_be_read_are_named_with_what_to_do(tmp_path: Path):
    for columns, message in REFUSED:
        with pytest.raises(DatasetError, match=message) as raised:
            listed(parquet(tmp_path, "t.parquet", **columns))
        assert str(raised.value).startswith(f"{tmp_path}/t.parquet: column ")


CHUNKS: dict[str, Any] = {
    "names": ["1.jpg", "2.jpg"],
    "nulls": [None, None],
    "some": ["1.jpg", None],
    "latin": pa.Array.from_buffers(
        pa.string(),
        2,
        [None, pa.py_buffer(np.array([0, 1, 2], np.int32).tobytes()), pa.py_buffer(b"\xe9\xff")],
    ),
    "zero": ["a\0.jpg", "b.jpg"],
    "long": pa.array([2**64 - 1, 3], pa.uint64()),
    "nan": [float("nan"), 1.0],
    "half": pa.array(np.array([1.5, 2.5], np.float16)),
    "bool": [True, False],
    "date": [dt.date(2024, 1, 1)] * 2,
    "decimal": [decimal.Decimal("1.0")] * 2,
    "far": pa.array([10**14, 1], pa.timestamp("s")),
    "fine": pa.array([1, 2], pa.timestamp("ns")),
    "zone": pa.array([1, 2], pa.timestamp("us", tz="Mars/X")),
    "time": pa.array([1, 2], pa.time64("ns")),
    "lasting": pa.array([2**62, 2], pa.duration("s")),
    "bytes": [JPEG, b"x"],
    "lists": [[1], []],
    "structs": STRUCTS,
    "null structs": [None, {"bytes": None, "path": None}],
    "maps": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(["1.jpg", None]).dictionary_encode(),
    "view": pa.array(["a", "b"], pa.string_view()),
    "nested": [{"x": [{"y": JPEG}]}, None],
    "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
}


@pytest.mark.parametrize("role", ["path", "mask", "label", "key", "more"])
def test_any_column_in_any_role_is_read_or_one_sentence(tmp_path: Path, role: str):
    for kind, column in CHUNKS.items():
        path = parquet(tmp_path, "t.parquet", **({"path": ["1.jpg", "2.jpg"]} | {role: column}))
        try:
            assert len(rows(listed(path))) == 2
        except DatasetError as error:
            assert "column" in str(error), kind  # noqa: PT017
            assert len(str(error)) < 600, kind  # noqa: PT017


def test_images_in_many_parts_are_refused_before_all_are_read(tmp_path: Path):
    parquet(tmp_path / "data", "train-00000-of-00002.parquet", image=STRUCTS, label=[0, 1])
    written(tmp_path / "data", "train-00001-of-00002.parquet", "never read")
    with pytest.raises(DatasetError, match="'image' holds the files themselves"):
        listed(tmp_path)


def test_columns_of_parquet_that_can_be_read(tmp_path: Path):
    paths = ["1.jpg", "2.jpg"]
    no_bytes = pa.array(
        [{"bytes": None, "path": path} for path in paths],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    for image in (
        paths, no_bytes, pa.array(paths).dictionary_encode(), pa.array([p.encode() for p in paths]),
        pa.array(paths, pa.large_string()), pa.array(paths, pa.string_view()),
    ):  # fmt: skip
        table = listed(parquet(tmp_path, "t.parquet", image=image, label=[3, 4]))
        assert [each[:3] for each in rows(table)] == [("1.jpg", "1", 3), ("2.jpg", "2", 4)]
    for label in (["b", "a"], pa.array(["b", "a"]).dictionary_encode(), [b"b", b"a"]):
        assert listed(parquet(tmp_path, "t.parquet", path=paths, label=label)).classes == ("a", "b")
    numbers = pa.array([5, 6]).dictionary_encode()
    table = listed(parquet(tmp_path, "t.parquet", path=paths, label=numbers))
    assert [each[2] for each in rows(table)] == [5, 6]
    when = dt.date(2024, 1, 5)
    more = [{"boxes": [[1, 2]], "when": when}, None]
    table = listed(parquet(tmp_path, "t.parquet", path=paths, boxes=[[1], []], more=more))
    assert rows(table)[0][3] == {"boxes": [1], "more": {"boxes": [[1, 2]], "when": "2024-01-05"}}


def test_text_tables_that_cannot_be_read_are_one_sentence(tmp_path: Path):
    for name, text, message in (
        ("t.csv", "path,label,label\n1.jpg,1,2\n", "several columns 'label'"),
        ("t.csv", "path,label\n1.jpg,1\n2.jpg,NA\n", "'label' is empty in row 2"),
        ("t.csv", "", "cannot be read as its name says"),
        ("t.csv", "path\n1.jpg,2\n", "cannot be read as its name says"),
        ("t.csv", "a;b\n1;2\n", "has the columns a;b; one of url"),
        ("t.jsonl", '[{"path": "1.jpg"}]', "cannot be read as its name says"),
        ("t.jsonl", '{"path": "1.jpg", "path": "2.jpg"}', "cannot be read as its name says"),
        ("t.jsonl", '{"path": "1.jpg", "label": [1]}', "'label' holds lists"),
        ("t.jsonl", '{"path": {"a": 1}}', "'path' holds values"),
        ("t.jsonl", '{"path": 12345678901234567890}', "numbers with decimals, or of 20 digits"),
        ("t.jsonl", "not json", "cannot be read as its name says"),
        ("t.parquet", "not parquet", "cannot be read as its name says"),
    ):
        with pytest.raises(DatasetError, match=message):
            listed(written(tmp_path, name, text))


def test_parquet_files_in_a_folder_are_one_table(tmp_path: Path):
    for split, parts in (("train", 3), ("test", 1)):
        for part in range(parts):
            name = f"{split}-{part:05d}-of-{parts:05d}.parquet"
            path = [f"{split}{part}.jpg"]
            parquet(tmp_path / "data", name, path=path, label=[part], lat=[0.5])
    for folder in (tmp_path, tmp_path / "data"):
        table = listed(folder, split="train")
        assert [each[1:] for each in rows(table)] == [
            (f"train{part}", part, {"lat": 0.5}) for part in range(3)
        ]
        assert table.url == str(tmp_path / "data")  # where relative paths begin
        assert table.source.num_files == 3
        with pytest.raises(DatasetError, match=r"2 tables: data/test|2 tables: test"):
            listed(folder)
    first = listed(tmp_path, split="train").source.listing
    parquet(tmp_path / "data", "train-00001-of-00003.parquet", path=["other.jpg"], label=[1])
    assert listed(tmp_path, split="train").source.listing != first
    assert rows(listed(tmp_path, split="train"))[1][1:] == ("other", 1, {"lat": None})
    parquet(tmp_path / "data", "train-00001-of-00003.parquet", path=["other.jpg"], label=["a"])
    with pytest.raises(DatasetError, match="the tables differ in their columns' types"):
        listed(tmp_path, split="train")
    (tmp_path / "data" / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(DatasetError, match="is one of 3 files, and 2 are there"):
        listed(tmp_path, split="train")


def test_other_folders_of_tables(tmp_path: Path):
    spark = tmp_path / "table.parquet"
    for part in range(2):
        name = f"part-0000{part}-3f2a-c000.snappy.parquet"
        parquet(spark, name, path=[f"{part}.jpg"], label=[part])
    written(spark, "_SUCCESS", "")
    assert [each[1] for each in rows(listed(spark))] == ["0", "1"]
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("train.csv", "val.csv"):
        written(texts, name, "path\n1.jpg\n")
    with pytest.raises(DatasetError, match=r"no images but 2 tables.*Name one, such as .*train"):
        listed(texts)
    with pytest.raises(NotFoundError):
        listed(tmp_path / "none.parquet")
    written(texts, "1.jpg", b"")  # beside an image they are no table
    assert len(listed(texts)) == 1


def test_nothing_else_than_a_sentence_comes_of_any_bytes(tmp_path: Path):
    for start in (b"", b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"\0", b"path\n", b"PAR1"):
        for rest in (b"", b"\0", b"\xd8\x00a", b'a,"b\n', b"\xff" * 9, b"PAR1"):
            for name in ("t.csv", "t.tsv", "t.jsonl", "t.parquet"):
                try:
                    listed(written(tmp_path, name, start + rest))
                except HeadraceError as error:
                    assert name in str(error)  # noqa: PT017


def test_paths_below_the_table_may_begin_with_a_dot(tmp_path: Path):
    """As `find . -name '*.jpg'` writes them."""
    names = ["./a/1.jpg", "a//2.jpg", "a/./3.jpg", "././4.jpg", "./a b/é.jpg"]
    lines = ["path,mask", *(f"{name},{name.replace('jpg', 'png')}" for name in names)]
    table = listed(written(tmp_path, "t.csv", "\n".join(lines)))
    plain = ["a/1.jpg", "a/2.jpg", "a/3.jpg", "4.jpg", "a b/é.jpg"]
    assert table.images.paths.to_pylist() == plain
    assert table.masks is not None
    assert table.masks.paths.to_pylist() == [name.replace("jpg", "png") for name in plain]
    for path, words in (("./../1.jpg", "leads out"), ("./", "names the table's own folder")):
        with pytest.raises(DatasetError, match=rf"'path' {words}.* in row 1 \(of 1\)"):
            listed(written(tmp_path, "t.csv", f"path\n{path}\n"))


def test_urls_of_buckets_have_no_query_and_no_fragment(tmp_path: Path):
    urls = ["s3://b/a#1.jpg", "s3://b/a#2.jpg", "gs://b/c?x=1.png", "https://h/d.jpg?x=1.png#e"]
    table = listed(written(tmp_path, "t.csv", "\n".join(["url", *urls])))
    assert [(each[0], each[1]) for each in rows(table)] == list(
        zip(urls, ["a#1", "a#2", "c?x=1", "d"], strict=True)
    )
    extensions = [sample.files[0].extension for sample in samples_of(table)]
    assert extensions == ["jpg", "jpg", "png", "jpg"]


def test_blanks_around_the_names_of_columns_lose_no_column(tmp_path: Path):
    for header in ("path, label", " path ,label\t", '"path","label "', "\ufeffpath , label "):
        table = listed(written(tmp_path, "t.csv", f"{header}\n1.jpg,a\n2.jpg,b\n"))
        assert table.classes == ("a", "b")
    with pytest.raises(DatasetError, match="several columns 'label'"):
        listed(written(tmp_path, "t.csv", "path,label, label\n1.jpg,a,b\n"))


def test_names_of_columns_in_upper_case(tmp_path: Path):
    for header in ("Image,Label", "URL,CLASS", "File_Name,Cls", "Path;Label"):
        comma = ";" if ";" in header else ","
        text = f"{header}\n1.jpg{comma}a\n2.jpg{comma}b\n"
        assert listed(written(tmp_path, "t.csv", text)).classes == ("a", "b")
    table = listed(written(tmp_path, "t.csv", "Path,path,Label,label,Key\n0.jpg,1.jpg,a,b,c\n"))
    assert rows(table) == [("1.jpg", "1", 0, {"Path": "0.jpg", "Label": "a", "Key": "c"})]
    assert table.classes == ("b",)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["2024-01-05", "2024-01-05 10:00", "007", "", "é\n"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    ),
    max_leaves=5,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(JSON_VALUES, min_size=1, max_size=3))
def test_other_values_of_json_lines_are_as_they_are_written(tmp_path: Path, values: list[Any]):
    lines = [json.dumps({"path": f"{n}.jpg", "more": value}) for n, value in enumerate(values)]
    try:
        found = [
            each[3]["more"] for each in rows(listed(written(tmp_path, "t.jsonl", "\n".join(lines))))
        ]
    except DatasetError as error:  # a column of several types
        assert "cannot be read as its name says" in str(error)  # noqa: PT017
        return
    assert json.dumps(found, sort_keys=True) == json.dumps(values, sort_keys=True)


def test_numbers_beside_others_with_decimals_lose_no_digits(tmp_path: Path):
    for number in (2**53 - 1, 2**53 + 1, 2**53 + 2, -(2**53) - 1, 10**17 + 1, 2**62 + 1, 10**25):
        lines = ["path,more", f"1.jpg,{number}", "2.jpg,0.5"]
        more = rows(listed(written(tmp_path, "t.csv", "\n".join(lines))))[0][3]["more"]
        assert more == (number if number == 2**53 - 1 or number == 2**53 + 2 else str(number))
        text = "".join(
            f'{{"path": "{n}.jpg", "more": {more} }}\n' for n, more in enumerate((number, 0.5))
        )
        assert rows(listed(written(tmp_path, "t.jsonl", text)))[0][3] == {"more": number}
    for number in ("1e30", "1.5e+16", "9007199254740994.0"):
        path = written(tmp_path, "t.jsonl", f'{{"path": "1.jpg", "more": {number}}}\n')
        assert rows(listed(path))[0][3] == {"more": float(number)}


def test_a_quote_that_is_not_closed_swallows_no_rows(tmp_path: Path):
    for text in ('path,label\n1.jpg,"a\n2.jpg,b\n', 'path,label\n"1.jpg,a\n2.jpg,b\n3.jpg,c'):
        for name, comma in (("t.csv", ","), ("t.tsv", "\t"), ("t.csv", ";")):
            with pytest.raises(DatasetError, match="a quote that opens in the row at line 2"):
                listed(written(tmp_path, name, text.replace(",", comma)))
    text = 'path,label\n1.jpg,6" disk\n2.jpg,"a ""b"""\n3.jpg,"two\nlines"\n'
    table = listed(written(tmp_path, "t.csv", text))
    assert table.classes == ('6" disk', 'a "b"', "two\nlines")


def test_rows_between_two_quotes_of_a_tsv_file_are_not_one_cell(tmp_path: Path):
    text = (
        'path\tcaption\n1.jpg\tx\n2.jpg\t"so" he said\n3.jpg\t"so\n4.jpg\ty\n5.jpg\t"\n6.jpg\tz\n'
    )
    for name in ("t.tsv", "t.csv"):
        with pytest.raises(
            DatasetError, match=r"'caption' holds tabs and lines .* in row 3: likely"
        ):
            listed(written(tmp_path, name, text))
    text = 'path\tcaption\n1.jpg\t"two\nlines"\n2.jpg\t"a\ttab"\n3.jpg\tsix" wide\n'
    captions = [each[3]["caption"] for each in rows(listed(written(tmp_path, "t.tsv", text)))]
    assert captions == ["two\nlines", "a\ttab", 'six" wide']


def test_parts_of_one_table_may_be_named_by_their_content(tmp_path: Path):
    for number, content in enumerate(("6ef3991c06080e14", "c4bbd3e2a2e0c5af")):
        name = f"train-{number:05d}-of-00002-{content}.parquet"
        parquet(tmp_path / "data", name, path=[f"{number}.jpg"], label=[number])
    for split in (None, "train"):
        assert [each[1] for each in rows(listed(tmp_path, split=split))] == ["0", "1"]
    parquet(tmp_path / "data", "test-00000-of-00001-c4bbd3e2a2e0c5af.parquet", path=["3.jpg"])
    with pytest.raises(DatasetError, match=r"2 tables: .*test-.*, .*train-.* \(2 files\)"):
        listed(tmp_path)


KINDS = ["bmp", "gif", "jpg", "png", "ppm", "tif", "webp", "npy"]


@pytest.mark.parametrize("image", KINDS)
@pytest.mark.parametrize("mask", KINDS)
def test_readers_know_the_mask_by_the_names_that_packing_gives(tmp_path, image, mask):
    path = written(tmp_path, "t.csv", f"path,mask\na/x.{image},b/x.{mask}\n")
    (sample,) = samples_of(listed(path))
    first, second = (file.extension for file in sample.files)
    assert (first.rpartition(".")[2], second.rpartition(".")[2]) == (image, mask)
    assert first != second
    expected = set() if mask == "npy" else {second}
    assert masks_among((first, second)) == masks_among((second, first))
    assert masks_among((first, second)) & {second} == expected
    assert first not in masks_among((first, second)) or mask == "npy"
    usual = {
        ("jpg", "png"): ("jpg", "png"),
        ("png", "png"): ("image.png", "png"),
        ("tif", "png"): ("tif", "png"),
        ("jpg", "gif"): ("jpg", "gif"),
        ("jpg", "jpg"): ("image.jpg", "jpg"),
    }
    assert (first, second) == usual.get((image, mask), (first, second))


def names_of_pairs(folder: Path, kinds: list[tuple[str, str]]) -> list[tuple[str, ...]]:
    lines = [f"a/{n}.{image},b/{n}.{mask}" for n, (image, mask) in enumerate(kinds)]
    table = listed(written(folder, "t.csv", "\n".join(["path,mask", *lines])))
    parts = [table.take(np.array([row])) for row in range(len(table))]  # as shards are cut
    named = [tuple(file.extension for file in samples_of(part)[0].files) for part in parts]
    whole = [tuple(file.extension for file in sample.files) for sample in samples_of(table)]
    assert named == whole
    return named


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)), min_size=1, max_size=4))
def test_a_name_is_an_images_or_a_masks_throughout_a_dataset(tmp_path, kinds):
    named = names_of_pairs(tmp_path, kinds)
    images, masks = (set(names) for names in zip(*named, strict=True))
    assert not images & masks
    for (image, mask), names in zip(kinds, named, strict=True):
        assert tuple(name.rpartition(".")[2] for name in names) == (image, mask)
        assert masks_among(names) == ({names[1]} if mask != "npy" else set())
    alone = [names_of_pairs(tmp_path, [each])[0] for each in kinds]
    if not {image for image, _ in alone} & {mask for _, mask in alone}:
        assert named == alone  # as they have always been named


@pytest.mark.parametrize(
    ("kinds", "names"),
    [
        ([("jpg", "png"), ("png", "tif")], [("jpg", "png"), ("image.png", "mask.tif")]),
        ([("jpg", "png"), ("png", "png")], [("jpg", "png"), ("image.png", "png")]),
        ([("png", "png"), ("png", "tif")], [("image.png", "png"), ("image.png", "mask.tif")]),
        (
            [("jpg", "png"), ("png", "tif"), ("tif", "png")],
            [("jpg", "png"), ("image.png", "mask.tif"), ("tif", "png")],
        ),
    ],
)
def test_names_of_pairs_of_several_formats(tmp_path, kinds, names):
    assert names_of_pairs(tmp_path, kinds) == names


def notes(path: Path, *cells: str) -> list[Any]:
    """Return the values of a column x of a CSV file with these cells."""
    text = "".join(f"{row}.jpg,{cell}\n" for row, cell in enumerate(cells))
    return [row[3]["x"] for row in rows(listed(written(path, "x.csv", f"path,x\n{text}")))]


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (("NA", "NA"), ["NA", "NA"]),  # Namibia, where nothing else is in the column
        (("null", ""), ["null", ""]),
        (("", ""), [None, None]),
        (("true", "0", "1"), ["true", "0", "1"]),
        (("true", "False"), [True, False]),
    ],
)  # fmt: skip
def test_cells_that_values_would_change_stay_texts(tmp_path: Path, cells, values):
    assert notes(tmp_path, *cells) == values


def test_deeply_nested_values_are_one_sentence(tmp_path: Path):
    for depth in (400, 900, 3000):
        deep = "[" * depth + "]" * depth
        path = written(tmp_path, "a.jsonl", f'{{"path": "a.jpg", "x": 1, "y": {deep}}}\n')
        with suppress(DatasetError):
            assert len(listed(path)) == 1
