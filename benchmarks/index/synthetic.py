"""The index of a dataset that need not exist, of any size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.data.shards.index_rows import Kinds
from headrace.data.shards.index_writer import checksum_of_file, digest_of, schema_of, write_index
from headrace.data.shards.manifest import (
    DatasetManifest,
    DatasetSource,
    MemberExtension,
    ShardEntry,
    fingerprint_of,
)

KINDS: Kinds = {"cls": "range", "jpg": "range"}
SHARD_SAMPLES = 1280


def synthetic(folder: Path, shards: int) -> DatasetManifest:
    """Write the index and manifest of class folders in shards of 128 MiB; return the manifest.

    Every shard's rows are alike.
    """
    keys = pa.array([f"n01440764/n01440764_{row:05d}" for row in range(SHARD_SAMPLES)])
    offsets = pa.array(np.arange(SHARD_SAMPLES) * 110_000)
    sizes = pa.array(np.full(SHARD_SAMPLES, 100_000, np.uint32))
    arrays = [keys, offsets, sizes, sizes, offsets, sizes, sizes]
    batch = pa.record_batch(arrays, schema=schema_of(KINDS))
    entry = ShardEntry(
        name="", size_bytes=1, num_samples=SHARD_SAMPLES, digest=digest_of(batch, KINDS),
        index_start=0, index_bytes=0,
    )  # fmt: skip
    entries = [replace(entry, name=f"{number:06d}.tar") for number in range(shards)]
    fingerprint = fingerprint_of("tar", entries)
    folder.mkdir(parents=True)
    path = folder / "index.arrow"
    spans = write_index(path, (batch for _ in entries), KINDS, fingerprint)
    manifest = DatasetManifest(
        fingerprint=fingerprint,
        layout="tar",
        num_samples=shards * SHARD_SAMPLES,
        num_members=2 * shards * SHARD_SAMPLES,
        size_bytes=shards,
        extensions=tuple(MemberExtension(name=name, kind=kind) for name, kind in KINDS.items()),
        index_bytes=path.stat().st_size,
        index_crc32c=checksum_of_file(path),
        source=DatasetSource(kind="synthetic", url="", num_files=0, size_bytes=0),
        shards=tuple(
            replace(entry, index_start=start, index_bytes=length)
            for entry, (start, length) in zip(entries, spans, strict=True)
        ),
    )
    (folder / "manifest.json").write_bytes(manifest.to_json())
    return manifest
