"""What is cut is put together again; what is damaged is never taken for whole."""

from __future__ import annotations

import os
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.storage.cache.block_file import DamagedBlockError, load_block, save_block
from headrace.data.storage.cache.cached_store import CachedRead
from headrace.data.storage.client.subprocess_protocol import read_pieces, write_piece
from headrace.data.storage.store import cut_ranges, plan_spans, regrouped, split_span

_OBJECT = bytes(range(251)) * 4
_ranges = st.lists(
    st.integers(0, len(_OBJECT)).flatmap(
        lambda start: st.tuples(st.just(start), st.integers(0, len(_OBJECT) - start))
    ),
    max_size=12,
)


@given(_ranges, st.integers(0, 300), st.integers(1, 500))
def test_spans_cover_the_ranges_and_overlap_nowhere(
    ranges: list[tuple[int, int]], gap: int, most: int
) -> None:
    spans = plan_spans(ranges, coalesce_bytes=gap, most_bytes=most)
    assert all(length > 0 for _, length in spans)
    assert all(start + length <= later for (start, length), (later, _) in pairwise(spans))
    longest = max((length for _, length in ranges), default=0)
    assert all(length <= max(most, longest) for _, length in spans)
    buffers = [memoryview(_OBJECT)[start : start + length] for start, length in spans]
    assert [bytes(cut) for cut in cut_ranges(ranges, spans, buffers)] == [
        _OBJECT[start : start + length] for start, length in ranges
    ]


@given(_ranges)
def test_no_byte_is_fetched_for_nothing_without_coalescing(ranges: list[tuple[int, int]]) -> None:
    wanted = {byte for start, length in ranges for byte in range(start, start + length)}
    spans = plan_spans(ranges, coalesce_bytes=0, most_bytes=10**6)
    assert sum(length for _, length in spans) == len(wanted)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 100))
def test_split_spans_join_again(start: int, length: int, most: int) -> None:
    spans = split_span(start, start + length, most)
    assert sum(size for _, size in spans) == length
    assert all(0 < size <= most for _, size in spans)
    assert [byte for first, size in spans for byte in range(first, first + size)] == list(
        range(start, start + length)
    )


@given(st.lists(st.binary(max_size=50)), st.integers(1, 40))
def test_regrouped_pieces_hold_the_same_bytes(pieces: list[bytes], size: int) -> None:
    groups = list(regrouped(pieces, size))
    assert b"".join(groups) == b"".join(pieces)
    assert all(len(group) == size for group in groups[:-1])
    assert all(groups)


@given(st.lists(st.binary(min_size=1, max_size=100), max_size=5), st.booleans())
def test_pieces_pass_a_pipe_or_are_known_to_be_cut(pieces: list[bytes], ended: bool) -> None:
    with tempfile.TemporaryFile() as file:
        for piece in [*pieces, *([b""] if ended else [])]:
            assert list(write_piece(file.fileno(), piece)) == []
        file.seek(0)
        reader = read_pieces(os.dup(file.fileno()))
        if ended:
            assert list(reader) == pieces
        else:
            with pytest.raises(EOFError):
                list(reader)


_blocks = st.binary(max_size=300).flatmap(
    lambda tail: st.integers(0, 2).map(lambda pages: b"\x07" * (pages * 2**16) + tail)
)


@given(_blocks, st.integers(0, 2**17 + 400), st.integers(1, 2**17 + 400), st.data())
def test_a_block_reads_back_or_is_known_to_be_damaged(
    block: bytes, start: int, length: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ab/block"
        size = save_block(file, Path(folder), b"i" * 16, memoryview(block))
        assert size == file.stat().st_size
        loaded = load_block(str(file), start, length)
        assert bytes(loaded.data) == block[start : start + length]
        assert loaded.identity == b"i" * 16

        content = bytearray(file.read_bytes())
        content[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(content)
        _is_right_or_damaged(file, block, start, length)
        file.write_bytes(content[: data.draw(st.integers(0, size - 1))])
        _is_right_or_damaged(file, block, start, length)


def _is_right_or_damaged(file: Path, block: bytes, start: int, length: int) -> None:
    try:
        loaded = load_block(str(file), start, length)
    except DamagedBlockError:
        return
    # The damage lies in a page that this read does not touch.
    assert bytes(loaded.data) == block[start : start + length]
    assert loaded.identity == b"i" * 16


@given(st.integers(0, 500), st.integers(1, 500), st.integers(1, 64))
def test_a_cached_reads_blocks_hold_exactly_its_bytes(start: int, length: int, block: int) -> None:
    read = CachedRead("x", start, length, block)
    covered = [
        number * block + begin + step
        for number in read.numbers
        for begin, size in [read.within(number)]
        for step in range(size)
    ]
    assert covered == list(range(start, start + length))
