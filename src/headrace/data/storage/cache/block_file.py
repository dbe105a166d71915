"""The file of a block: its format, with checksums, as it is written and read.

A block file holds magic, identity of the object's content, length, page size, then one CRC-32C a
page, then a CRC-32C of all that; then the data. A read checks only the pages it touches. A file
truncated by a crash, or damaged, fails its checks and counts as missing.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from headrace.core.files import write_atomically

_MAGIC = b"headrac1"
_FIXED = struct.Struct("<8s16sQI")
_CRC = struct.Struct("<I")
_PAGE_BYTES = 2**16
_FIRST_READ_BYTES = 2**12  # holds the header of blocks up to 60 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Bytes of one block."""

    identity: bytes  # of the object's content, 16 bytes
    start: int  # offset of the data in the block
    data: memoryview  # from there on, as far as requested or as the block goes


class DamagedBlockError(Exception):
    """The file is not a complete block."""


def load_block(file: str, start: int, length: int) -> Block:
    """Return the verified bytes [start, start + length) of a block, fewer at its end.

    FileNotFoundError, DamagedBlockError: there is no such block, or its file is damaged.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        identity, size, crcs = _parse(os.pread(descriptor, _FIRST_READ_BYTES, 0))
        end = min(start + length, size)
        first, last = start // _PAGE_BYTES, -(-end // _PAGE_BYTES)
        from_byte = first * _PAGE_BYTES
        pages_bytes = max(0, min(last * _PAGE_BYTES, size) - from_byte)
        data_at = _FIXED.size + (len(crcs) + 1) * _CRC.size
        pages = os.pread(descriptor, pages_bytes, data_at + from_byte)
    finally:
        os.close(descriptor)
    if len(pages) != pages_bytes:
        raise DamagedBlockError
    for number in range(first, last):
        at = (number - first) * _PAGE_BYTES
        if google_crc32c.value(pages[at : at + _PAGE_BYTES]) != crcs[number]:
            raise DamagedBlockError
    data = memoryview(pages)[start - from_byte : end - from_byte]
    return Block(identity=identity, start=start, data=data)


def save_block(file: Path, temporary_dir: Path, identity: bytes, data: memoryview) -> int:
    """Write a block, first to a temporary file on the same disk; return the file's size."""
    crcs = [
        google_crc32c.value(bytes(data[start : start + _PAGE_BYTES]))
        for start in range(0, len(data), _PAGE_BYTES)
    ]
    header = _FIXED.pack(_MAGIC, identity, len(data), _PAGE_BYTES)
    header += struct.pack(f"<{len(crcs)}I", *crcs)
    header += _CRC.pack(google_crc32c.value(header))
    write_atomically(file, [header, data], durable=False, temporary_dir=temporary_dir)
    return len(header) + len(data)


def _parse(header: bytes) -> tuple[bytes, int, tuple[int, ...]]:
    if len(header) < _FIXED.size:
        raise DamagedBlockError
    magic, identity, size, page_bytes = _FIXED.unpack_from(header)
    pages = -(-size // _PAGE_BYTES)
    crc_at = _FIXED.size + pages * _CRC.size
    if magic != _MAGIC or page_bytes != _PAGE_BYTES or len(header) < crc_at + _CRC.size:
        raise DamagedBlockError
    if _CRC.unpack_from(header, crc_at)[0] != google_crc32c.value(header[:crc_at]):
        raise DamagedBlockError
    return identity, size, struct.unpack_from(f"<{pages}I", header, _FIXED.size)
