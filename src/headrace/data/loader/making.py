"""Make batch g: the same code in a worker, in the training process, and on another host.

The unit of work is a number. Which samples belong to a batch, and which seeds they draw from, is
in its order; so any worker may make it, twice if need be, and the bytes are the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.data.loader.collate import NotPlainError, collate
from headrace.data.loader.randomness import seed_generators
from headrace.data.loader.wire import Arena, encode
from headrace.plan.seeds import batch_seed, sample_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
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
    """

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] | None
    iterable: bool = False
    batch_size: int | None = None
    drop_last: bool = False
    seed: int = 0
    epoch: int = 0
    worker_init_fn: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What batch number `batch` is made of.

    Attributes:
        batch: The batch's number in its epoch; its seed derives from it.
        epoch: The epoch.
        indices: What the dataset is asked for, in this order.
        seed_ids: For each sample the number that its seed derives from.
        single: The batch is one sample as it is, not collated (`batch_size=None`).
    """

    batch: int
    epoch: int
    indices: Sequence[Any] = ()
    seed_ids: Sequence[int] = ()
    single: bool = False


class Exhausted(Exception):  # noqa: N818 - not an error: an iterable dataset came to its end
    """This worker's share of an iterable dataset has no more batches."""


class BatchMaker:
    """Makes batches of one recipe.

    Args:
        recipe: What to make batches of.
        on_progress: Told how many samples of the batch at work are done.
    """

    def __init__(self, recipe: Recipe, on_progress: Callable[[int], None]) -> None:
        self._recipe = recipe
        self._on_progress = on_progress
        self._plain = recipe.collate_fn is None
        self._iterator: Iterator[Any] | None = None
        self._prefetch: Callable[[Sequence[Any]], None] | None = getattr(
            recipe.dataset, "prefetch", None
        )
        self._drain_bad: Callable[[], list[Any]] | None = getattr(recipe.dataset, "drain_bad", None)
        if self._drain_bad is not None:
            recipe.dataset.collect_bad()

    @property
    def looks_ahead(self) -> bool:
        """Whether the dataset gains from starting to read a batch before it is made."""
        return bool(getattr(self._recipe.dataset, "reads_ahead", False))

    def look_ahead(self, order: Order) -> None:
        """Let the dataset start the reads of a batch that will be made soon."""
        if self._prefetch is not None:
            self._prefetch(order.indices)

    def make(self, order: Order, arena: Arena) -> bytes:
        """Make the batch in `arena`; return the pickled (batch, bad samples met on the way).

        Raises:
            Exhausted: An iterable dataset has no more batches.
            Exception: Whatever the dataset, the transform or collate_fn raise.
        """
        batch = self._iterated(arena) if self._recipe.iterable else self._indexed(order, arena)
        bad = self._drain_bad() if self._drain_bad is not None else []
        return encode((batch, bad), arena)

    def _indexed(self, order: Order, arena: Arena) -> Any:
        if order.single:
            sample = next(self._samples(order))
            return self._converted(sample) if self._plain else self._collated(sample, order)
        if self._plain:
            try:
                return collate(self._samples(order), len(order.indices), arena)
            except NotPlainError:
                # Some other type: torch's function is asked, now and for all later batches. The
                # samples are made again: their seeds make them the same.
                self._plain = False
        return self._collated(list(self._samples(order)), order)

    def _collated(self, samples: Any, order: Order) -> Any:
        collate_fn = self._recipe.collate_fn
        if collate_fn is None:
            from torch.utils.data import default_collate

            collate_fn = default_collate
        seed_generators(batch_seed(self._recipe.seed, order.epoch, order.batch))
        return collate_fn(samples)

    def _converted(self, sample: Any) -> Any:
        from torch.utils.data import default_convert

        return default_convert(sample)

    def _samples(self, order: Order) -> Iterator[Any]:
        dataset = self._recipe.dataset
        get_many = getattr(dataset, "__getitems__", None)
        if get_many is not None and self._prefetch is None and not order.single:
            seed_generators(batch_seed(self._recipe.seed, order.epoch, order.batch))
            yield from get_many(list(order.indices))
            return
        self.look_ahead(order)
        for done, (index, seed_id) in enumerate(zip(order.indices, order.seed_ids, strict=True)):
            self._on_progress(done)
            yield self._seeded(dataset, index, sample_seed(self._recipe.seed, order.epoch, seed_id))

    @staticmethod
    def _seeded(dataset: Any, index: Any, seed: int) -> Any:
        had_torch = "torch" in sys.modules
        seed_generators(seed)
        sample = dataset[index]
        if not had_torch and "torch" in sys.modules:
            # The dataset imported torch on the way and may have drawn from a generator that was
            # not seeded. Made again, the sample is what every other worker makes.
            seed_generators(seed)
            sample = dataset[index]
        return sample

    def _iterated(self, arena: Arena) -> Any:
        recipe = self._recipe
        if self._iterator is None:
            self._iterator = iter(recipe.dataset)
        if recipe.batch_size is None:
            try:
                sample = next(self._iterator)
            except StopIteration:
                raise Exhausted from None
            return (
                self._converted(sample) if recipe.collate_fn is None else recipe.collate_fn(sample)
            )
        samples = []
        for sample in self._iterator:
            samples.append(sample)
            if len(samples) == recipe.batch_size:
                break
        if not samples or (recipe.drop_last and len(samples) < recipe.batch_size):
            raise Exhausted
        if self._plain:
            try:
                return collate(iter(samples), len(samples), arena)
            except NotPlainError:
                self._plain = False
        if recipe.collate_fn is not None:
            return recipe.collate_fn(samples)
        from torch.utils.data import default_collate

        return default_collate(samples)
