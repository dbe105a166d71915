"""Relative position buckets as in T5 (bidirectional)."""
import math

import numpy as np


def relative_position_bucket(relative_position, num_buckets=32, max_distance=128):
    half = num_buckets // 2
    bucket = half if relative_position > 0 else 0
    distance = abs(relative_position)
    max_exact = half // 2
    if distance < max_exact:
        return bucket + distance
    large = max_exact + int(
        math.log(distance / max_exact) / math.log(max_distance / max_exact) * (half - max_exact)
    )
    return bucket + min(large, half - 1)


def bucket_table(size, **kwargs):
    """The buckets of the distances -(size - 1) .. size - 1."""
    return np.array([relative_position_bucket(d, **kwargs) for d in range(-size + 1, size)], dtype=np.uint8)
