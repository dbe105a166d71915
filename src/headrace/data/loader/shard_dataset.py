"""`headrace.ShardDataset`: a map-style dataset of shards, and the reader of its samples.

This module imports no torch: workers that only read, decode and transform stay small.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from numbers import Real
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import BadSampleError, CorruptError, TooManyBadSamplesError, UsageError
from headrace.core.loader_hooks import LOADER_HOOKS
from headrace.core.units import parse_bytes
from headrace.data import storage as storage_layer  # whose CachedStore few workers need
from headrace.data.image_files import masks_among
from headrace.data.loader.dataset_protocol import NativeDataset
from headrace.data.loader.quarantine import too_many, write_records
from headrace.data.shards.members import Member, SampleLocation, as_bytes, verify
from headrace.data.shards.shard_index import ShardIndex, open_index
from headrace.data.storage import (
    Buffer,
    RemoteStore,
    StorageConfig,
    Store,
    open_store,
    streamed_url,
)
from headrace.data.storage.repeated_reads import MOST_READS
from headrace.data.storage.urls import cache_folder
from headrace.data.transforms.decode import decode_member
from headrace.sampling.seeds import combine

# Members of one sample are adjacent in a tar, a header between them. Where the gap is larger,
# two requests are cheaper than reading the bytes between.
_WIDEST_GAP_BYTES = 1 << 18
_MAX_AHEAD = 4096  # samples with unfinished reads; older ones are dropped


class _Span(NamedTuple):
    """Neighbouring members of one object, which one request reads."""

    path: str
    start: int
    length: int
    members: Sequence[Member]


class SampleReader:
    """Reads the members of samples from the dataset's store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ahead: dict[int, list[Future[Buffer]]] = {}
        self._owner = os.getpid()

    def begin(self, locations: Iterable[SampleLocation]) -> None:
        """Start the reads of these samples; `read` then uses their results."""
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
        """Return the number of started reads that have not arrived."""
        ahead = self._reads_ahead().values()
        return sum(not future.done() for futures in ahead for future in futures)

    def read(
        self, location: SampleLocation, *, verified: bool
    ) -> list[tuple[Member, Buffer | bytes]]:
        """Return each member of a sample with its bytes, `verified` by their checksums.

        Raises CorruptError where a checksum differs in each of several reads, and StorageError.
        """
        under_way = self._reads_ahead().pop(location.sample, None)
        for _ in range(MOST_READS - 1):
            try:
                return self._read_members(location, under_way, verified=verified)
            except CorruptError:
                under_way = None
                for span in _spans(location):  # else a cache would return the same bytes again
                    self._store.forget(span.path, span.start, span.length)
        return self._read_members(location, under_way, verified=verified)

    def _read_members(
        self, location: SampleLocation, under_way: list[Future[Buffer]] | None, *, verified: bool
    ) -> list[tuple[Member, Buffer | bytes]]:
        stored = [member for member in location.members if member.data is None]
        read: Callable[[], dict[Member, Buffer]] = partial(self._fetched, stored)
        if under_way:
            read = partial(self._arrived, location, under_way)
        observer = LOADER_HOOKS.reads
        contents = read() if observer is None else observer.timed(read)
        if verified:
            for member in stored:
                verify(location, member, contents[member], self._store.url)
        return [
            (member, contents[member] if member.data is None else member.data)
            for member in location.members
        ]

    def _fetched(self, members: Sequence[Member]) -> dict[Member, Buffer]:
        contents: dict[Member, Buffer] = {}
        for path, group in groupby(members, key=attrgetter("path")):
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


def _spans(location: SampleLocation) -> list[_Span]:
    stored = [member for member in location.members if member.data is None]
    spans = []
    for _, group in groupby(stored, key=attrgetter("path")):
        members = sorted(group, key=attrgetter("offset"))
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


def _check_arguments(url: Any, max_bad_rate: Any) -> None:
    """Raise UsageError for a URL that is none, or a rate that is no share."""
    if not isinstance(url, str | Path):
        raise UsageError(f"url={url!r} is no URL or path. Is a variable unset?")
    if not (isinstance(max_bad_rate, Real) and 0 <= float(max_bad_rate) <= 1):
        raise UsageError(f"max_bad_rate={max_bad_rate!r}: give a share from 0 to 1.")


_MAX_REPLACEMENTS = 16  # tries to find a good sample in place of a bad one


class ShardDataset(NativeDataset):
    """Samples of a packed or indexed dataset, read by range, verified and decoded.

    A sample is a dict: its members by extension, decoded (images to uint8[H, W, C] arrays, masks to
    uint8[H, W, 1], cls to int, json to its value, txt to str, others to bytes), and "__key__", its
    name. Pixels are those that are stored, without EXIF orientation; a mask with a palette gives
    the palette's indices.

    A sample that is damaged (its checksum differs in four reads, or no decoder accepts it) is
    replaced by another of its shard, always by the same one, and recorded in quarantine.jsonl in
    the run folder, or in the working folder outside of a run. A failing store raises instead: no
    sample is replaced because of a network.

    Args:
        url: The dataset's URL, as it was packed or indexed, or the folder of a channel.
        transform: Called with each sample; draws from the global random generators. Members whose
            extension is in its attribute `wants_bytes` are passed to it undecoded; those in
            `takes_bytes` too, where packing has decoded every file and `verify` is on. May be
            replaced later, as may `verify`.
        cache_dir: Folder of this host for a cache of reads from a remote store, for all ranks and
            later jobs.
        cache_bytes: Limit of that cache.
        verify: Compare every member's checksum on each read.
        max_bad_rate: Share of bad samples above which loading stops, from the third one on.
        storage: Retries, deadlines and connections.

    Attributes:
        fingerprint: Identifies the dataset's content.
        shard_sizes: int64[shards], samples of each shard; None where each sample is an object.
        reads_ahead: Whether reads are worth starting before their samples are needed.

    Raises:
        NotFoundError, DatasetError: There is no dataset at `url`, or it is damaged.
    """

    def __init__(
        self,
        url: str | Path,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        cache_dir: str | Path | None = None,
        cache_bytes: str | int = "64GiB",
        verify: bool = True,  # noqa: FBT001, FBT002 - named in every call one would write
        *,
        max_bad_rate: float = 0.001,
        storage: StorageConfig | None = None,
    ) -> None:
        _check_arguments(url, max_bad_rate)
        limit_bytes = parse_bytes(cache_bytes)
        folder = None if cache_dir is None else cache_folder(cache_dir, "cache_dir")
        self.url = streamed_url(str(url))
        self.transform = transform
        self.verify = verify
        self.max_bad_rate = max_bad_rate
        self.index: ShardIndex = open_index(self.url, cache_dir=folder, config=storage)
        self.fingerprint: str = self.index.fingerprint
        self.shard_sizes: NDArray[np.int64] | None = self.index.shard_sizes
        store: Store = open_store(self.index.data_url, config=storage)
        self.reads_ahead = isinstance(store, RemoteStore)
        # Importing the client is harmless before a fork; calling it would not be.
        self.modules = ("headrace.data.storage.client.direct",) if self.reads_ahead else ()
        if isinstance(store, RemoteStore) and folder is not None:
            store = storage_layer.CachedStore(store, folder, limit_bytes=limit_bytes)
        self._store = store
        self._begin()

    def _begin(self) -> None:
        self._reader = SampleReader(self._store)
        self._collected: list[Mapping[str, Any]] | None = None
        self._bad = self._seen = 0

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.index.num_samples

    def __getitem__(self, sample: int) -> Any:
        """Return a sample, transformed; raises IndexError, StorageError, TooManyBadSamplesError."""
        number = operator.index(sample)  # TypeError: 1.9 is no sample
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)} in {self.url}")
        return self._load_or_replace(number % len(self))

    def __getitems__(self, samples: Sequence[int]) -> list[Any]:
        """Return several samples; their reads run concurrently."""
        self.prefetch(samples)
        return [self[sample] for sample in samples]

    def prefetch(self, samples: Sequence[int]) -> None:
        """Start the reads of these samples, which will be needed soon."""
        if self.reads_ahead:
            # Invalid numbers are left to `__getitem__`, which reports them.
            count = len(self)
            numbers = [each for each in samples if hasattr(each, "__index__")]
            known = [int(each) % count for each in numbers if -count <= int(each) < count]
            self.index.prefetch(known)
            self._reader.begin(self.index.locate(sample) for sample in known)

    def reads_under_way(self) -> int:
        """Return the number of started reads that have not arrived."""
        return self._reader.under_way() if self.reads_ahead else 0

    def describe(self, sample: int) -> str:
        """Return a sample's name for messages."""
        location = self.index.locate(operator.index(sample))
        return f"sample {location.key} (number {sample}) of {location.path} in {self.index.url}"

    @contextmanager
    def collecting_bad(self) -> Iterator[list[Mapping[str, Any]]]:
        """Collect the records of bad samples met inside the context, for the caller to write."""
        records: list[Mapping[str, Any]] = []
        self._collected = records
        try:
            yield records
        finally:
            self._collected = None

    def _load_or_replace(self, sample: int) -> Any:
        self._seen += 1
        location = self.index.locate(sample)
        first_error: Exception | None = None
        for attempt in range(_MAX_REPLACEMENTS + 1):
            candidate = location if not attempt else self._replacement(location, attempt)
            try:
                made = self._made(candidate)
            except (BadSampleError, CorruptError) as error:
                first_error = first_error or error
                continue
            if first_error is not None:
                self._note_bad(location, candidate, first_error)
            return made
        raise TooManyBadSamplesError(
            f"{location.path} of {self.index.url}: sample {location.key} and {_MAX_REPLACEMENTS} "
            f"others tried in its place are all bad; the first: {first_error} "
            f"Run `headrace data lint {self.index.url}` to see every fault."
        )

    # Asked for each sample: a script may give a dataset, or a copy of it, another transform.

    @property
    def _wanted(self) -> frozenset[str]:
        """The members that the transform needs undecoded."""
        return frozenset(getattr(self.transform, "wants_bytes", ()))

    @property
    def _undecoded(self) -> frozenset[str]:
        """The members that stay undecoded, masks aside."""
        if self.verify and self.index.manifest.decoded:  # a matching checksum: a decodable file
            return self._wanted.union(getattr(self.transform, "takes_bytes", ()))
        return self._wanted

    def _made(self, location: SampleLocation) -> Any:
        sample: dict[str, Any] = {"__key__": location.key}
        masks = masks_among(tuple([member.extension for member in location.members]))
        wanted, undecoded = self._wanted, self._undecoded
        for member, data in self._reader.read(location, verified=self.verify):
            extension, is_mask = member.extension, member.extension in masks
            # A transform that decodes a file itself would take a mask's palette for colours.
            if extension in (wanted if is_mask else undecoded):
                sample[extension] = as_bytes(data)
            else:
                sample[extension] = decode_member(extension, data, labels=is_mask)
        return sample if self.transform is None else self.transform(sample)

    def _replacement(self, location: SampleLocation, attempt: int) -> SampleLocation:
        """Return another sample of the same shard, or of the dataset where the shard has only one.

        It depends on the sample and the attempt alone, so every rank and every resumed run takes
        the same one.
        """
        size, first = len(self), 0
        if self.shard_sizes is not None and self.shard_sizes[location.shard] > 1:
            size = int(self.shard_sizes[location.shard])
            first = int(self.shard_sizes[: location.shard].sum())
        step = 1 + combine(location.sample, attempt) % max(size - 1, 1)
        return self.index.locate(first + (location.sample - first + step) % size)

    def _note_bad(
        self, location: SampleLocation, replacement: SampleLocation, error: Exception
    ) -> None:
        record: Mapping[str, Any] = {
            "dataset": self.index.url,
            "fingerprint": self.fingerprint,
            "sample": location.sample,
            "key": location.key,
            "shard": location.path,
            "error": type(error).__name__,
            "message": str(error),
            "replacement": replacement.sample,
            "replacement_key": replacement.key,
        }
        if self._collected is not None:
            self._collected.append(record)
            return
        path = write_records([record])
        self._bad += 1
        if too_many(self._bad, self._seen, self.max_bad_rate):
            raise TooManyBadSamplesError(
                f"{self._bad} of {self._seen} samples read by this process are bad, more than the "
                f"allowed {self.max_bad_rate:.2%}; the last: {error} All are listed in {path}."
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without this process's reader and counts; subclasses' fields stay."""
        own = {"_reader", "_collected", "_bad", "_seen"}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state, with a new reader, in another process."""
        self.__dict__.update(state)
        self._begin()
