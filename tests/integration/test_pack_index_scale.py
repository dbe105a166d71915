"""An index of ten million samples, and one that is remote and large."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.core.errors import DatasetError
from headrace.data.shards.index import open_index
from headrace.data.shards.manifest import (
    Extension,
    Manifest,
    ShardEntry,
    Source,
    fingerprint_of,
)
from headrace.data.shards.rows.builder import digest_of, schema_of
from headrace.data.shards.rows.columns import Kinds
from headrace.data.shards.rows.file import write_index
from headrace.data.storage import open_store

KINDS: Kinds = {"cls": "range", "jpg": "range"}
SHARD_SAMPLES = 1280


def synthetic(folder: Path, shards: int) -> Manifest:
    """Write the index of class folders in shards of 128 MiB, every shard's rows alike."""
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
    index = write_index(folder / "index.arrow", (batch for _ in entries), KINDS, fingerprint)
    manifest = Manifest(
        fingerprint=fingerprint,
        layout="tar",
        num_samples=shards * SHARD_SAMPLES,
        num_members=2 * shards * SHARD_SAMPLES,
        size_bytes=shards,
        extensions=tuple(Extension(name=name, kind=kind) for name, kind in KINDS.items()),
        index_bytes=index.size_bytes,
        index_crc32c=index.crc32c,
        source=Source(kind="synthetic", url="", num_files=0, size_bytes=0),
        shards=tuple(
            replace(entry, index_start=start, index_bytes=length)
            for entry, (start, length) in zip(entries, index.spans, strict=True)
        ),
    )
    (folder / "manifest.json").write_bytes(manifest.to_json())
    return manifest


READER = """
import random, re, sys, time
def private_kb():
    return int(re.search(r"Anonymous:\\s+(\\d+)", open("/proc/self/smaps_rollup").read())[1])
import numpy
before = private_kb()
start = time.perf_counter()
from headrace.data.shards.index import open_index
index = open_index(sys.argv[1])
opened_s = time.perf_counter() - start
for sample in random.Random(0).sample(range(len(index)), 20_000):
    index.locate(sample)
print(len(index), private_kb() - before, opened_s)
"""


def test_ten_million_samples_cost_a_process_under_50_mb_and_64_bytes_a_member(tmp_path):
    manifest = synthetic(tmp_path / "ds", 7813)
    assert manifest.index_bytes / manifest.num_members <= 64
    outcome = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path / "ds")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    shutil.rmtree(tmp_path / "ds")  # 0.6 GB, which pytest would keep
    samples, private_kb, opened_s = outcome.stdout.split()
    sys.stdout.write(f"opened in {opened_s} s, {private_kb} kB of private memory\n")
    assert int(samples) > 10**7
    assert int(private_kb) < 50_000  # with pyarrow itself, and 20,000 random look-ups


def test_a_small_index_stays_within_its_budget_too(tmp_path):
    manifest = synthetic(tmp_path / "ds", 1)
    assert manifest.index_bytes / manifest.num_members <= 64


def test_a_large_remote_index_is_read_by_range_before_it_is_local(tmp_path, s3_url):
    manifest = synthetic(tmp_path / "ds", 160)
    bucket = open_store(s3_url)
    bucket.put("index.arrow", tmp_path / "ds/index.arrow")
    bucket.put("manifest.json", manifest.to_json())
    # A cache folder that cannot be made: nothing can be copied, all is read by range.
    (tmp_path / "file").touch()
    index = open_index(s3_url, cache_dir=tmp_path / "file")
    local = open_index(str(tmp_path / "ds"))
    samples = range(0, len(index), 7777)
    index.prefetch(samples)
    assert [index.locate(sample) for sample in samples] == [local.locate(s) for s in samples]
    assert index.find("n01440764/n01440764_00003") == 3


def test_a_local_copy_is_made_meanwhile_and_used_by_the_next(tmp_path, s3_url):
    manifest = synthetic(tmp_path / "ds", 160)
    bucket = open_store(s3_url)
    bucket.put("index.arrow", tmp_path / "ds/index.arrow")
    bucket.put("manifest.json", manifest.to_json())
    index = open_index(s3_url, cache_dir=tmp_path / "cache")
    first = index.locate(5)
    index.wait_until_local()
    copy = tmp_path / "cache/indexes" / f"{manifest.fingerprint}.arrow"
    assert copy.read_bytes() == (tmp_path / "ds/index.arrow").read_bytes()
    assert index.locate(5) == first
    bucket.delete("index.arrow")  # the next one maps the copy
    assert open_index(s3_url, cache_dir=tmp_path / "cache").locate(5) == first


def test_a_damaged_remote_index_is_never_used(tmp_path, s3_url):
    manifest = synthetic(tmp_path / "ds", 160)
    data = bytearray((tmp_path / "ds/index.arrow").read_bytes())
    entry = manifest.shards[3]
    data[entry.index_start + entry.index_bytes - 100] ^= 1
    bucket = open_store(s3_url)
    bucket.put("index.arrow", bytes(data))
    bucket.put("manifest.json", manifest.to_json())
    index = open_index(s3_url, cache_dir=tmp_path / "cache")
    index.wait_until_local()
    assert list((tmp_path / "cache/indexes").glob("*.arrow")) == []
    index.locate(2 * SHARD_SAMPLES)
    with pytest.raises(DatasetError, match="its batch 3 is not the manifest's"):
        index.locate(3 * SHARD_SAMPLES)
