"""Batches of a Ray Dataset: Ray's processes make them, a thread here takes them one ahead."""

from __future__ import annotations

import os
import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from headrace.core.errors import LoaderTimeoutError
from headrace.data.loader.executor import Made
from headrace.data.loader.failures import Failure
from headrace.data.loader.making import Order, Recipe
from headrace.data.loader.ray_dataset import RayBatches, rows_of, to_tensors

_LEAVE_S = 5.0  # for Ray to stop what is under way


class RayExecutor:
    """Hands over what Ray Data makes.

    Args:
        batches: What an iteration is made of.

    Attributes:
        workers: 0: none of ours.
    """

    workers = 0

    def __init__(self, batches: RayBatches) -> None:
        self._batches = batches
        self._orders: deque[Order] = deque()
        self._next_batch = 0
        self._taker: _Taker | None = None
        self._pid = os.getpid()

    def start(self, recipe: Recipe) -> None:
        """Have Ray begin an epoch."""
        self._recipe = recipe
        self._orders.clear()
        self._next_batch = 0
        columns = self._batches.of_epoch(recipe.seed, recipe.epoch)
        self._taker = _Taker(columns, recipe.collate_fn or to_tensors)

    def has_room(self) -> bool:
        """Whether another order can be taken now."""
        return not self._orders

    def submit(self, order: Order) -> None:
        """Take the order of the next batch."""
        self._orders.append(order)

    def next_made(
        self,
        timeout_s: float,
        on_room: Callable[[], None],  # noqa: ARG002 - there is room for one at a time
    ) -> Made:
        """Return the next batch; raises as `Executor` says."""
        assert self._taker is not None  # an iteration has been started
        batch, where = self._next_batch, f"rank {self._batches.world.rank}, Ray Data"
        try:
            taken = self._taker.take(min(timeout_s, threading.TIMEOUT_MAX))
        except queue.Empty:
            raise LoaderTimeoutError(
                f"{where}: batch {batch} did not arrive within {timeout_s:g} s. Ray may wait for "
                "cores that others have, or for other ranks; `ray status` tells. Raise timeout_s "
                "if the work really takes that long."
            ) from None
        self._orders.popleft()
        self._next_batch += 1
        if taken is None:
            return Made(batch=batch, exhausted=True)
        if isinstance(taken, Failure):
            raise taken.in_caller(where)
        rows, content = taken
        return Made(batch=batch, content=content, samples=rows)

    def finish(self) -> None:
        """Have Ray stop."""
        self._orders.clear()
        if self._taker is not None:
            self._taker.leave()
            self._taker = None

    @property
    def usable(self) -> bool:
        """Whether this is the process whose Ray it is."""
        return os.getpid() == self._pid

    def close(self) -> None:
        """Have Ray stop."""
        if self.usable:
            self.finish()


class _Taker:
    """A thread that takes batches from Ray, which may take any time over one.

    Args:
        batches: Of one epoch, in their columns.
        collate: Makes of the columns what is delivered.
    """

    def __init__(self, batches: Iterator[Any], collate: Callable[[Any], Any]) -> None:
        self._batches = batches
        self._collate = collate
        self._wanted = threading.Semaphore(2)  # one for the script, one ahead
        self._left = False
        self._taken: queue.SimpleQueue[tuple[int, Any] | Failure | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headrace-ray", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> tuple[int, Any] | Failure | None:
        """Return a batch and its rows, what went wrong, or None at the end; raises Empty."""
        taken = self._taken.get(timeout=timeout_s)
        self._wanted.release()
        return taken

    def leave(self) -> None:
        """Take no more, and let go of Ray's iterator."""
        self._left = True
        self._wanted.release()
        self._thread.join(_LEAVE_S)  # one that is stuck in Ray ends with the process

    def _run(self) -> None:
        try:
            while self._wanted.acquire() and not self._left:
                columns = next(self._batches, None)
                if columns is None:
                    break
                self._taken.put((rows_of(columns), self._collate(columns)))
            self._taken.put(None)
        except Exception as error:  # noqa: BLE001 - whatever it is, the script is told
            self._taken.put(Failure.of(error, traceback.format_exc(), None, None))
        finally:
            self._batches = iter(())  # Ray stops what is under way as its iterator goes
