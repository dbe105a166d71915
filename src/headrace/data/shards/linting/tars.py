"""Check tars, member by member, against the index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from headrace.core.errors import CorruptError, DeniedError, NotFoundError
from headrace.data.shards.faults import Fault
from headrace.data.shards.index import ShardIndex
from headrace.data.shards.packing.existing_tars import TARS_AT_ONCE
from headrace.data.shards.progress import Tally
from headrace.data.shards.rows.builder import digest_of
from headrace.data.shards.tar.samples import TarIndex, index_tar
from headrace.data.shards.window import windowed
from headrace.data.storage import Store
from headrace.data.storage.urls import parse_url

_Place = tuple[int, ...]  # offset, size in bytes, CRC-32C


def lint_tars(store: Store, index: ShardIndex, tally: Tally) -> list[Fault]:
    """Return what is wrong with the shards of a dataset; reads all of them."""
    faults = _extra_tars(store, index)
    numbers = range(len(index.manifest.shards))
    for found in windowed(lambda n: _check(store, index, n), numbers, TARS_AT_ONCE):
        faults.extend(found.faults)
        tally.add(len(found.rows), found.size_bytes, 0)
    return faults


def _check(store: Store, index: ShardIndex, number: int) -> TarIndex:
    shard = index.manifest.shards[number]
    try:
        size_bytes = store.head(shard.name).size_bytes
        found = index_tar(store, shard.name, size_bytes)
    except NotFoundError:
        return _unread(shard.name, "missing", "the shard does not exist.")
    except (DeniedError, CorruptError) as error:
        return _unread(shard.name, "unreadable", str(error))
    if size_bytes != shard.size_bytes:
        message = f"{size_bytes} bytes, the manifest says {shard.size_bytes}."
        found.faults.append(Fault("size", shard.name, message))
    if found.faults or digest_of(found.rows.batch(), found.rows.kinds()) != shard.digest:
        found.faults.extend(_differences(index, number, found))
    return found


def _unread(name: str, kind: Literal["missing", "unreadable"], message: str) -> TarIndex:
    return TarIndex(path=name, size_bytes=0, faults=[Fault(kind, name, message)])


def _differences(index: ShardIndex, number: int, found: TarIndex) -> list[Fault]:
    """Compare a tar's members with the index's, name by name."""
    there = {
        f"{key}.{extension}": place
        for key, members in found.rows.items()
        for extension, place in members.items()
    }
    wanted = _wanted(index, number)
    faults = [
        fault
        for name, place in wanted.items()
        if name in there and (fault := _difference(found.path, name, place, there[name]))
    ]
    faults += _summed("missing", found.path, "are not there", [n for n in wanted if n not in there])
    faults += _summed(
        "extra", found.path, "are not in the index", [n for n in there if n not in wanted]
    )
    return faults


def _wanted(index: ShardIndex, number: int) -> dict[str, _Place]:
    assert index.shard_sizes is not None
    first = int(index.shard_sizes[:number].sum())
    locations = (index.locate(first + row) for row in range(int(index.shard_sizes[number])))
    return {
        f"{location.key}.{member.extension}": (member.offset, member.size_bytes, member.crc32c)
        for location in locations
        for member in location.members
    }


def _difference(path: str, name: str, wanted: _Place, there: _Place) -> Fault | None:
    if wanted == there:
        return None
    offset, size_bytes, _ = there
    where = f"{name} (bytes {offset}-{offset + size_bytes - 1})"
    if wanted[1] != size_bytes:
        return Fault("size", path, f"{where}: {size_bytes} bytes, the index says {wanted[1]}.")
    if wanted[2] != there[2]:
        return Fault("checksum", path, f"{where}: checksum differs from the index.")
    return Fault("index", path, f"{where}: the index says it begins at byte {wanted[0]}.")


def _summed(
    kind: Literal["missing", "extra"], path: str, what: str, names: Sequence[str]
) -> list[Fault]:
    if not names:
        return []
    return [Fault(kind, path, f"{len(names)} members {what}, such as {names[0]}.")]


def _extra_tars(store: Store, index: ShardIndex) -> list[Fault]:
    if parse_url(store.url).kind == "http":  # which cannot be listed
        return []
    known = {shard.name for shard in index.manifest.shards}
    return [
        Fault("extra", info.path, "the tar is not in the index.")
        for info in store.list()
        if info.path.endswith(".tar") and info.path not in known
    ]
