"""The bytes of samples: one read a sample, many under way at once, every one verified."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import NamedTuple

from headrace.core.errors import CorruptError
from headrace.data.shards.members import Member, SampleLocation, verify
from headrace.data.storage import Buffer, Store

# Members of one sample lie side by side in a tar, a header between them. Further apart than this,
# two requests are cheaper than the bytes between.
_WIDEST_GAP_BYTES = 1 << 18
_MAX_AHEAD = 4096  # samples whose reads may be under way; older ones nobody came for are let go


class _Span(NamedTuple):
    """Neighbouring members of one object, which one request reads."""

    path: str
    start: int
    length: int
    members: Sequence[Member]


class SampleReader:
    """Reads the members of samples.

    Args:
        store: The store at the dataset's data URL.
        verified: Compare each member's checksum with the index.
    """

    def __init__(self, store: Store, *, verified: bool) -> None:
        self._store = store
        self._verified = verified
        self._ahead: dict[int, list[Future[Buffer]]] = {}
        self._owner = os.getpid()

    def begin(self, locations: Iterable[SampleLocation]) -> None:
        """Begin to read these samples; `read` then finds their bytes under way or there."""
        ahead = self._reads_ahead()
        for location in locations:
            if location.sample not in ahead:
                ahead[location.sample] = [
                    self._store.submit_range(span.path, span.start, span.length)
                    for span in _spans(location)
                ]
        while len(ahead) > _MAX_AHEAD:
            ahead.pop(next(iter(ahead)))

    def under_way(self) -> int:
        """Return how many reads were begun and have not arrived."""
        ahead = self._reads_ahead().values()
        return sum(not future.done() for futures in ahead for future in futures)

    def read(self, location: SampleLocation) -> list[tuple[Member, Buffer | bytes]]:
        """Return each member of a sample with its bytes.

        Raises:
            CorruptError: A checksum differs, even after one more read.
            StorageError: The store failed; the message names URL and range.
        """
        under_way = self._reads_ahead().pop(location.sample, None)
        try:
            return self._read_once(location, under_way)
        except CorruptError:
            for span in _spans(location):  # or a cache would give the same bytes again
                self._store.forget(span.path, span.start, span.length)
            return self._read_once(location, None)

    def _read_once(
        self, location: SampleLocation, under_way: list[Future[Buffer]] | None
    ) -> list[tuple[Member, Buffer | bytes]]:
        stored = [member for member in location.members if member.data is None]
        contents = self._arrived(location, under_way) if under_way else self._fetched(stored)
        found: list[tuple[Member, Buffer | bytes]] = []
        for member in location.members:
            if member.data is not None:
                found.append((member, member.data))
                continue
            data = contents[member]
            if self._verified:
                verify(location, member, data, self._store.url)
            found.append((member, data))
        return found

    def _fetched(self, members: Sequence[Member]) -> dict[Member, Buffer]:
        contents: dict[Member, Buffer] = {}
        for path, group in groupby(members, key=_path_of):
            together = list(group)
            ranges = [(member.offset, member.size_bytes) for member in together]
            contents.update(zip(together, self._store.get_ranges(path, ranges), strict=True))
        return contents

    @staticmethod
    def _arrived(location: SampleLocation, under_way: list[Future[Buffer]]) -> dict[Member, Buffer]:
        contents: dict[Member, Buffer] = {}
        for span, future in zip(_spans(location), under_way, strict=True):
            content = future.result()
            for member in span.members:
                begin = member.offset - span.start
                contents[member] = content[begin : begin + member.size_bytes]
        return contents

    def _reads_ahead(self) -> dict[int, list[Future[Buffer]]]:
        if os.getpid() != self._owner:  # forked: the parent's reads never arrive here
            self._owner = os.getpid()
            self._ahead = {}
        return self._ahead


def _path_of(member: Member) -> str:
    return member.path


def _spans(location: SampleLocation) -> list[_Span]:
    stored = [member for member in location.members if member.data is None]
    spans = []
    for _, group in groupby(stored, key=_path_of):
        members = sorted(group, key=lambda member: member.offset)
        whole = _span(members)
        wanted_bytes = sum(member.size_bytes for member in members)
        if whole.length - wanted_bytes <= _WIDEST_GAP_BYTES:
            spans.append(whole)
        else:
            spans += [_span([member]) for member in members]
    return spans


def _span(members: Sequence[Member]) -> _Span:
    start = members[0].offset
    end = max(member.offset + member.size_bytes for member in members)
    return _Span(members[0].path, start, end - start, members)
