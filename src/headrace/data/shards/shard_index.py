"""The index of a dataset: from a sample's number or key to the bytes of its members."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import DatasetError, NotFoundError, UsageError
from headrace.data.shards.index_batches import (
    IndexCopy,
    InMemoryBatches,
    RangedBatches,
    RecordBatches,
    index_copies_dir,
)
from headrace.data.shards.index_rows import COLUMNS, IndexRows
from headrace.data.shards.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    DatasetManifest,
    MemberExtension,
)
from headrace.data.shards.members import (
    Member,
    PathPattern,
    SampleLocation,
    checksum,
    verify,
)
from headrace.data.storage import StorageConfig, Store, join_url, open_store, parse_url
from headrace.data.storage.repeated_reads import read_sound
from headrace.data.storage.urls import cache_folder


class ShardRows:
    """The rows of one shard; `globs` are the templates of each extension, `path` is "" for objects.

    The memory of `rows` stays in use as long as this object.
    """

    __slots__ = ("_key_ends", "_keys", "_members", "_path")

    def __init__(
        self,
        rows: IndexRows,
        extensions: Sequence[MemberExtension],
        globs: Sequence[Sequence[PathPattern]],
        path: str,
    ) -> None:
        self._key_ends = rows.key_ends
        self._keys = rows.text
        self._path = path
        self._members = tuple(
            (extension.name, extension.kind, columns, COLUMNS[extension.kind][0].absent, templates)
            for extension, columns, templates in zip(extensions, rows.columns, globs, strict=True)
        )

    def key(self, row: int) -> str:
        """Return a row's key."""
        return str(self._keys[self._key_ends[row] : self._key_ends[row + 1]], "utf-8")

    def find(self, key: str) -> int | None:
        """Return the row with this key, or None."""
        encoded, ends = key.encode(errors="surrogateescape"), self._key_ends  # as it was typed
        text = self._keys.tobytes()
        start = text.find(encoded)
        while start >= 0:
            # Empty keys share their start with the next row; the last of them is the one with text.
            row = bisect_right(ends, start) - 1
            if row + 1 < len(ends) and (ends[row], ends[row + 1]) == (start, start + len(encoded)):
                return row
            start = text.find(encoded, start + 1)
        return None

    def members(self, row: int, key: str) -> tuple[Member, ...]:
        """Return a row's members."""
        members = []
        for name, kind, columns, absent, templates in self._members:
            first = columns[0][row]
            if first == absent:
                continue
            if kind == "range":
                members.append(Member(name, self._path, first, columns[1][row], columns[2][row]))
            elif kind == "object":
                path = templates[first].expand(key)
                members.append(Member(name, path, 0, columns[1][row], columns[2][row]))
            else:
                data = str(first).encode()
                members.append(Member(name, "", 0, len(data), checksum(data), data))
        return tuple(members)


def relative_data_url(data_url: str, url: str) -> str:
    """Return what the manifest of a dataset at `url` has as `data_url`: relative if it is below."""
    there, here = parse_url(data_url), parse_url(url)
    if (there.kind, there.root) != (here.kind, here.root) or there.written_path:
        return data_url
    if there.prefix == here.prefix:
        return ""
    folder = f"{here.prefix.rstrip('/')}/" if here.prefix else ""
    return there.prefix.removeprefix(folder) if there.prefix.startswith(folder) else data_url


_MAPPED_VIEWS = 4096  # each about 3 kB: the batches themselves are in the mapping
_FETCHED_VIEWS = 256  # each holds its batch, about 80 kB
_SMALL_INDEX_BYTES = 8 * 2**20  # fetched first: less time than two round trips


class ShardIndex:
    """The index of one dataset. Pickles small: another process maps the same local file.

    Thread-safe. See `open_index`.
    """

    def __init__(
        self,
        url: str,
        manifest: DatasetManifest,
        blocks: RecordBatches,
        reopen: tuple[Callable[..., ShardIndex], tuple[Any, ...]],
    ) -> None:
        self.url = url  # the dataset's folder
        self.manifest = manifest
        # What paths are relative to: the dataset's folder, unless another was indexed in place.
        folder = manifest.data_folder
        self.data_url = join_url(url, folder) if folder else manifest.data_url or url
        self.fingerprint = manifest.fingerprint
        self.num_samples = manifest.num_samples
        sizes = np.array([shard.num_samples for shard in manifest.shards], dtype=np.int64)
        self.shard_sizes: NDArray[np.int64] | None = sizes if manifest.layout == "tar" else None
        """Samples of each shard; None where every sample is a shard of its own (loose objects)."""
        self._starts: array[int] = array("q", [0, *np.cumsum(sizes).tolist()])
        self._globs = [
            [PathPattern.parse(template) for template in extension.templates]
            for extension in manifest.extensions
        ]
        self._blocks = blocks
        self._views: OrderedDict[int, ShardRows] = OrderedDict()
        self._reopen = reopen

    def __reduce__(self) -> tuple[Callable[..., ShardIndex], tuple[Any, ...]]:
        return self._reopen

    def __len__(self) -> int:
        return self.num_samples

    def locate(self, sample: int) -> SampleLocation:
        """Return the place of a sample; about 5 us once its shard's rows were used.

        UsageError: there is no such sample. StorageError: a remote index could not be read.
        """
        number = self._block_of(sample)
        view = self._view(number)
        row = sample - self._starts[number]
        key = view.key(row)
        members = view.members(row, key)
        if self.shard_sizes is not None:
            shard, path = number, self.manifest.shards[number].name
        else:
            shard, path = sample, next((each.path for each in members if each.path), "")
        return SampleLocation(sample=sample, shard=shard, path=path, key=key, members=members)

    def find(self, key: str) -> int:
        """Return the first sample with this key, or raise DatasetError; reads the whole index."""
        ahead = 64
        for number in range(len(self.manifest.shards)):
            if number % ahead == 0:
                self._blocks.prefetch(range(number, min(number + ahead, len(self._starts) - 1)))
            row = self._view(number).find(key)
            if row is not None:
                return int(self._starts[number]) + row
        raise DatasetError(
            f"{self.url} has no sample {key!r}. `headrace data info {self.url}` shows what its "
            "keys look like."
        )

    def prefetch(self, samples: Iterable[int]) -> None:
        """Start reading the rows of some samples, where the index is remote and not yet copied."""
        if not self._blocks.mapped:
            numbers = {self._block_of(int(sample)) for sample in samples}
            self._blocks.prefetch(number for number in numbers if number not in self._views)

    def _block_of(self, sample: int) -> int:
        if not 0 <= sample < self.num_samples:
            raise UsageError(
                f"sample {sample} of {self.url}, which has {self.num_samples}: samples are "
                f"0 to {self.num_samples - 1}."
            )
        return int(bisect_right(self._starts, sample)) - 1

    def _view(self, number: int) -> ShardRows:
        view = self._views.get(number)
        if view is None:
            shard = self.manifest.shards[number]
            view = ShardRows(
                self._blocks.rows(number), self.manifest.extensions, self._globs, shard.name
            )
            limit = _MAPPED_VIEWS if self._blocks.mapped else _FETCHED_VIEWS
            while len(self._views) >= limit:
                self._views.popitem(last=False)
            self._views[number] = view
        return view


def open_index(
    url: str,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    config: StorageConfig | None = None,
) -> ShardIndex:
    """Open the index of a dataset.

    A local index is mapped. A small remote one is copied first; of a large one only the needed
    batches are read, by range, while a thread copies it. Copies are named by fingerprint and shared
    by all jobs of the host.

    `cache_dir` is for the copy of a remote index; None: HEADRACE_CACHE_DIR, or a folder below the
    system's temporary one. `config` are the settings of a remote store. DatasetError: there is no
    dataset, it is damaged, or its index belongs to another. StorageError: it cannot be read.
    """
    store = open_store(url, config=config)
    manifest, data = read_manifest(store)
    # Workers may have another working folder when they open it again.
    url = store.url if _local_folder(url) is not None else url
    cache_dir = None if cache_dir is None else cache_folder(cache_dir, "cache_dir")
    return _open(store, url, manifest, data, cache_dir, config)


def stored_manifest(store: Store) -> tuple[DatasetManifest, bytes]:
    """Return the manifest of a dataset, and its bytes.

    NotFoundError: there is none. DatasetError: it is damaged, and not only on its way.
    """

    def read() -> tuple[DatasetManifest, bytes]:
        data = bytes(store.get(MANIFEST_NAME))
        return DatasetManifest.from_json(data, store.url), data

    return read_sound(read, DatasetError)


def read_manifest(store: Store) -> tuple[DatasetManifest, bytes]:
    """Return the manifest of a dataset, and its bytes; DatasetError: there is none, or damaged."""
    try:
        return stored_manifest(store)
    except NotFoundError:
        raise _no_dataset(store) from None


def read_manifest_bytes(store: Store) -> bytes:
    """Return manifest.json of a dataset; raises DatasetError where there is none."""
    try:
        return bytes(store.get(MANIFEST_NAME))
    except NotFoundError:
        raise _no_dataset(store) from None


def _no_dataset(store: Store) -> DatasetError:
    return DatasetError(
        f"{store.url} holds no dataset ({MANIFEST_NAME} is missing). Check the URL; make a "
        "dataset with `headrace data pack`, or index tars and objects that are there with "
        f"`headrace data index {store.url}`."
    )


def _open(
    store: Store,
    url: str,
    manifest: DatasetManifest,
    data: bytes,
    cache_dir: str | os.PathLike[str] | None,
    config: StorageConfig | None,
) -> ShardIndex:
    reopen = (_reopen, (url, cache_dir, config, manifest.fingerprint, checksum(bytes(data))))
    folder = _local_folder(url)
    if folder is not None:
        where = f"{store.url}/{INDEX_NAME}"
        blocks: RecordBatches = InMemoryBatches.map(folder / INDEX_NAME, manifest, where)
        return ShardIndex(store.url, manifest, blocks, reopen)
    copy = IndexCopy(index_copies_dir(cache_dir), manifest.fingerprint)
    copy.store_manifest(data)
    if manifest.index_bytes <= _SMALL_INDEX_BYTES:
        copy.fetch(store, manifest)
    else:
        copy.fetch_in_background(store, manifest)
    return ShardIndex(store.url, manifest, RangedBatches(store, manifest, copy), reopen)


def _reopen(
    url: str,
    cache_dir: str | os.PathLike[str] | None,
    config: StorageConfig | None,
    fingerprint: str,
    manifest_crc32c: int,
) -> ShardIndex:
    """Open the index that another process has open, from the same checked manifest bytes."""
    store = open_store(url, config=config)
    data = None
    if _local_folder(url) is None:
        data = IndexCopy(index_copies_dir(cache_dir), fingerprint).manifest(manifest_crc32c)

    def read() -> bytes:
        found = read_manifest_bytes(store)
        if checksum(found) != manifest_crc32c:
            raise DatasetError(
                f"{join_url(store.url, MANIFEST_NAME)} changed while it was in use: it is no "
                f"longer that of the dataset {fingerprint[:12]}. Start again."
            )
        return found

    data = data or read_sound(read, DatasetError)
    manifest = DatasetManifest.from_json(data, store.url, checked=True)
    return _open(store, url, manifest, data, cache_dir, config)


def _local_folder(url: str) -> Path | None:
    location = parse_url(url)
    return Path(location.prefix) if location.kind == "local" else None


def read_member(store: Store, index: ShardIndex, location: SampleLocation, member: Member) -> bytes:
    """Return a member's bytes, by a store at `index.data_url`; CorruptError: they differ."""
    if member.data is not None:
        return member.data
    data = bytes(store.get_range(member.path, member.offset, member.size_bytes))
    verify(location, member, data, index.url)
    return data


def find_member(index: ShardIndex, name: str) -> tuple[SampleLocation, str]:
    """Return the sample of a key, or of key and extension, with the extension; or DatasetError."""
    try:
        return index.locate(index.find(name)), ""
    except DatasetError as error:
        problem = error
    for key, extension in _keys_and_extensions(name):
        try:
            location = index.locate(index.find(key))
        except DatasetError:
            continue
        extensions = [member.extension for member in location.members]
        if extension in extensions:
            return location, extension
        problem = DatasetError(
            f"Sample {key!r} of {index.url} has no member .{extension}; it has "
            f"{', '.join(extensions)}."
        )
    raise problem


def _keys_and_extensions(name: str) -> Iterator[tuple[str, str]]:
    """Yield each way to read a name as a key and an extension: keys of loose files have dots."""
    folder, slash, last = name.rpartition("/")
    parts = last.split(".")
    for cut in range(1 if parts[0] else 2, len(parts)):
        yield f"{folder}{slash}{'.'.join(parts[:cut])}", ".".join(parts[cut:]).lower()
