"""Where the bytes of a sample lie, and whether they are the ones that were indexed."""

from __future__ import annotations

from typing import NamedTuple

import google_crc32c

from headrace.core.errors import CorruptError


class Member(NamedTuple):
    """One file of a sample.

    Attributes:
        extension: What follows the key: "jpg", "cls", or in parts, "mask.png".
        path: The object that holds it: a shard, or a loose object. "" where `data` holds it.
        offset: Its first byte in that object.
        size_bytes: Its length.
        crc32c: CRC-32C (Castagnoli) of its bytes.
        data: The bytes themselves, where the index holds them (the class of a loose object).
    """

    extension: str
    path: str
    offset: int
    size_bytes: int
    crc32c: int
    data: bytes | None = None


class SampleLocation(NamedTuple):
    """Where one sample lies.

    Attributes:
        sample: Its number, 0 to num_samples - 1, in the order of the index.
        shard: The number of its shard; for loose objects the sample's own number.
        path: The shard's path below the dataset's `data_url`; for loose objects its first object.
        key: Its name, unique within the shard.
        members: Its files.
    """

    sample: int
    shard: int
    path: str
    key: str
    members: tuple[Member, ...]


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C of some bytes: 0xE3069283 for b"123456789" (RFC 3720, B.4)."""
    return int(google_crc32c.value(as_bytes(data)))  # the C library takes nothing but bytes


def as_bytes(data: bytes | bytearray | memoryview) -> bytes:
    """Return data as bytes, without copying where it is a view of all of some bytes."""
    if isinstance(data, memoryview) and type(data.obj) is bytes and data.nbytes == len(data.obj):
        return data.obj
    return data if isinstance(data, bytes) else bytes(data)


def verify(location: SampleLocation, member: Member, data: bytes | memoryview, url: str) -> None:
    """Compare a member's bytes with the index.

    Args:
        location: The sample.
        member: One of its members.
        data: What was read for it.
        url: The folder that `member.path` is relative to, for the message.

    Raises:
        CorruptError: Another length or checksum; the message names shard, sample and bytes.
    """
    if len(data) == member.size_bytes and checksum(data) == member.crc32c:
        return
    what = (
        f"{len(data)} bytes instead of {member.size_bytes}"
        if len(data) != member.size_bytes
        else "checksum differs"
    )
    last = member.offset + member.size_bytes - 1
    raise CorruptError(
        f"{member.path} of {url}: {what} at sample {location.key} (.{member.extension}, bytes "
        f"{member.offset}-{last}). Run `headrace data lint {url}` to find all such members."
    )
