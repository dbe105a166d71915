"""The index of any set of shards locates every sample."""

from __future__ import annotations

import pickle
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.shards.index_writer import IndexRowBuilder
from headrace.data.shards.manifest import DatasetSource
from headrace.data.shards.pack import shard_bounds, shuffled_rows
from headrace.data.shards.shard_index import ShardIndex, open_index
from headrace.data.shards.shard_records import DatasetDescription, ShardRecord, assemble, summarise
from headrace.data.storage import open_store

PLACES = st.tuples(st.integers(0, 2**40), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
MEMBERS = st.dictionaries(st.sampled_from(["jpg", "cls", "mask.png"]), PLACES, min_size=1)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
SHARDS = st.lists(st.dictionaries(KEYS, MEMBERS, min_size=1, max_size=6), min_size=1, max_size=5)


def build(folder: str, shards: list[dict[str, dict[str, tuple[int, ...]]]]) -> ShardIndex:
    parts = []
    for number, shard in enumerate(shards):
        rows = IndexRowBuilder()
        for key, members in shard.items():
            rows.add(key, {name: ("range", place) for name, place in members.items()})
        part = ShardRecord.build(rows, number=number, name=f"{number:06d}.tar", size_bytes=1)
        parts.append(ShardRecord.from_bytes(part.to_bytes(), "test"))
    source = DatasetSource(kind="test", url="", num_files=0, size_bytes=0)
    about = DatasetDescription(layout="tar", source=source)
    with tempfile.TemporaryDirectory() as temporary:
        store = open_store(folder)
        assemble(store, summarise(parts), lambda: iter(parts), about, Path(temporary))
    return open_index(folder)


@settings(deadline=None, max_examples=40)  # each writes files
@given(SHARDS)
def test_every_sample_is_located_where_it_was_put(shards):
    with tempfile.TemporaryDirectory() as folder:
        index = build(folder, shards)
        samples = [
            (number, key, members)
            for number, shard in enumerate(shards)
            for key, members in shard.items()
        ]
        assert index.num_samples == len(samples)
        for sample, (shard, key, members) in enumerate(samples):
            location = index.locate(sample)
            assert (location.sample, location.shard, location.key) == (sample, shard, key)
            assert location.path == f"{shard:06d}.tar"
            assert index.locate(sample).shard == shard
            assert {
                member.extension: (member.offset, member.size_bytes, member.crc32c)
                for member in location.members
            } == members
        first = {key: sample for sample, (_, key, _) in reversed(list(enumerate(samples)))}
        assert {key: index.find(key) for key in first} == first
        again = pickle.loads(pickle.dumps(index))
        assert again.locate(0) == index.locate(0)


@settings(deadline=None, max_examples=40)  # each writes files
@given(SHARDS)
def test_the_fingerprint_changes_with_any_checksum(shards):
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        before = build(one, shards).fingerprint
        assert build(str(Path(other) / "same"), shards).fingerprint == before
        members = next(iter(shards[-1].values()))
        name, (offset, size_bytes, crc32c) = next(iter(members.items()))
        members[name] = offset, size_bytes, crc32c ^ 1
        assert build(str(Path(other) / "changed"), shards).fingerprint != before


@given(st.integers(0, 300), st.integers(-(2**70), 2**70))
def test_shuffling_keeps_each_sample_once(num_samples, seed):
    order = shuffled_rows(num_samples, seed)
    assert sorted(order.tolist()) == list(range(num_samples))


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=100), st.integers(1, 5000))
def test_shards_cover_all_samples_and_none_is_empty(sizes, shard_bytes):
    bounds = shard_bounds(np.array(sizes, dtype=np.int64), shard_bytes)
    assert bounds[0] == 0
    assert bounds[-1] == len(sizes)
    assert (np.diff(bounds) > 0).all()
    largest = max(sum(sizes[a:b]) for a, b in pairwise(bounds))
    assert largest <= shard_bytes + 2 * max(sizes)
