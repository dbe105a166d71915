"""Record batches of the index: read as pyarrow reads them, and never a wrong error for damage."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.shards.index_rows import COLUMNS, IndexRows
from headrace.data.shards.index_writer import IndexRowBuilder, rows_of

KEYS = st.lists(st.text(max_size=6), max_size=20)


def built(keys: list[str]) -> IndexRowBuilder:
    rows = IndexRowBuilder()
    for number, key in enumerate(keys):
        members = {"jpg": ("range", (number * 512, number, 7 * number))}
        if number % 3:
            members["cls"] = ("value", (number,))
        rows.add(key, members)
    return rows


@given(keys=KEYS)
def test_rows_are_what_pyarrow_reads(keys: list[str]):
    rows = built(keys)
    batch, kinds = rows.batch(), rows.kinds()
    parsed = rows_of(batch, kinds)
    assert parsed.count == len(keys)
    ends = parsed.key_ends
    text = bytes(parsed.text)
    assert [text[ends[i] : ends[i + 1]].decode() for i in range(len(keys))] == keys
    for (extension, kind), columns in zip(kinds.items(), parsed.columns, strict=True):
        for column, values in zip(COLUMNS[kind], columns, strict=True):
            assert list(values) == batch.column(f"{extension}.{column.name}").to_pylist()


@given(
    place=st.floats(0, 1, exclude_max=True),
    value=st.integers(0, 255),
    cut=st.floats(0, 1),
)
def test_damage_is_a_value_error_or_other_rows(place: float, value: int, cut: float):
    rows = built([f"key{number}" for number in range(9)])
    kinds = rows.kinds()
    message = bytearray(rows.batch().serialize().to_pybytes())
    message[int(place * len(message))] = value
    for damaged in (message, message[: int(cut * len(message))]):
        with suppress(ValueError):
            parsed = IndexRows.parse(memoryview(damaged), kinds)
            ends = np.asarray(parsed.key_ends)
            assert len(ends) == parsed.count + 1
            assert (np.diff(ends) >= 0).all()
            assert ends[-1] <= len(parsed.text)
            parsed.digest(kinds)


def test_other_messages_are_refused():
    batch = pa.record_batch([pa.array([1])], names=["a"])
    for message in (batch.schema.serialize(), batch.serialize()):
        with pytest.raises(ValueError, match="Arrow message"):
            IndexRows.parse(memoryview(message), {"jpg": "range"})
