"""The check of every byte of a dataset against its index and manifest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import google_crc32c

from headrace.core.errors import CorruptError, DatasetError, DeniedError, NotFoundError
from headrace.data.shards.data_files import is_system_path, is_tar
from headrace.data.shards.in_place_index import CONCURRENT_TARS, SPLIT, without_empty_images
from headrace.data.shards.index_batches import InMemoryBatches
from headrace.data.shards.index_writer import digest_of
from headrace.data.shards.manifest import INDEX_NAME, MANIFEST_NAME, DatasetManifest
from headrace.data.shards.members import checksum
from headrace.data.shards.reports import Fault, ProgressCallback, ProgressTally
from headrace.data.shards.shard_index import (
    ShardIndex,
    open_index,
    read_manifest,
    read_manifest_bytes,
)
from headrace.data.shards.sources.tree_roles import is_of_split
from headrace.data.shards.tar_index import TarIndex, index_tar
from headrace.data.shards.task_pool import map_in_order
from headrace.data.storage import Store, open_store, parse_url

_CONCURRENT_OBJECTS = 16
_Checked = tuple[list[Fault], int, int]  # with the samples and bytes that were read


def _check_sample(store: Store, index: ShardIndex, number: int) -> _Checked:
    faults, read_bytes = [], 0
    for member in index.locate(number).members:
        if member.data is not None:
            continue
        try:
            data = bytes(store.get(member.path))
        except NotFoundError:
            faults.append(Fault("missing", member.path, "the object does not exist."))
            continue
        except (DeniedError, CorruptError) as error:
            faults.append(Fault("unreadable", member.path, str(error)))
            continue
        read_bytes += len(data)
        if len(data) != member.size_bytes:
            message = f"{len(data)} bytes, the index says {member.size_bytes}."
            faults.append(Fault("size", member.path, message))
        elif checksum(data) != member.crc32c:
            faults.append(Fault("checksum", member.path, "checksum differs from the index."))
    return faults, 1, read_bytes


_Place = tuple[int, ...]  # offset, size in bytes, CRC-32C


def _check_tar(store: Store, index: ShardIndex, number: int) -> _Checked:
    shard = index.manifest.shards[number]
    try:
        size_bytes = store.head(shard.name).size_bytes
        found = index_tar(store, shard.name, size_bytes, _ShardKeys(index, number).__contains__)
    except NotFoundError:
        return [Fault("missing", shard.name, "the shard does not exist.")], 0, 0
    except (DeniedError, CorruptError) as error:
        return [Fault("unreadable", shard.name, str(error))], 0, 0
    if size_bytes != shard.size_bytes:
        message = f"{size_bytes} bytes, the manifest says {shard.size_bytes}."
        found.faults.append(Fault("size", shard.name, message))
    # What was left out as bad when the tars were indexed is no fault of the dataset.
    known = {(bad.file, bad.reason) for bad in index.manifest.bad}
    if known:
        without_empty_images(found)
    found.faults = [each for each in found.faults if (each.where, each.message) not in known]
    if not found.faults:
        found.rows = found.whole_rows()
    if found.faults or digest_of(found.rows.batch(), found.rows.kinds()) != shard.digest:
        found.faults.extend(_differences(index, number, found))
    return found.faults, len(found.rows), size_bytes


class _ShardKeys:
    """The keys of one shard's samples in the index, read at the first question."""

    def __init__(self, index: ShardIndex, number: int) -> None:
        self._index, self._number = index, number
        self._keys: frozenset[str] | None = None

    def __contains__(self, key: str) -> bool:
        if self._keys is None:
            places = _sample_numbers(self._index, self._number)
            self._keys = frozenset(self._index.locate(sample).key for sample in places)
        return key in self._keys


def _sample_numbers(index: ShardIndex, number: int) -> range:
    assert index.shard_sizes is not None
    first = int(index.shard_sizes[:number].sum())
    return range(first, first + int(index.shard_sizes[number]))


def _differences(index: ShardIndex, number: int, found: TarIndex) -> list[Fault]:
    """Compare a tar's members with the index's, by name."""
    found_members = {
        f"{key}.{extension}": place
        for key, members in found.rows.items()
        for extension, place in members.items()
    }
    indexed = _indexed_members(index, number)
    faults = [
        fault
        for name, place in indexed.items()
        if name in found_members
        and (fault := _member_difference(found.path, name, place, found_members[name]))
    ]
    sides: tuple[tuple[Literal["missing", "extra"], str, list[str]], ...] = (
        ("missing", "are not there", [name for name in indexed if name not in found_members]),
        ("extra", "are not in the index", [name for name in found_members if name not in indexed]),
    )
    for kind, what, names in sides:
        if names:
            message = f"{len(names)} members {what}, such as {names[0]}."
            faults.append(Fault(kind, found.path, message))
    return faults


def _indexed_members(index: ShardIndex, number: int) -> dict[str, _Place]:
    locations = map(index.locate, _sample_numbers(index, number))
    return {
        f"{location.key}.{member.extension}": (member.offset, member.size_bytes, member.crc32c)
        for location in locations
        for member in location.members
    }


def _member_difference(path: str, name: str, indexed: _Place, found: _Place) -> Fault | None:
    if indexed == found:
        return None
    offset, size_bytes, _ = found
    where = f"{name} (bytes {offset}-{offset + size_bytes - 1})"
    if indexed[1] != size_bytes:
        return Fault("size", path, f"{where}: {size_bytes} bytes, the index says {indexed[1]}.")
    if indexed[2] != found[2]:
        return Fault("checksum", path, f"{where}: checksum differs from the index.")
    return Fault("index", path, f"{where}: the index says it begins at byte {indexed[0]}.")


def _extra_tars(store: Store, index: ShardIndex) -> list[Fault]:
    if parse_url(store.url).kind == "http":  # it cannot be listed
        return []
    known = {shard.name for shard in index.manifest.shards}
    known |= {bad.file for bad in index.manifest.bad}
    split = index.manifest.options.get(SPLIT)
    return [
        Fault("extra", info.path, "the tar is not in the index.")
        for info in store.list_entries()
        if is_tar(info.path)
        and not info.is_folder
        and info.path not in known
        and not is_system_path(info.path)
        and (split is None or is_of_split(info.path, split))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """The result of a check."""

    url: str  # the dataset
    num_shards: int = 0  # for loose objects, samples
    num_samples: int = 0  # in the index
    num_members: int = 0
    read_bytes: int = 0
    faults: tuple[Fault, ...]  # in the order of the shards


def lint(url: str, *, progress: ProgressCallback | None = None) -> LintReport:
    """Check a dataset: manifest, index, every shard, every member's checksum.

    DatasetError: there is no dataset. An object that is missing or denied is a fault instead.
    """
    store = open_store(url)
    read_manifest_bytes(store)  # one that is missing is no fault of a dataset
    try:
        manifest, _ = read_manifest(store)
    except DatasetError as error:
        return LintReport(url=store.url, faults=(Fault("manifest", MANIFEST_NAME, str(error)),))
    faults: list[Fault] = []
    index = _checked_index(store, manifest, faults)
    tally = ProgressTally(progress or (lambda _: None), "checking", of_samples=manifest.num_samples)
    is_tar = manifest.layout == "tar"
    num_shards = len(manifest.shards) if is_tar else manifest.num_samples
    if index is not None:
        data = open_store(index.data_url)
        check, at_once = _check_sample, _CONCURRENT_OBJECTS
        if is_tar:
            faults += _extra_tars(data, index)
            check, at_once = _check_tar, CONCURRENT_TARS
        for found, samples, read_bytes in map_in_order(
            partial(check, data, index), range(num_shards), at_once
        ):
            faults.extend(found)
            tally.add(samples, read_bytes, 0)
    return LintReport(
        url=store.url,
        num_shards=num_shards,
        num_samples=manifest.num_samples,
        num_members=manifest.num_members,
        read_bytes=tally.progress.read_bytes,
        faults=tuple(faults),
    )


def _checked_index(
    store: Store, manifest: DatasetManifest, faults: list[Fault]
) -> ShardIndex | None:
    """Return the index, or None, with a fault, where members cannot be compared with it."""
    try:
        data = bytes(store.get(INDEX_NAME))
        blocks = InMemoryBatches(memoryview(data), manifest, f"{store.url}/{INDEX_NAME}")
    except (NotFoundError, DatasetError) as error:
        faults.append(Fault("index", INDEX_NAME, f"{error} No member could be checked."))
        return None
    if google_crc32c.value(data) != manifest.index_crc32c:
        what = f"checksum differs from {MANIFEST_NAME}'s: it is damaged."
        faults.append(Fault("checksum", INDEX_NAME, what))
    damaged = False
    for number, shard in enumerate(manifest.shards):
        try:
            blocks.rows(number)
        except DatasetError:
            what = f"the rows of {shard.name or f'group {number}'} are not those of the manifest."
            faults.append(Fault("index", INDEX_NAME, what))
            damaged = True
    return None if damaged else ShardIndex(store.url, manifest, blocks, (open_index, (store.url,)))
