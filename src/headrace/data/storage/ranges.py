"""Ranges of bytes: which requests fetch them, and how the answers are cut.

A span is (start, length), like a range: it is what one request reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from headrace.core.errors import UsageError

Span = tuple[int, int]


def plan_spans(ranges: Sequence[Span], *, coalesce_bytes: int, most_bytes: int) -> list[Span]:
    """Return the requests that cover `ranges`: sorted, none empty, none overlapping another.

    Ranges at most `coalesce_bytes` apart share a request of up to `most_bytes`.
    """
    spans: list[Span] = []
    for start, length in sorted(wanted for wanted in ranges if wanted[1] > 0):
        end = start + length
        if not spans:
            spans.append((start, length))
            continue
        last_start, last_length = spans[-1]
        covered = last_start + last_length
        if end <= covered:
            continue
        if start <= covered + coalesce_bytes and end - last_start <= most_bytes:
            spans[-1] = (last_start, end - last_start)
        else:
            spans.append((max(start, covered), end - max(start, covered)))
    return spans


def cut_ranges(
    ranges: Sequence[Span], spans: Sequence[Span], buffers: Sequence[memoryview]
) -> list[memoryview]:
    """Return each range out of the answers to `spans`: a view of one, or a copy over several."""
    starts = [start for start, _ in spans]
    return [_cut(wanted, starts, buffers) for wanted in ranges]


def split_span(start: int, end: int, most_bytes: int) -> list[Span]:
    """Return [start, end) cut into spans of at most `most_bytes`."""
    return [(cut, min(most_bytes, end - cut)) for cut in range(start, end, most_bytes)]


def check_range(start: int, length: int) -> None:
    """Raise UsageError for a range that cannot be."""
    if start < 0 or length < 0:
        raise UsageError(f"range start={start} length={length}: both are 0 or more.")


def _cut(wanted: Span, starts: list[int], buffers: Sequence[memoryview]) -> memoryview:
    start, length = wanted
    if length == 0:
        return memoryview(b"")
    number = bisect_right(starts, start) - 1
    offset = start - starts[number]
    if offset + length <= len(buffers[number]):
        return buffers[number][offset : offset + length]
    whole = bytearray(length)
    filled = 0
    while filled < length:
        piece = buffers[number][offset : offset + length - filled]
        whole[filled : filled + len(piece)] = piece
        filled, offset, number = filled + len(piece), 0, number + 1
    return memoryview(whole).toreadonly()
