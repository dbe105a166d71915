"""Read one sample's members, each checked against the index."""

from __future__ import annotations

from headrace.core.errors import DatasetError
from headrace.data.shards.index import ShardIndex
from headrace.data.shards.members import Member, SampleLocation, verify
from headrace.data.shards.names import split_name
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


def find_member(index: ShardIndex, name: str) -> tuple[SampleLocation, str]:
    """Return the sample that a key, or a key with a member's extension, names; the extension.

    Raises:
        DatasetError: There is no such sample or member.
    """
    try:
        return index.locate(index.find(name)), ""
    except DatasetError:
        parts = split_name(name)
        if parts is None:
            raise
    location = index.locate(index.find(parts[0]))
    extensions = [member.extension for member in location.members]
    if parts[1] not in extensions:
        raise DatasetError(
            f"Sample {parts[0]!r} of {index.url} has no member .{parts[1]}; it has "
            f"{', '.join(extensions)}."
        )
    return location, parts[1]
