"""Read one sample's members, each checked against the index."""

from __future__ import annotations

from headrace.data.shards.index import ShardIndex
from headrace.data.shards.members import Member, SampleLocation, verify
from headrace.data.storage import Store


def read_member(store: Store, index: ShardIndex, location: SampleLocation, member: Member) -> bytes:
    """Return a member's bytes.

    Args:
        store: Opened at `index.data_url`.
        index: The dataset's.
        location: The sample.
        member: One of its members.

    Raises:
        CorruptError: They are not what was indexed.
        StorageError: They cannot be read.
    """
    if member.data is not None:
        return member.data
    data = bytes(store.get_range(member.path, member.offset, member.size_bytes))
    verify(location, member, data, index.url)
    return data
