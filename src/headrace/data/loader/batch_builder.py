"""The batch builder, and the loader spec and batch specs that it works from.

The same code runs in a worker, in the training process, and on another host. A batch spec says
which samples belong to the batch and which seeds they draw from; so any worker can make any batch,
twice if need be, and the bytes are the same.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cloudpickle

from headrace.core.errors import LoaderError
from headrace.core.loader_hooks import LOADER_HOOKS
from headrace.data.loader.collate import UnsupportedTypeError, collate
from headrace.data.loader.dataset_protocol import NativeDataset
from headrace.data.loader.library_state import (
    imported_generators,
    library_settings,
    seed_generators,
    without_worker_info,
)
from headrace.data.loader.serialization import Arena, encode_batch
from headrace.sampling.seeds import batch_seed, combine, sample_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class PickledLoaderSpec:
    """What the workers of a loader get from its process, on this host and on others."""

    content: bytes  # the loader spec, pickled
    folder: str  # the working folder
    variables: Mapping[str, str | None]  # the process's own, from `env.own_variables`


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSpec:
    """Everything but the batch specs that a worker needs to make batches."""

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] | None  # None: torch's `default_collate`
    iterable: bool = False
    batch_size: int | None = None  # of an iterable dataset; None: single, uncollated samples
    drop_last: bool = False  # of an iterable dataset
    seed: int = 0
    epoch: int = 0  # of an iterable dataset, whose workers restart each epoch; otherwise 0
    worker_init_fn: Callable[[int], None] | None = None  # called with the worker's number
    rank: int = 0  # iterable datasets of different ranks draw differently
    switches: dict[str, Any] = field(default_factory=library_settings)  # of the script
    # The base seed of a torch DataLoader, whose workers seed their generators as torch does.
    torch_seed: int | None = None  # None: our own loader

    @property
    def draws_only_in_samples(self) -> bool:
        """Whether all random draws happen inside single samples, which can be made again."""
        return (
            isinstance(self.dataset, NativeDataset)
            and not self.iterable
            and self.collate_fn is None
            and self.worker_init_fn is None
        )

    def worker_seed(self, worker: int) -> int:
        """Return the seed of a worker's generators."""
        if self.torch_seed is not None:
            return self.torch_seed + worker
        return combine(sample_seed(self.seed, self.epoch, worker), self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """The samples and seeds of one batch."""

    # What the seed of collate_fn and device transform derives from: the batch's number in its epoch
    # and the rank.
    draws: int
    epoch: int
    indices: Sequence[Any] = ()  # of the dataset, in this order
    seed_ids: Sequence[int] = ()  # for each sample the number that its seed derives from
    single: bool = False  # the batch is one uncollated sample (`batch_size=None`)
    # Of an iterable dataset: the batch's number within its worker, from 0; a worker that has made
    # fewer skips up to it.
    place: int | None = None  # None: the next batch

    def to_bytes(self) -> bytes:
        """Return the spec pickled."""
        if all(type(index) is int for index in self.indices):
            return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
        content: bytes = cloudpickle.dumps(self)  # a sampler's keys may be of the script's classes
        return content


ALL_SAMPLES = -1
SKIPPED_BATCHES = -2
"""Progress of a worker that skips batches: this, and one less for each of them."""
_NEARLY_ALL = 8  # of the reads, all but an eighth: one slow answer does not delay the rest


class IterableExhausted(Exception):  # noqa: N818 - not an error: an iterable dataset came to its end
    """This worker's partition of an iterable dataset has no more batches."""


class BatchBuilder:
    """Makes the batches of one loader.

    Calls `on_progress` with the number of the sample being made, -1 for the whole batch, -2 and
    below while batches are skipped.
    """

    def __init__(self, loader_spec: LoaderSpec, on_progress: Callable[[int], None]) -> None:
        self._loader_spec = loader_spec
        self._on_progress = on_progress
        self._uses_own_collate = loader_spec.collate_fn is None
        self._iterator: Iterator[Any] | None = None
        self._place = 0  # of an iterable dataset's next batch
        self._has_lost_place = False  # an error came while it skipped batches
        self._is_exhausted = False
        dataset = loader_spec.dataset
        self._native = dataset if isinstance(dataset, NativeDataset) else None
        self._get_many = getattr(dataset, "__getitems__", None)
        self._samples_made = 0

    @property
    def prefetches(self) -> bool:
        """Whether the dataset gains from starting reads before a batch is made."""
        return self._native is not None and self._native.reads_ahead

    def may_prefetch_batch(self, spec: BatchSpec) -> bool:
        """Return whether nearly all reads of a batch have arrived, so that later ones may start.

        Earlier, the reads of later batches would only delay this one, above all the first.
        """
        return self._native is not None and (
            self._native.reads_under_way() <= len(spec.indices) // _NEARLY_ALL
        )

    def prefetch_batch(self, spec: BatchSpec) -> None:
        """Let the dataset start the reads of a batch that will be made soon."""
        if self._native is not None:
            self._native.prefetch(spec.indices)

    def make(self, spec: BatchSpec, arena: Arena) -> bytes:
        """Make the batch in `arena`; return the pickled (batch, bad samples, samples in it).

        Raises IterableExhausted, and any error of the dataset, the transform or collate_fn.
        """
        observer = LOADER_HOOKS.batches
        if observer is None:
            return self._make(spec, arena)[0]
        return observer.make_batch(lambda: self._make(spec, arena), self._loader_spec.dataset)

    def _make(self, spec: BatchSpec, arena: Arena) -> tuple[bytes, int]:
        collecting: AbstractContextManager[list[Any]] = nullcontext([])
        if self._native is not None:
            collecting = self._native.collecting_bad()
        with collecting as bad:
            if self._loader_spec.iterable:
                batch = self._iterated(spec, arena)
            else:
                batch = self._indexed(spec, arena)
        # A sample that was made twice reported its fault twice.
        bad = list({record["sample"]: record for record in bad}.values())
        return encode_batch((batch, bad, self._samples_made), arena), self._samples_made

    def _indexed(self, spec: BatchSpec, arena: Arena) -> Any:
        self._samples_made = len(spec.indices)
        if spec.single:
            return self._single(next(self._samples(spec)), spec)
        if self._get_many is not None and self._native is None:
            self._on_progress(ALL_SAMPLES)
            seed_generators(batch_seed(self._loader_spec.seed, spec.epoch, spec.draws))
            return self._collated(self._get_many(list(spec.indices)), spec, arena)
        if self._uses_own_collate:
            try:
                return collate(self._samples(spec), len(spec.indices), arena)
            except UnsupportedTypeError:
                # An unsupported type: torch's function collates this and all later batches. The
                # samples are made again: their seeds make them the same.
                self._uses_own_collate = False
        return self._collated(list(self._samples(spec)), spec, arena)

    def _samples(self, spec: BatchSpec) -> Iterator[Any]:
        self.prefetch_batch(spec)
        observer, make = LOADER_HOOKS.batches, self._seeded
        if observer is not None:
            make = partial(observer.make_sample, make)
        for done, (index, seed_id) in enumerate(zip(spec.indices, spec.seed_ids, strict=True)):
            self._on_progress(done)
            yield make(index, sample_seed(self._loader_spec.seed, spec.epoch, seed_id))

    def _seeded(self, index: Any, seed: int) -> Any:
        imported = imported_generators()
        seed_generators(seed)
        sample = self._loader_spec.dataset[index]
        if imported != imported_generators():
            # The dataset imported NumPy's generators, or torch, meanwhile, and may have drawn from
            # unseeded ones. Made again, the sample is the one that every other worker makes.
            seed_generators(seed)
            sample = self._loader_spec.dataset[index]
        return sample

    def _iterated(self, spec: BatchSpec, arena: Arena) -> Any:
        if spec.place is not None:
            self._pass_over_until(spec.place)
        samples = self._next_batch()
        self._samples_made = len(samples)
        if self._loader_spec.batch_size is None:
            return self._single(samples[0], None)
        return self._collated(samples, None, arena)

    def _pass_over_until(self, place: int) -> None:
        """Skip to a batch, past those of this partition that another worker has made.

        All of them were made before: a partition in which a batch failed is never moved. So an
        error here is a new one, and later batches would be lost or delivered twice.
        """
        if place < self._place or self._has_lost_place:
            raise LoaderError(
                f"Batch {place} of worker {_worker_number()} of an iterable dataset cannot be "
                f"made: its place was lost at batch {self._place}. Begin the epoch anew."
            )
        while self._place < place:
            skipped = self._place
            self._on_progress(SKIPPED_BATCHES - skipped)
            self._has_lost_place = True
            try:
                samples = self._next_batch()
                if self._loader_spec.collate_fn is not None:  # it may draw, or count
                    single = self._loader_spec.batch_size is None
                    self._by_user(samples[0] if single else samples, None)
                del samples  # before those of the next batch are read
            except IterableExhausted:
                raise LoaderError(
                    f"Worker {_worker_number()} of an iterable dataset came to its end after "
                    f"{skipped} batches when it was gone through again, and had given {place} or "
                    "more before. The dataset has to give every worker the same samples each time "
                    "it is iterated in an epoch."
                ) from None
            except Exception as error:
                error.add_note(
                    f"This was raised while batch {skipped} of worker {_worker_number()} was "
                    f"passed over: it had been made elsewhere, and batch {place} was to come next."
                )
                raise
            self._has_lost_place = False
        self._on_progress(0)

    def _next_batch(self) -> list[Any]:
        self._place += 1
        size = self._loader_spec.batch_size or 1
        samples = self._next_samples(size)
        if not samples or (self._loader_spec.drop_last and len(samples) < size):
            raise IterableExhausted
        return samples

    def _next_samples(self, count: int) -> list[Any]:
        """Return the next samples of an iterable dataset, fewer at its end.

        An iterator that has ended is not advanced again: some restart, and would never end.
        """
        if self._iterator is None:
            self._iterator = iter(self._loader_spec.dataset)
        samples: list[Any] = []
        while len(samples) < count and not self._is_exhausted:
            try:
                samples.append(next(self._iterator))
            except StopIteration:
                self._is_exhausted = True
        return samples

    def _single(self, sample: Any, spec: BatchSpec | None) -> Any:
        if self._loader_spec.collate_fn is not None:
            return self._by_user(sample, spec)
        from torch.utils.data import default_convert

        return default_convert(sample)

    def _collated(self, samples: Any, spec: BatchSpec | None, arena: Arena) -> Any:
        self._on_progress(ALL_SAMPLES)
        if self._loader_spec.collate_fn is not None:
            return self._by_user(samples, spec)
        if self._uses_own_collate:
            try:
                return collate(iter(samples), len(samples), arena)
            except UnsupportedTypeError:
                self._uses_own_collate = False
        from torch.utils.data import default_collate

        with without_worker_info():
            return default_collate(samples)

    def _by_user(self, samples: Any, spec: BatchSpec | None) -> Any:
        assert self._loader_spec.collate_fn is not None
        if spec is not None:
            seed_generators(batch_seed(self._loader_spec.seed, spec.epoch, spec.draws))
        with without_worker_info():
            return self._loader_spec.collate_fn(samples)


def _worker_number() -> int:
    """Return this worker's number, according to torch."""
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    return 0 if worker is None else worker.id
