"""Rings: what is written reads back once, in order, wherever the reader is killed."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import RecordsError
from headrace.records import ring
from headrace.records.reader import Records
from headrace.records.ring import HEADER_BYTES, RingReader, RingWriter
from headrace.records.schema import EVENTS, FETCHES, Table
from records_folders import collector_of, kill
from run_tables import row_of

TEXTS = st.text(max_size=20)
EVENT_ROWS = st.tuples(
    st.integers(-1, 9), st.integers(0, 2**62), TEXTS, TEXTS, st.floats(allow_nan=False)
).map(lambda row: (EVENTS, row))
FETCH_ROWS = st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * len(FETCHES.columns)).map(
    lambda row: (FETCHES, row)
)
ROWS = EVENT_ROWS | FETCH_ROWS
CAPACITIES = st.integers(20, 200).map(lambda number: number * 8)


def clean(row: tuple) -> tuple:
    """As text comes back: what UTF-8 cannot hold is replaced."""
    return tuple(
        value.encode(errors="replace").decode() if isinstance(value, str) else value
        for value in row
    )


@given(rows=st.lists(ROWS, max_size=60), capacity=CAPACITIES, every=st.integers(1, 5))
def test_what_is_written_reads_back_in_order_over_wraps(rows, capacity, every):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.ring")
        writer = RingWriter(path, capacity)
        reader = RingReader(path)
        written, read = [], []
        for number, (table, row) in enumerate(rows):
            dropped = writer.dropped
            if writer.write(table, *row) and writer.dropped == dropped:
                written.append((table, clean(row)))
            else:  # a text without room is read as nothing, a row without room not at all
                read += list(reader.rows())
                reader.release()
                del read[len(written) :]
            if number % every == 0:
                read += list(reader.rows())
                reader.release()
        read += list(reader.rows())
        assert read == written
        assert reader.dropped == writer.dropped


@given(rows=st.lists(FETCH_ROWS, min_size=1, max_size=80), capacity=CAPACITIES)
def test_a_full_ring_keeps_what_it_has_and_counts_the_rest(rows, capacity):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.ring")
        writer = RingWriter(path, capacity)
        kept = [row for table, row in rows if writer.write(table, *row)]
        assert len(kept) == min(len(rows), capacity // (8 + FETCHES.frame.size))
        assert writer.dropped == len(rows) - len(kept)
        assert [row for _, row in RingReader(path).rows()] == kept


class Killed(BaseException):
    pass


def die(*_: object) -> None:
    raise Killed


def drain(run: Path, dies: str) -> None:
    """Drain the rings by a collector that is killed."""
    collector = collector_of(run)
    with suppress(Killed), pytest.MonkeyPatch.context() as patch:
        if dies == "before the commit":
            patch.setattr(collector.store, "move", die)  # the last that is done in the transaction
        elif dies == "after the commit":
            patch.setattr(RingReader, "release", die)  # the first that is done after it
        collector.drain()
    kill(collector)


DEATHS = st.sampled_from(["before the commit", "after the commit", "not"])


@settings(max_examples=50)
@given(
    parts=st.lists(st.tuples(st.lists(ROWS, max_size=8), DEATHS), max_size=8),
    few_texts=st.booleans(),
)
def test_every_record_is_kept_once_wherever_the_reader_dies(parts, few_texts):
    most = ring._ALL_TEXTS_BYTES
    ring._ALL_TEXTS_BYTES = 100 if few_texts else most  # texts are given up again and again
    try:
        with tempfile.TemporaryDirectory() as folder:
            records = Records(Path(folder), 1)
            (records.folder / "rings").mkdir(parents=True)
            writer = RingWriter(records.folder / "rings" / "a.ring", 1 << 16)
            expected = {EVENTS: [], FETCHES: []}
            for rows, dies in [*parts, ([], "not")]:
                for table, row in rows:
                    assert writer.write(table, *row)
                    expected[table].append(clean(row))
                drain(records.path, dies)
            for table, rows in expected.items():
                found = records.table(table.name).to_pylist()
                assert [tuple(row.values()) for row in found] == rows
    finally:
        ring._ALL_TEXTS_BYTES = most


@given(
    place=st.floats(0, 1, exclude_max=True),
    value=st.integers(0, 255),
    rows=st.lists(ROWS, min_size=1, max_size=20),
)
def test_damage_gives_other_rows_or_a_records_error(place, value, rows):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.ring")
        writer = RingWriter(path, 2048)
        for table, row in rows:
            writer.write(table, *row)
        content = bytearray(path.read_bytes())
        content[int(place * len(content))] = value
        path.write_bytes(content)
        try:
            found = list(RingReader(path).rows())
        except RecordsError:
            return
        assert len(found) <= 2048 // 8


def test_a_write_that_comes_in_amid_another_is_kept_after_it(tmp_path: Path):
    writer = RingWriter(tmp_path / "a.ring")

    class Interrupting(int):
        """A number during whose packing something else writes, as a signal handler may."""

        def __index__(self) -> int:
            writer.write(FETCHES, *row_of(FETCHES, rank=2))
            return 1

    class Number:
        def __index__(self) -> int:
            return Interrupting().__index__()

    assert writer.write(FETCHES, *row_of(FETCHES, rank=Number()))
    assert [row[0] for _, row in RingReader(tmp_path / "a.ring").rows()] == [1, 2]


def test_rows_of_an_older_version_have_unknown_values_in_newer_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    older = Table(FETCHES.number, FETCHES.name, FETCHES.meaning, FETCHES.fields[:-1])
    path = tmp_path / "a.ring"
    with monkeypatch.context() as patch:
        patch.setitem(ring._FRAMES, FETCHES.number, (older.frame, older.text_indexes))
        writer = RingWriter(path)
        writer.write(older, *range(len(older.fields)))
    assert list(RingReader(path).rows()) == [(FETCHES, (*range(len(older.fields)), -1))]


def test_a_ring_that_cannot_have_its_room_leaves_no_file(tmp_path: Path):
    with pytest.raises(OSError, match=r"No space|too large|Invalid"):
        RingWriter(tmp_path / "a.ring", 1 << 55)
    assert list(tmp_path.iterdir()) == []


def test_a_ring_on_a_disk_has_all_its_blocks(tmp_path: Path):
    RingWriter(tmp_path / "a.ring", 1 << 16)
    assert (tmp_path / "a.ring").stat().st_blocks * 512 >= HEADER_BYTES + (1 << 16)
