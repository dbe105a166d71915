"""Ranges of bytes: which requests fetch them, and how the answers are cut."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One request.

    Attributes:
        start: First byte.
        length: How many bytes.
    """

    start: int
    length: int


def plan_parts(
    ranges: Sequence[tuple[int, int]], *, coalesce_bytes: int, part_bytes: int
) -> list[Part]:
    """Return the requests that cover (start, length) ranges, sorted, none overlapping another.

    Ranges at most `coalesce_bytes` apart share a request, as long as it stays within
    `part_bytes`; a longer range is cut.
    """
    parts: list[Part] = []
    for start, length in sorted(r for r in ranges if r[1] > 0):
        end = start + length
        if parts:
            last = parts[-1]
            covered = last.start + last.length
            if end <= covered:
                continue
            if start <= covered + coalesce_bytes and end - last.start <= part_bytes:
                parts[-1] = Part(start=last.start, length=end - last.start)
                continue
            start = max(start, covered)
        parts.extend(
            Part(start=cut, length=min(part_bytes, end - cut))
            for cut in range(start, end, part_bytes)
        )
    return parts


def cut_ranges(
    ranges: Sequence[tuple[int, int]], parts: Sequence[Part], buffers: Sequence[memoryview]
) -> list[memoryview]:
    """Return each range out of the answers to `parts`: a view of one, or a copy over several."""
    starts = [part.start for part in parts]
    return [_cut(start, length, parts, buffers, starts) for start, length in ranges]


def check_range(start: int, length: int) -> None:
    """Raise UsageError for a range that cannot be."""
    if start < 0 or length < 0:
        raise UsageError(f"range start={start} length={length}: both are 0 or more.")


def _cut(
    start: int,
    length: int,
    parts: Sequence[Part],
    buffers: Sequence[memoryview],
    starts: list[int],
) -> memoryview:
    if length == 0:
        return memoryview(b"")
    first = bisect_right(starts, start) - 1
    offset = start - parts[first].start
    if offset + length <= parts[first].length:
        return buffers[first][offset : offset + length]
    whole = bytearray(length)
    filled = 0
    while filled < length:
        piece = buffers[first][offset : offset + length - filled]
        whole[filled : filled + len(piece)] = piece
        filled, offset, first = filled + len(piece), 0, first + 1
    return memoryview(whole).toreadonly()
