"""Which samples go into which shard: arithmetic on sizes and a seed, the same everywhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.data.shards.tar.header import BLOCK_BYTES

# Weyl increment and mixing constants of SplitMix64 (Steele, Lea, Flood: "Fast splittable
# pseudorandom number generators", OOPSLA 2014), written out because NumPy does not promise that
# its own permutations stay the same between versions.
_INCREMENT = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def shuffled(num_samples: int, seed: int) -> NDArray[np.int64]:
    """Return a permutation of 0 to num_samples - 1 that depends on `seed` alone."""
    start = np.uint64(seed * _INCREMENT % 2**64)
    with np.errstate(over="ignore"):
        keys = start + np.arange(1, num_samples + 1, dtype=np.uint64) * np.uint64(_INCREMENT)
        keys = (keys ^ (keys >> np.uint64(30))) * _MIX_1
        keys = (keys ^ (keys >> np.uint64(27))) * _MIX_2
        keys ^= keys >> np.uint64(31)
    return np.argsort(keys, kind="stable").astype(np.int64)


def tar_bytes(file_bytes: NDArray[np.int64], files_per_sample: int) -> NDArray[np.int64]:
    """Return how many bytes of a tar samples take: content, headers, and half a block of padding.

    Args:
        file_bytes: int64[n], the bytes of each sample's files.
        files_per_sample: How many files each has.
    """
    return file_bytes + files_per_sample * (BLOCK_BYTES + BLOCK_BYTES // 2)


def cut(sample_bytes: NDArray[np.int64], shard_bytes: int) -> NDArray[np.int64]:
    """Return where shards begin: int64[shards + 1], from 0 to the number of samples.

    There are as many shards as `shard_bytes` asks for, rounded up; all of about one size, so that
    none is a small rest; none is empty.

    Args:
        sample_bytes: int64[n], n > 0, what each sample will take.
        shard_bytes: The size that no shard should exceed by more than one sample.
    """
    ends = np.cumsum(sample_bytes)
    total = int(ends[-1])
    shards = min(max(1, -(-total // shard_bytes)), len(sample_bytes))
    targets = [total * number // shards for number in range(1, shards)]
    inner = np.searchsorted(ends, np.array(targets, dtype=np.int64), side="left") + 1
    bounds = np.concatenate([[0], inner, [len(sample_bytes)]]).astype(np.int64)
    # A sample larger than a shard leaves shards without any.
    return np.unique(bounds)


def spread(num_samples: int, count: int) -> NDArray[np.int64]:
    """Return up to `count` rows spread evenly over all of them, the same every time."""
    count = min(count, num_samples)
    return (np.arange(count, dtype=np.int64) * num_samples) // max(count, 1)
