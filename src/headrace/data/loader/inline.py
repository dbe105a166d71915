"""Batches made in the training process itself, when they are asked for."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable

from headrace.data.loader.executor import Made
from headrace.data.loader.failures import Failure, sample_at
from headrace.data.loader.making import BatchMaker, Exhausted, Order, Recipe
from headrace.data.loader.randomness import (
    generator_states,
    generators_kept,
    seed_generators,
    set_generator_states,
)
from headrace.data.loader.slots import PlainArena, plain_value
from headrace.data.loader.wire import decode


class InlineExecutor:
    """`num_workers=0`: no process, no prefetching; the model's random generators stay as they are.

    Attributes:
        workers: 0.
    """

    workers = 0

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._orders: deque[Order] = deque()
        self._next_batch = 0

    def start(self, recipe: Recipe) -> None:
        """Get ready for an iteration over `recipe`."""
        self._recipe = recipe
        self._done = 0
        self._maker = BatchMaker(recipe, self._note_progress)
        self._orders.clear()
        self._next_batch = 0
        with generators_kept():
            seed_generators(recipe.worker_seed(0))
            self._states = generator_states()  # an iterable dataset goes on drawing from these

    def has_room(self) -> bool:
        """Whether another order can be taken now."""
        return not self._orders

    def submit(self, order: Order) -> None:
        """Take the order of the next batch."""
        self._orders.append(order)

    def next_made(
        self,
        timeout_s: float,  # noqa: ARG002 - inline work has no one to wait for
        on_room: Callable[[], None],  # noqa: ARG002 - likewise
    ) -> Made:
        """Make and return the next batch; raises as `Executor` says."""
        order = self._orders.popleft()
        arena = PlainArena()
        batch = self._next_batch
        self._next_batch += 1
        try:
            with generators_kept():
                set_generator_states(self._states)
                structure = self._maker.make(order, arena)
                if self._recipe.iterable:
                    self._states = generator_states()
        except Exhausted:
            return Made(batch=batch, exhausted=True)
        except Exception as error:
            index = sample_at(order.indices, self._done)
            failure = Failure.of(error, traceback.format_exc(), self._recipe.dataset, index)
            raise failure.in_caller(f"rank {self._rank}, inline") from error
        content, bad, samples = decode(structure, lambda placed: plain_value(arena, placed))
        return Made(batch=batch, content=content, bad=tuple(bad), samples=samples)

    def finish(self) -> None:
        """Forget what is under way."""
        self._orders.clear()

    @property
    def usable(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Nothing to end."""

    def _note_progress(self, samples_done: int) -> None:
        self._done = samples_done
