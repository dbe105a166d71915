"""Writing index.arrow: an uncompressed Arrow IPC file, one record batch a shard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import pyarrow as pa

from headrace.data.shards.rows.builder import align, schema_of
from headrace.data.shards.rows.columns import Kinds
from headrace.data.shards.rows.message import FINGERPRINT

_MAGIC_BYTES = 8  # "ARROW1" and two zero bytes come before the schema
_CHUNK_BYTES = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """What was written.

    Attributes:
        spans: Start and length of each batch's message.
        size_bytes: The file's size.
        crc32c: Its checksum.
    """

    spans: tuple[tuple[int, int], ...]
    size_bytes: int
    crc32c: int


def write_index(
    path: Path, batches: Iterable[pa.RecordBatch], kinds: Kinds, fingerprint: str
) -> IndexFile:
    """Write an index.

    Args:
        path: A local file, made new.
        batches: One a shard, in order; extensions that a batch lacks are filled in.
        kinds: The extensions of all batches.
        fingerprint: Kept in the file, so that it can be told from another dataset's.
    """
    schema = schema_of(kinds).with_metadata({FINGERPRINT: fingerprint.encode()})
    # Batches are read by the place of their message alone, with no footer at hand.
    position = _MAGIC_BYTES + len(schema.serialize())
    spans = []
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(align(batch, kinds))
            spans.append((position, sink.tell() - position))
            position = sink.tell()
    return IndexFile(
        spans=tuple(spans), size_bytes=path.stat().st_size, crc32c=checksum_of_file(path)
    )


def checksum_of_file(path: Path) -> int:
    """Return the CRC-32C of a file's bytes."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = google_crc32c.extend(checksum, chunk)
    return checksum
