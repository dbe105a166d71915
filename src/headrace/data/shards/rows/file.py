"""index.arrow: an uncompressed Arrow IPC file, one record batch a shard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import pyarrow as pa

from headrace.core.errors import DatasetError
from headrace.data.shards.rows.columns import Kinds, align, schema_of

_MAGIC_BYTES = 8  # "ARROW1" and two zero bytes come before the schema
_FINGERPRINT = b"headrace.fingerprint"
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
    schema = schema_of(kinds).with_metadata({_FINGERPRINT: fingerprint.encode()})
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


def read_batch(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch of one message; its columns are views of `message`."""
    return pa.ipc.read_record_batch(message, schema)


def check_fingerprint(index: pa.Buffer, fingerprint: str, where: str) -> None:
    """Raise DatasetError unless the index is of the dataset with this fingerprint."""
    try:
        metadata = pa.ipc.open_file(index).schema.metadata or {}
    except pa.ArrowInvalid as error:
        raise DatasetError(
            f"{where} is damaged ({error}). Restore it, or pack the dataset again."
        ) from None
    found = metadata.get(_FINGERPRINT, b"").decode("ascii", "replace")
    if found != fingerprint:
        raise DatasetError(
            f"{where} belongs to another dataset: its fingerprint is {found[:12] or 'missing'}, "
            f"the manifest's is {fingerprint[:12]}. Copy index.arrow and manifest.json together."
        )


def checksum_of_file(path: Path) -> int:
    """Return the CRC-32C of a file's bytes."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = google_crc32c.extend(checksum, chunk)
    return checksum
