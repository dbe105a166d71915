"""The check of every byte of a dataset against its index and manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import google_crc32c

from headrace.core.errors import CorruptError, DatasetError, DeniedError, NotFoundError
from headrace.data.shards.in_place_index import CONCURRENT_TARS
from headrace.data.shards.index_batches import InMemoryBatches, kinds_of
from headrace.data.shards.index_writer import digest_of
from headrace.data.shards.manifest import INDEX_NAME, MANIFEST_NAME, DatasetManifest
from headrace.data.shards.members import checksum
from headrace.data.shards.reports import Fault, ProgressCallback, ProgressTally
from headrace.data.shards.shard_index import ShardIndex, open_index, read_manifest_bytes
from headrace.data.shards.tar import TarIndex, index_tar
from headrace.data.shards.task_pool import map_in_order
from headrace.data.storage import Store, open_store, parse_url

_CONCURRENT_OBJECTS = 16


def lint_objects(store: Store, index: ShardIndex, tally: ProgressTally) -> list[Fault]:
    """Return the faults of a dataset's objects; reads all of them."""
    faults: list[Fault] = []
    for found, read_bytes in map_in_order(
        lambda sample: _check_sample(store, index, sample),
        range(index.num_samples),
        _CONCURRENT_OBJECTS,
    ):
        faults.extend(found)
        tally.add(1, read_bytes, 0)
    return faults


def _check_sample(store: Store, index: ShardIndex, sample: int) -> tuple[list[Fault], int]:
    faults, read_bytes = [], 0
    for member in index.locate(sample).members:
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
    return faults, read_bytes


_Place = tuple[int, ...]  # offset, size in bytes, CRC-32C


def lint_tars(store: Store, index: ShardIndex, tally: ProgressTally) -> list[Fault]:
    """Return the faults of a dataset's shards; reads all of them."""
    faults = _extra_tars(store, index)
    numbers = range(len(index.manifest.shards))
    for found in map_in_order(lambda n: _check_tar(store, index, n), numbers, CONCURRENT_TARS):
        faults.extend(found.faults)
        tally.add(len(found.rows), found.size_bytes, 0)
    return faults


def _check_tar(store: Store, index: ShardIndex, number: int) -> TarIndex:
    shard = index.manifest.shards[number]
    unreadable = TarIndex(path=shard.name, size_bytes=0)
    try:
        size_bytes = store.head(shard.name).size_bytes
        found = index_tar(store, shard.name, size_bytes)
    except NotFoundError:
        unreadable.faults.append(Fault("missing", shard.name, "the shard does not exist."))
        return unreadable
    except (DeniedError, CorruptError) as error:
        unreadable.faults.append(Fault("unreadable", shard.name, str(error)))
        return unreadable
    if size_bytes != shard.size_bytes:
        message = f"{size_bytes} bytes, the manifest says {shard.size_bytes}."
        found.faults.append(Fault("size", shard.name, message))
    if found.faults or digest_of(found.rows.batch(), found.rows.kinds()) != shard.digest:
        found.faults.extend(_differences(index, number, found))
    return found


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
    assert index.shard_sizes is not None
    first = int(index.shard_sizes[:number].sum())
    locations = (index.locate(first + row) for row in range(int(index.shard_sizes[number])))
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
    return [
        Fault("extra", info.path, "the tar is not in the index.")
        for info in store.list()
        if info.path.endswith(".tar") and info.path not in known
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
    data = read_manifest_bytes(store)
    try:
        manifest = DatasetManifest.from_json(data, store.url)
    except DatasetError as error:
        return LintReport(url=store.url, faults=(Fault("manifest", MANIFEST_NAME, str(error)),))
    faults: list[Fault] = []
    index = _checked_index(store, manifest, faults)
    if index is None:
        return _report(store.url, manifest, faults)
    tally = ProgressTally(progress or (lambda _: None), "checking", of_samples=manifest.num_samples)
    check = lint_tars if manifest.layout == "tar" else lint_objects
    faults.extend(check(open_store(index.data_url), index, tally))
    return _report(store.url, manifest, faults, tally.progress.read_bytes)


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
    kinds = kinds_of(manifest)
    damaged = False
    for number, shard in enumerate(manifest.shards):
        try:
            same = blocks.rows(number).digest(kinds) == shard.digest
        except DatasetError:
            same = False
        if not same:
            what = f"the rows of {shard.name or f'group {number}'} are not those of the manifest."
            faults.append(Fault("index", INDEX_NAME, what))
            damaged = True
    return None if damaged else ShardIndex(store.url, manifest, blocks, (open_index, (store.url,)))


def _report(
    url: str, manifest: DatasetManifest, faults: list[Fault], read_bytes: int = 0
) -> LintReport:
    is_loose = manifest.layout == "objects"
    return LintReport(
        url=url,
        num_shards=manifest.num_samples if is_loose else len(manifest.shards),
        num_samples=manifest.num_samples,
        num_members=manifest.num_members,
        read_bytes=read_bytes,
        faults=tuple(faults),
    )
