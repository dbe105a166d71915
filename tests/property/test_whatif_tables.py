"""Columns of a table: the same values as Arrow's, however rows are chosen and added up."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.whatif.tables import columns

TEXT = pa.dictionary(pa.int32(), pa.string())  # as records hold it
TEXTS = st.sampled_from(["train", "eval", "", "ü"])
ROWS = st.lists(st.tuples(TEXTS | st.none(), st.integers(-5, 5), st.floats(0, 1)), max_size=30)
PIECES = st.integers(1, 4)


class OneTable:
    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def table(self, _name: str) -> pa.Table:
        return self._table


def table_of(rows: list[tuple], *, coded: bool = True) -> pa.Table:
    kinds = (TEXT if coded else pa.string(), pa.int64(), pa.float64())
    values = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = [pa.array(list(each), kind) for each, kind in zip(values, kinds, strict=True)]
    return pa.table(arrays, names=["kind", "number", "share"])


def as_rows(found) -> list[tuple]:
    return list(zip(*(found[name].tolist() for name in ("kind", "number", "share")), strict=True))


def without_none(rows: list[tuple]) -> list[tuple]:
    return [(kind or "", number, share) for kind, number, share in rows]


@given(rows=ROWS, pieces=PIECES, coded=st.booleans())
def test_columns_are_the_table_s_values_in_however_many_pieces(rows, pieces, coded):
    size = -(-len(rows) // pieces) or 1
    parts = [table_of(rows[at : at + size], coded=coded) for at in range(0, len(rows), size)]
    table = pa.concat_tables(parts or [table_of([], coded=coded)])
    found = columns(OneTable(table), "steps")
    assert as_rows(found) == without_none(rows)
    assert found.count == len(rows)


@given(rows=ROWS, data=st.data())
def test_a_choice_of_a_choice_is_that_of_lists(rows, data):
    found, expected = columns(OneTable(table_of(rows)), "steps"), without_none(rows)
    for _ in range(data.draw(st.integers(0, 3))):
        if data.draw(st.booleans()):
            count = len(expected)
            mask = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
            found = found.where(np.array(mask, dtype=np.bool_))
            expected = [row for row, taken in zip(expected, mask, strict=True) if taken]
        elif expected:
            places = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=40))
            found = found.where(np.array(places, dtype=np.int64))
            expected = [expected[place] for place in places]
        assert as_rows(found) == expected
        assert found.count == len(expected)
        assert list(found) == ["kind", "number", "share"]


def test_neighbouring_rows_are_looked_at_and_not_copied():
    found = columns(OneTable(table_of([("train", number, 0.5) for number in range(9)])), "steps")
    middle = found.where(found["number"] > 1).where(np.arange(5))
    assert np.shares_memory(middle["number"], found["number"])
    assert middle["number"].tolist() == [2, 3, 4, 5, 6]


def test_a_text_is_one_string_for_all_its_rows():
    found = columns(OneTable(table_of([("a longer text", 0, 0.0)] * 3)), "steps")
    assert len({id(text) for text in found["kind"]}) == 1


@given(rows=ROWS)
def test_rows_that_agree_are_grouped_and_added_up(rows):
    found, expected = columns(OneTable(table_of(rows)), "steps"), without_none(rows)
    groups = [[expected[place] for place in places] for places in found.group("kind")]
    order = list(dict.fromkeys(kind for kind, _, _ in expected))
    assert groups == [[row for row in expected if row[0] == kind] for kind in order]
    added = found.summed(by=("kind",), sums=("number", "share"))
    sums = Counter()
    for kind, number, _ in expected:
        sums[kind] += number
    assert dict(zip(added["kind"].tolist(), added["number"].tolist(), strict=True)) == {
        kind: sums[kind] for kind in order
    }
    assert added["share"].sum() == pytest.approx(sum(share for _, _, share in expected))
    assert added.count == len(order)
