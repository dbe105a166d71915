"""The builder of batches, and the specs of loader and batch that it works from.

The same code runs in a worker, in the training process, and on another host. The unit of work is a
number. Which samples belong to a batch, and which seeds they draw from, is in its spec; so any
worker may make it, twice if need be, and the bytes are the same.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from headrace.core.errors import LoaderError
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
    """What workers of a loader have of its process, on this host and on others, for an iteration.

    Attributes:
        content: The recipe, pickled.
        folder: The working folder.
        variables: Those of the process itself, as `env.own_variables` returns them.
    """

    content: bytes
    folder: str
    variables: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSpec:
    """All that a worker needs besides the order of a batch.

    Attributes:
        dataset: The map-style or iterable dataset.
        collate_fn: Samples to batch; None stands for torch's `default_collate`.
        iterable: The dataset is iterated, not indexed.
        batch_size: Samples a batch of an iterable dataset; None: each sample as it is.
        drop_last: Drop an iterable dataset's last, smaller batch.
        seed: The loader's seed.
        epoch: The epoch, where workers start anew each epoch (iterable datasets); otherwise 0.
        worker_init_fn: Called with the worker's number when a worker starts.
        rank: The rank; iterable datasets of different ranks draw differently.
        switches: What the script has set in libraries for all its processes.
        torch_seed: The base seed of a loader of torch's, whose workers' generators begin as torch
            has them; None: of a loader of ours.
    """

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] | None
    iterable: bool = False
    batch_size: int | None = None
    drop_last: bool = False
    seed: int = 0
    epoch: int = 0
    worker_init_fn: Callable[[int], None] | None = None
    rank: int = 0
    switches: dict[str, Any] = field(default_factory=library_settings)
    torch_seed: int | None = None

    @property
    def draws_only_in_samples(self) -> bool:
        """Whether all random draws happen while one sample is made, which can be made again."""
        return (
            isinstance(self.dataset, NativeDataset)
            and not self.iterable
            and self.collate_fn is None
            and self.worker_init_fn is None
        )

    def worker_seed(self, worker: int) -> int:
        """Return what a worker's generators begin with."""
        if self.torch_seed is not None:
            return self.torch_seed + worker
        return combine(sample_seed(self.seed, self.epoch, worker), self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """What batch number `batch` is made of.

    Attributes:
        draws: What the seed of collating and of the device transform derives from: the batch's
            number in its epoch and the rank.
        epoch: The epoch.
        indices: What the dataset is asked for, in this order.
        seed_ids: For each sample the number that its seed derives from.
        single: The batch is one sample as it is, not collated (`batch_size=None`).
        place: Of an iterable dataset: which batch of its worker's it is, from 0. Whoever has not
            come so far passes over what is before it. None: the next one.
    """

    draws: int
    epoch: int
    indices: Sequence[Any] = ()
    seed_ids: Sequence[int] = ()
    single: bool = False
    place: int | None = None

    def to_bytes(self) -> bytes:
        """Return it pickled."""
        if all(type(index) is int for index in self.indices):
            return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
        content: bytes = cloudpickle.dumps(self)  # a sampler's keys may be of the script's classes
        return content


ALL_SAMPLES = -1
SKIPPED_BATCHES = -2
"""Progress of a worker that passes over batches: this, and one less for each of them."""
_NEARLY_ALL = 8  # all but an eighth: one slow answer does not hold up the rest


class IterableExhausted(Exception):  # noqa: N818 - not an error: an iterable dataset came to its end
    """This worker's share of an iterable dataset has no more batches."""


class BatchBuilder:
    """Makes batches of one recipe.

    Args:
        recipe: What to make batches of.
        on_progress: Told which sample of the batch at work is being made, -1 for all of them; -2
            and below while batches are passed over.
    """

    def __init__(self, recipe: LoaderSpec, on_progress: Callable[[int], None]) -> None:
        self._loader_spec = recipe
        self._on_progress = on_progress
        self._plain = recipe.collate_fn is None
        self._iterator: Iterator[Any] | None = None
        self._place = 0  # of an iterable dataset's next batch
        self._is_astray = False  # it could not pass over what was made before
        self._ended = False
        self._known = recipe.dataset if isinstance(recipe.dataset, NativeDataset) else None
        self._get_many = getattr(recipe.dataset, "__getitems__", None)
        self._samples_made = 0

    @property
    def prefetches(self) -> bool:
        """Whether the dataset gains from starting to read a batch before it is made."""
        return self._known is not None and self._known.reads_ahead

    def may_prefetch_batch(self, order: BatchSpec) -> bool:
        """Whether nearly all that was begun for `order` has arrived.

        Sooner, the reads for later batches would only delay it: the first batch above all.
        """
        return self._known is not None and (
            self._known.reads_under_way() <= len(order.indices) // _NEARLY_ALL
        )

    def prefetch_batch(self, order: BatchSpec) -> None:
        """Let the dataset start the reads of a batch that will be made soon."""
        if self._known is not None:
            self._known.prefetch(order.indices)

    def make(self, order: BatchSpec, arena: Arena) -> bytes:
        """Make the batch in `arena`; return the pickled (batch, bad samples, samples in it).

        Raises:
            Exhausted: An iterable dataset has no more batches.
            Exception: Whatever the dataset, the transform or collate_fn raise.
        """
        collecting: AbstractContextManager[list[Any]] = nullcontext([])
        if self._known is not None:
            collecting = self._known.collecting_bad()
        with collecting as bad:
            if self._loader_spec.iterable:
                batch = self._iterated(order, arena)
            else:
                batch = self._indexed(order, arena)
        # A sample that was made twice told of its fault twice.
        bad = list({record["sample"]: record for record in bad}.values())
        return encode_batch((batch, bad, self._samples_made), arena)

    def _indexed(self, order: BatchSpec, arena: Arena) -> Any:
        self._samples_made = len(order.indices)
        if order.single:
            return self._single(next(self._samples(order)), order)
        if self._get_many is not None and self._known is None:
            self._on_progress(ALL_SAMPLES)
            seed_generators(batch_seed(self._loader_spec.seed, order.epoch, order.draws))
            return self._collated(self._get_many(list(order.indices)), order, arena)
        if self._plain:
            try:
                return collate(self._samples(order), len(order.indices), arena)
            except UnsupportedTypeError:
                # Some other type: torch's function is asked, now and for all later batches. The
                # samples are made again: their seeds make them the same.
                self._plain = False
        return self._collated(list(self._samples(order)), order, arena)

    def _samples(self, order: BatchSpec) -> Iterator[Any]:
        self.prefetch_batch(order)
        for done, (index, seed_id) in enumerate(zip(order.indices, order.seed_ids, strict=True)):
            self._on_progress(done)
            yield self._seeded(index, sample_seed(self._loader_spec.seed, order.epoch, seed_id))

    def _seeded(self, index: Any, seed: int) -> Any:
        imported = imported_generators()
        seed_generators(seed)
        sample = self._loader_spec.dataset[index]
        if imported != imported_generators():
            # The dataset imported NumPy's generators, or torch, on the way, and may have drawn from
            # what was not seeded. Made again, the sample is what every other worker makes.
            seed_generators(seed)
            sample = self._loader_spec.dataset[index]
        return sample

    def _iterated(self, order: BatchSpec, arena: Arena) -> Any:
        if order.place is not None:
            self._pass_over_until(order.place)
        samples = self._next_batch()
        self._samples_made = len(samples)
        if self._loader_spec.batch_size is None:
            return self._single(samples[0], None)
        return self._collated(samples, None, arena)

    def _pass_over_until(self, place: int) -> None:
        """Go on to a batch, past those that another worker in this one's place has made.

        All of them were made: a strand stays with the worker in whose hands a batch fails here. So
        what is raised now is no repetition, and what comes after it would be lost, or come twice.
        """
        if place < self._place or self._is_astray:
            raise LoaderError(
                f"Batch {place} of worker {_worker_number()} of an iterable dataset cannot be "
                "made: its "
                f"place was lost at batch {self._place}. Begin the epoch anew."
            )
        while self._place < place:
            at = self._place
            self._on_progress(SKIPPED_BATCHES - at)
            self._is_astray = True
            try:
                self._pass_over()
            except IterableExhausted:
                raise LoaderError(
                    f"Worker {_worker_number()} of an iterable dataset came to its end after "
                    f"{at} batches "
                    f"when it was gone through again, and had given {place} or more before. The "
                    "dataset has to give every worker the same samples each time it is iterated in "
                    "an epoch."
                ) from None
            except Exception as error:
                error.add_note(
                    f"This was raised while batch {at} of worker {_worker_number()} was passed "
                    "over: it "
                    f"had been made elsewhere, and batch {place} was to come next."
                )
                raise
            self._is_astray = False
        self._on_progress(0)

    def _pass_over(self) -> None:
        samples = self._next_batch()
        if self._loader_spec.collate_fn is not None:  # it may draw, or count
            self._by_user(samples[0] if self._loader_spec.batch_size is None else samples, None)

    def _next_batch(self) -> list[Any]:
        self._place += 1
        size = self._loader_spec.batch_size or 1
        samples = self._next_samples(size)
        if not samples or (self._loader_spec.drop_last and len(samples) < size):
            raise IterableExhausted
        return samples

    def _next_samples(self, count: int) -> list[Any]:
        """Return the next samples of an iterable dataset, fewer at its end.

        An iterator that has ended is not asked again: some begin anew, and would never end.
        """
        if self._iterator is None:
            self._iterator = iter(self._loader_spec.dataset)
        samples: list[Any] = []
        while len(samples) < count and not self._ended:
            try:
                samples.append(next(self._iterator))
            except StopIteration:
                self._ended = True
        return samples

    def _single(self, sample: Any, order: BatchSpec | None) -> Any:
        if self._loader_spec.collate_fn is not None:
            return self._by_user(sample, order)
        from torch.utils.data import default_convert

        return default_convert(sample)

    def _collated(self, samples: Any, order: BatchSpec | None, arena: Arena) -> Any:
        self._on_progress(ALL_SAMPLES)
        if self._loader_spec.collate_fn is not None:
            return self._by_user(samples, order)
        if self._plain:
            try:
                return collate(iter(samples), len(samples), arena)
            except UnsupportedTypeError:
                self._plain = False
        from torch.utils.data import default_collate

        with without_worker_info():
            return default_collate(samples)

    def _by_user(self, samples: Any, order: BatchSpec | None) -> Any:
        assert self._loader_spec.collate_fn is not None
        if order is not None:
            seed_generators(batch_seed(self._loader_spec.seed, order.epoch, order.draws))
        with without_worker_info():
            return self._loader_spec.collate_fn(samples)


def _worker_number() -> int:
    """Return this worker's number, as torch tells it."""
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    return 0 if worker is None else worker.id
