"""What a rank's own thread does in its sampler: the time, and how many samples each batch names.

torch's loaders ask the sampler for the next batch's indices in the training process, also with
workers: within `next()`, and for the first batches as the iterator is made. Headrace's loader
counts the same itself.
"""

from __future__ import annotations

import functools
from time import monotonic_ns
from types import ModuleType
from typing import Any

from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.batch_samples import indices_in

_READS_ATTRIBUTE = "_headrace_sampler_reads"  # of iterators; see `iterator_state` for its use
_MOST_PENDING = 4096  # batches whose sizes are held; more would be of batches that nobody takes
_CHECK_EVERY = 4096  # batches, after which their number is compared with that again


class SamplerReads:
    """The reads of one iterator's sampler: time since it was last queried, sizes of the batches.

    Attributes:
        is_numbered: Whether the iterator has torch's `_send_idx` and `_rcvd_idx`, which number the
            batches of a map-style dataset, and asks for each by a list of indices.
        stream_batch: The samples that are asked for in each batch of an iterable dataset, which may
            give fewer; -1 where it yields batches; None for a map-style dataset.
        is_by_rows: Whether a batch of an iterable dataset had as many rows as were asked for.
        spent_ns: The time.
        sizes: Of a map-style dataset's batches, by their number among those asked for.
    """

    __slots__ = ("is_by_rows", "is_numbered", "sizes", "spent_ns", "stream_batch")

    def __init__(self, *, stream_batch: int | None = None, is_numbered: bool = False) -> None:
        self.stream_batch, self.is_numbered = stream_batch, is_numbered
        self.is_by_rows = False
        self.spent_ns = 0
        self.sizes: dict[int, int] = {}

    def add(self, number: int, index: object) -> None:
        """Add the indices of a map-style dataset's batch."""
        if number == 0 or len(self.sizes) > _MOST_PENDING:  # another epoch, or nobody takes them
            self.sizes.clear()
        self.sizes[number] = len(index) if type(index) is list else indices_in(index)

    def delivered(self, number: int) -> int:
        """Return how many samples a batch that is delivered was to have; -1 if unknown."""
        sizes = self.sizes
        size = sizes.pop(number, None)
        if size is None:  # batches that come out of order
            return sizes.pop(next(iter(sizes))) if sizes else -1
        return size


def hook_sampler_reads(module: ModuleType) -> None:
    """Time the sampler of torch's iterators.

    `_reset` begins another epoch by `iter(sampler)`, in which some draw up all of their batches.
    """
    iterator_class = module._BaseDataLoaderIter  # noqa: SLF001 - no public way
    original_reset = iterator_class._reset  # noqa: SLF001 - as above
    original = iterator_class._next_index  # noqa: SLF001 - as above

    @functools.wraps(original)
    @skipped_by_warnings
    def _next_index(iterator: Any) -> Any:
        began_ns = monotonic_ns()
        index = original(iterator)
        try:
            reads: SamplerReads = iterator._headrace_sampler_reads  # noqa: SLF001 - our own
        except AttributeError:  # while it is being made
            return index
        if reads.is_numbered and (number := iterator._send_idx) % _CHECK_EVERY:  # noqa: SLF001 - as above
            reads.sizes[number] = len(index)  # as `add` does, by fewer instructions
        elif reads.stream_batch is None:
            reads.add(getattr(iterator, "_send_idx", 0), index)
        reads.spent_ns += monotonic_ns() - began_ns
        return index

    @functools.wraps(original_reset)
    @skipped_by_warnings
    def _reset(iterator: Any, *args: Any, **kwargs: Any) -> None:
        began_ns = monotonic_ns()
        original_reset(iterator, *args, **kwargs)
        add_sampler_ns(iterator, monotonic_ns() - began_ns)

    iterator_class._next_index = _next_index  # noqa: SLF001 - as above
    iterator_class._reset = _reset  # noqa: SLF001 - as above


def register_sampler_reads(iterator: Any, loader: Any) -> SamplerReads | None:
    """Record what the sampler of an iterator of torch's takes from now on; None for others."""
    known: SamplerReads | None = getattr(iterator, _READS_ATTRIBUTE, None)
    if known is None and hasattr(iterator, "_next_index"):
        stream_batch = None
        if getattr(loader, "_dataset_kind", 0) != 0:
            stream_batch = -1 if loader.batch_size is None else loader.batch_size
        is_numbered = (
            stream_batch is None
            # As those of torch's with workers have; the numbers themselves are set later.
            and hasattr(iterator, "_try_get_data")
            and _is_torch_batch_sampler(getattr(loader, "batch_sampler", None))
        )
        known = SamplerReads(stream_batch=stream_batch, is_numbered=is_numbered)
        setattr(iterator, _READS_ATTRIBUTE, known)
    return known


def _is_torch_batch_sampler(sampler: object) -> bool:
    """Return whether batches are drawn by torch's own class, not one that yields other indices."""
    kind = type(sampler)
    return (kind.__module__, kind.__name__) == ("torch.utils.data.sampler", "BatchSampler")


def add_sampler_ns(iterator: Any, spent_ns: int) -> None:
    """Add time in an iterator's sampler, in ns."""
    reads = getattr(iterator, _READS_ATTRIBUTE, None)
    if reads is not None:
        reads.spent_ns += spent_ns
