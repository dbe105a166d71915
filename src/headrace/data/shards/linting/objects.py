"""Check loose objects against the index."""

from __future__ import annotations

from headrace.core.errors import CorruptError, DeniedError, NotFoundError
from headrace.data.shards.faults import Fault
from headrace.data.shards.index import ShardIndex
from headrace.data.shards.members import Member, checksum
from headrace.data.shards.progress import Tally
from headrace.data.shards.window import windowed
from headrace.data.storage import Store

_AT_ONCE = 16


def lint_objects(store: Store, index: ShardIndex, tally: Tally) -> list[Fault]:
    """Return what is wrong with the objects of a dataset; reads all of them."""
    faults: list[Fault] = []
    for found, read_bytes in windowed(
        lambda sample: _check(store, index, sample), range(index.num_samples), _AT_ONCE
    ):
        faults.extend(found)
        tally.add(1, read_bytes, 0)
    return faults


def _check(store: Store, index: ShardIndex, sample: int) -> tuple[list[Fault], int]:
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
        fault = _difference(member, data)
        if fault is not None:
            faults.append(fault)
    return faults, read_bytes


def _difference(member: Member, data: bytes) -> Fault | None:
    if len(data) != member.size_bytes:
        message = f"{len(data)} bytes, the index says {member.size_bytes}."
        return Fault("size", member.path, message)
    if checksum(data) != member.crc32c:
        return Fault("checksum", member.path, "checksum differs from the index.")
    return None
