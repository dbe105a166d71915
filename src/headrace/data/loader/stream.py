"""One iteration over a loader, from the first order to the last delivered batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import LoaderError, WorkerError
from headrace.data.loader.device import DeviceFeed
from headrace.data.loader.executor import Executor, Made
from headrace.data.loader.making import Order
from headrace.data.loader.orders import IterableOrders, Orders, PlanOrders
from headrace.data.loader.quarantine import BadSampleBudget
from headrace.data.loader.stats import LoaderStats
from headrace.plan.seeds import batch_seed


@dataclass(slots=True)
class Progress:
    """How far an iteration is; it outlives the iteration.

    Attributes:
        orders: What the iteration is made of.
        delivered: How many batches the script has been given.
        samples: How many samples were in them.
        finished: The script was told that there are no more.
    """

    orders: Orders
    delivered: int = 0
    samples: int = 0
    finished: bool = False

    def position(self) -> int:
        """Return the epoch's position after what was delivered so far."""
        return self.orders.position_after(self.delivered)

    def seen_with(self, samples: int) -> int:
        """Return how many samples all ranks have been given after one more batch, or about."""
        if isinstance(self.orders, PlanOrders):
            return self.orders.position_after(self.delivered + 1)
        return (self.samples + samples) * self.orders.world


class BatchStream(Iterator[Any]):
    """Gives orders out ahead, takes batches in order, and counts what was delivered."""

    def __init__(
        self,
        progress: Progress,
        executor: Executor,
        *,
        seed: int,
        feed: DeviceFeed,
        budget: BadSampleBudget,
        stats: LoaderStats,
        timeout_s: float,
        on_end: Callable[[], None],
        is_taken: Callable[[], bool],
        began_ns: int,
        survives_errors: bool = False,
    ) -> None:
        self._ended = False
        self._progress = progress
        self._upcoming: Iterator[Order] = iter(progress.orders)
        self._given_all = False
        self._given: list[Order] = []
        self._executor = executor
        self._seed = seed
        self._feed = feed
        self._budget = budget
        self._stats = stats
        self._timeout_s = timeout_s
        self._on_end = on_end
        self._is_taken = is_taken
        self._survives_errors = survives_errors  # of a batch: the next one can be asked for
        self._working = set(range(max(executor.workers, 1)))
        # An iterable dataset cannot be told where to begin: what was delivered is made again.
        orders = progress.orders
        self._to_pass_over = orders.start if isinstance(orders, IterableOrders) else 0
        self._stats.first_batch_ns = 0
        self._give_out()
        # The script has waited since `iter(loader)`, for workers to start in the first epoch.
        self._began_ns = self._stepped_ns = began_ns
        self._account(began_ns)

    def __next__(self) -> Any:
        """Return the next batch; raises what the workers met, LoaderTimeoutError, StopIteration."""
        if self._ended:
            raise StopIteration
        if self._is_taken():
            self._ended = True  # what the executor does is the other's
            raise LoaderError(
                "Another iteration has taken the executor of this one. Give each loader that is "
                "iterated over meanwhile an executor of its own."
            )
        asked_ns = time.monotonic_ns()
        try:
            batch = self._next_batch()
        except BaseException as error:
            if not (self._survives_errors and isinstance(error, WorkerError)):
                self.end()
            raise
        finally:
            self._account(asked_ns)
        self._stats.batches += 1
        if not self._stats.first_batch_ns:
            self._stats.first_batch_ns = self._stepped_ns - self._began_ns
        return batch

    def _next_batch(self) -> Any:
        self._give_out()
        while self._given:
            try:
                made = self._executor.next_made(self._timeout_s, self._give_out)
            except WorkerError:
                self._given.pop(0)
                raise
            order = self._given.pop(0)
            if made.exhausted:
                self._note_exhausted(made.batch)
                self._give_out()
                continue
            if self._to_pass_over:
                self._to_pass_over -= 1
                self._give_out()
                continue
            return self._deliver(order, made)
        if self._working and not self._given_all:
            raise LoaderError(
                "No batch can be ordered: the executor has no room although none is under way."
            )
        self._budget.check(self._progress.delivered)
        self._progress.finished = True
        raise StopIteration

    def _deliver(self, order: Order, made: Made) -> Any:
        number = self._progress.delivered
        self._budget.check(number)
        batch = self._fed(made.content, batch_seed(self._seed, order.epoch, order.draws))
        if made.bad:  # first: should that fail, the batch was not delivered
            self._budget.note(made.bad, number, self._progress.seen_with(made.samples))
        self._progress.delivered += 1
        self._progress.samples += made.samples
        self._stats.samples += made.samples
        return batch

    def _fed(self, content: Any, seed: int) -> Any:
        try:
            return self._feed(content, seed)
        except StopIteration as error:  # a loop over this stream would take it for the end
            raise RuntimeError("The device_transform raised StopIteration.") from error

    def _give_out(self) -> None:
        while self._working and self._executor.has_room():
            order = next(self._upcoming, None)
            if order is None:
                self._given_all = True
                return
            self._executor.submit(order)
            self._given.append(order)

    def _note_exhausted(self, batch: int) -> None:
        """An iterable dataset's worker has no more; when none has, no more orders are given out."""
        self._working.discard(batch % max(self._executor.workers, 1))

    def _account(self, asked_ns: int) -> None:
        now_ns = time.monotonic_ns()
        self._stats.wait_ns += now_ns - asked_ns
        self._stats.elapsed_ns += now_ns - self._stepped_ns
        self._stepped_ns = now_ns

    def end(self) -> None:
        """Stop: no more orders, and the executor is free for another iteration."""
        if not self._ended:
            self._ended = True
            if not self._is_taken():
                self._on_end()

    def __del__(self) -> None:
        """A loop that is left with `break` lets go of its stream: end it."""
        self.end()
