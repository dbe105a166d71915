"""An index of ten million samples, and one that is remote and large."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from synthetic import SHARD_SAMPLES, synthetic

from headrace.core.errors import DatasetError
from headrace.data.shards.shard_index import open_index
from headrace.data.storage import open_store

OPEN_ONCE = Path(__file__).parents[2] / "benchmarks/index/open_once.py"


def wait_for_copy() -> None:
    for thread in threading.enumerate():
        if thread.name == "headrace-index-copy":
            thread.join(60)


def test_ten_million_samples_cost_a_process_under_50_mb_and_64_bytes_a_member(tmp_path):
    manifest = synthetic(tmp_path / "ds", 7813)
    assert manifest.index_bytes / manifest.num_members <= 64
    outcome = subprocess.run(
        [sys.executable, str(OPEN_ONCE), str(tmp_path / "ds")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    shutil.rmtree(tmp_path / "ds")  # 0.6 GB, which pytest would keep
    found = json.loads(outcome.stdout)
    assert found["samples"] > 10**7
    assert found["private_mb"] < 50  # with 20,000 random look-ups


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
    wait_for_copy()
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
    wait_for_copy()
    assert list((tmp_path / "cache/indexes").glob("*.arrow")) == []
    index.locate(2 * SHARD_SAMPLES)
    with pytest.raises(DatasetError, match="its batch 3 is not the manifest's"):
        index.locate(3 * SHARD_SAMPLES)
