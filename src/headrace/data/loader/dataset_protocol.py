"""The base of datasets that tell the loader their shards, read ahead and replace bad samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray


class NativeDataset:
    """Base of map-style datasets that know their shards, read ahead, and replace bad samples.

    The loader asks for these by type, never by the names of attributes: a user's dataset may have
    an attribute called `prefetch` that means something else.

    Attributes:
        fingerprint: Identifies the dataset's content; the order depends on it.
        shard_sizes: int64[shards], samples of each shard; None where each sample is its own.
        reads_ahead: Whether reads are worth starting before their samples are asked for.
        max_bad_rate: Share of bad samples above which loading stops, from the third one on.
        modules: What workers will import when they read; better before they are forked.
    """

    fingerprint: str
    shard_sizes: NDArray[np.int64] | None = None
    reads_ahead: bool = False
    max_bad_rate: float = 0.001
    modules: Sequence[str] = ()

    def prefetch(self, samples: Sequence[int]) -> None:
        """Begin to read these samples; by default there is nothing to begin."""

    def reads_under_way(self) -> int:
        """Return how many of the reads that were begun have not arrived."""
        return 0

    def describe(self, sample: int) -> str:
        """Return a sample's name for messages."""
        return f"sample {sample}"

    @contextmanager
    def collecting_bad(self) -> Iterator[list[Mapping[str, Any]]]:
        """Hand the records of bad samples met meanwhile to the caller, who writes them down."""
        yield []
