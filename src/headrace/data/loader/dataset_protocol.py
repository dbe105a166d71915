"""The base class of datasets that know their shards, read ahead and replace bad samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray


class NativeDataset:
    """A map-style dataset that knows its shards, reads ahead and replaces bad samples.

    The loader recognises it by type, never by the names of attributes: a user's dataset may have
    an attribute called `prefetch` that means something else.
    """

    fingerprint: str  # of the dataset's content; the order depends on it
    shard_sizes: NDArray[np.int64] | None = None  # [shards], in samples; None without shards
    reads_ahead: bool = False  # reads are worth starting before their samples are needed
    max_bad_rate: float = 0.001  # above it loading stops, from the third bad sample on
    modules: Sequence[str] = ()  # needed for reading; imported before workers are forked

    def prefetch(self, samples: Sequence[int]) -> None:
        """Start the reads of these samples; does nothing by default."""

    def reads_under_way(self) -> int:
        """Return the number of started reads that have not arrived."""
        return 0

    def describe(self, sample: int) -> str:
        """Return a sample's name for messages."""
        return f"sample {sample}"

    @contextmanager
    def collecting_bad(self) -> Iterator[list[Mapping[str, Any]]]:
        """Collect the records of bad samples met inside the context, for the caller to write."""
        yield []
