"""The bytes of samples: one read a sample, many under way at once, every one verified."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from itertools import groupby

from headrace.core.errors import CorruptError
from headrace.data.shards.members import Member, SampleLocation, verify
from headrace.data.storage import Buffer, Store

# Members of one sample lie side by side in a tar, a header between them. Further apart than this,
# two requests are cheaper than the bytes between.
_WIDEST_GAP_BYTES = 1 << 18
_MAX_AHEAD = 4096  # samples whose reads may be under way; older ones nobody came for are let go


class _Span:
    """Members of one object that are read with one request."""

    __slots__ = ("length", "members", "path", "start")

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.path = members[0].path
        self.start = min(member.offset for member in members)
        self.length = max(member.offset + member.size_bytes for member in members) - self.start


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
        found: list[tuple[Member, Buffer | bytes]] = [
            (member, member.data) for member in location.members if member.data is not None
        ]
        for number, span in enumerate(_spans(location)):
            if under_way is not None:
                content = under_way[number].result()
            else:
                content = self._store.get_range(span.path, span.start, span.length)
            for member in span.members:
                begin = member.offset - span.start
                data = content[begin : begin + member.size_bytes]
                if self._verified:
                    verify(location, member, data, self._store.url)
                found.append((member, data))
        return found

    def _reads_ahead(self) -> dict[int, list[Future[Buffer]]]:
        if os.getpid() != self._owner:  # forked: the parent's reads never arrive here
            self._owner = os.getpid()
            self._ahead = {}
        return self._ahead


def _spans(location: SampleLocation) -> list[_Span]:
    stored = [member for member in location.members if member.data is None]
    spans = []
    for _, group in groupby(stored, key=lambda member: member.path):
        members = sorted(group, key=lambda member: member.offset)
        whole = _Span(members)
        wanted_bytes = sum(member.size_bytes for member in members)
        if whole.length - wanted_bytes <= _WIDEST_GAP_BYTES:
            spans.append(whole)
        else:
            spans += [_Span([member]) for member in members]
    return spans
