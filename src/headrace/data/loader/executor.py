"""What the loader asks of whoever makes its batches. Three answer: inline, processes, Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from headrace.data.loader.making import Order, Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Batch `batch` is made.

    Attributes:
        batch: The batch's number in the iteration.
        content: The batch; None where an iterable dataset's worker had no more.
        bad: Quarantine records of the bad samples met on the way.
        samples: How many samples it was made of.
        exhausted: An iterable dataset's worker has no more batches.
    """

    batch: int
    content: Any = None
    bad: tuple[Mapping[str, Any], ...] = ()
    samples: int = 0
    exhausted: bool = False


class Executor(Protocol):
    """Makes batches for one iteration at a time and hands them over in order.

    Attributes:
        workers: How many workers make batches.
    """

    workers: int

    @property
    def usable(self) -> bool:
        """Whether it can begin an iteration in this process."""

    def start(self, recipe: Recipe) -> None:
        """Get ready for an iteration over `recipe`; raises LoaderError where it cannot be sent."""

    def has_room(self) -> bool:
        """Whether another order can be taken now."""

    def submit(self, order: Order) -> None:
        """Take the order of the next batch; only when there is room."""

    def next_made(self, timeout_s: float) -> Made:
        """Return the next batch in order.

        Raises:
            LoaderTimeoutError: It was not made within `timeout_s` seconds.
            WorkerError: The user's code raised.
        """

    def finish(self) -> None:
        """Forget what is under way: the iteration is over, or was left."""

    def close(self) -> None:
        """End all workers and free all memory that no batch uses."""


_TURNS: WeakKeyDictionary[Executor, object] = WeakKeyDictionary()


def take_turn(executor: Executor) -> Callable[[], bool]:
    """Take an executor for an iteration; return what tells whether another has taken it since."""
    turn = _TURNS[executor] = object()
    # Where all of it is garbage together, the entry goes first.
    return lambda: _TURNS.get(executor, turn) is not turn
