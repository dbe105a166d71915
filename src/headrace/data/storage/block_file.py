"""A block of an object on disk: one file that proves itself.

Magic, identity of the object's content, length, page size, then one CRC-32C a page, then a
CRC-32C of all that; then the data. A read checks only the pages it touches. A file cut short by a
crash, or damaged, fails its checks and counts as missing.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from headrace.data.storage.atomic import write_whole

_MAGIC = b"headrac1"
_FIXED = struct.Struct("<8s16sQI")
_CRC = struct.Struct("<I")
_PAGE_BYTES = 2**16
_FIRST_READ_BYTES = 2**12  # holds the header of blocks up to 60 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a block file held.

    Attributes:
        identity: Which content of the object it is of, 16 bytes.
        data: The bytes asked for; fewer where the block ends before.
    """

    identity: bytes
    data: memoryview


class DamagedError(Exception):
    """The file is no whole block."""


def load_block(file: str, start: int, length: int) -> Loaded:
    """Return bytes [start, start + length) of a block, as far as it goes, verified.

    Raises:
        FileNotFoundError: There is no such block.
        DamagedError: The file is damaged.
        OSError: It cannot be read.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = os.pread(descriptor, _FIRST_READ_BYTES, 0)
        identity, size, crcs = _parse(header)
        end = min(start + length, size)
        first = start // _PAGE_BYTES
        last = -(-end // _PAGE_BYTES)
        from_byte, to_byte = first * _PAGE_BYTES, min(last * _PAGE_BYTES, size)
        data_at = _FIXED.size + (len(crcs) + 1) * _CRC.size
        pages = os.pread(descriptor, max(0, to_byte - from_byte), data_at + from_byte)
    finally:
        os.close(descriptor)
    if len(pages) != max(0, to_byte - from_byte):
        raise DamagedError
    for number in range(first, last):
        at = (number - first) * _PAGE_BYTES
        if google_crc32c.value(pages[at : at + _PAGE_BYTES]) != crcs[number]:
            raise DamagedError
    return Loaded(identity=identity, data=memoryview(pages)[start - from_byte : end - from_byte])


def save_block(file: Path, litter: Path, identity: bytes, data: memoryview) -> int:
    """Write a block, whole or not at all; returns the file's size in bytes.

    Args:
        file: Where it shall lie.
        litter: A folder of the same disk, where it is written first.
        identity: Which content of the object it is of.
        data: The block.

    Raises:
        OSError: The disk is full, read-only or gone; nothing is left behind.
    """
    header = block_header(identity, data)
    write_whole(file, [header, data], durable=False, beside_in=litter)
    return len(header) + len(data)


def block_header(identity: bytes, data: memoryview) -> bytes:
    """Return what precedes the data of a block file."""
    crcs = [
        google_crc32c.value(bytes(data[at : at + _PAGE_BYTES]))
        for at in range(0, len(data), _PAGE_BYTES)
    ]
    header = _FIXED.pack(_MAGIC, identity, len(data), _PAGE_BYTES)
    header += struct.pack(f"<{len(crcs)}I", *crcs)
    return header + _CRC.pack(google_crc32c.value(header))


def _parse(header: bytes) -> tuple[bytes, int, tuple[int, ...]]:
    if len(header) < _FIXED.size:
        raise DamagedError
    magic, identity, size, page_bytes = _FIXED.unpack_from(header)
    pages = -(-size // _PAGE_BYTES)
    crc_at = _FIXED.size + pages * _CRC.size
    if magic != _MAGIC or page_bytes != _PAGE_BYTES or len(header) < crc_at + _CRC.size:
        raise DamagedError
    if _CRC.unpack_from(header, crc_at)[0] != google_crc32c.value(header[:crc_at]):
        raise DamagedError
    return identity, size, struct.unpack_from(f"<{pages}I", header, _FIXED.size)
