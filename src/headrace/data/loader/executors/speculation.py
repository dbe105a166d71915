"""The tasks of remote workers, and when a slow batch is better made on the other side as well."""

from __future__ import annotations

import time

from headrace.core.errors import LoaderError
from headrace.data.loader.batch_builder import PickledLoaderSpec
from headrace.data.loader.executors.base import RemoteWorkers
from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.memory_budget import LargestBatch
from headrace.data.loader.workers.messages import Answer, AnswerMessage, TaskMessage

_NEWER = 0.2  # weight of the newest
_UNKNOWN_S = 5.0  # while nobody knows how long a batch takes
_LONG_S = 10.0  # no strand of an iterable dataset is late sooner,
_LONG_FIRST_S = 90.0  # ... or with its first batch: hosts load and open the dataset
_LOCAL_FACTOR, _REMOTE_FACTOR = 4.0, 2.0


class BatchDuration:
    """What batches usually take.

    Attributes:
        usual_s: Of late, in seconds; None while none was made.
    """

    def __init__(self) -> None:
        self.usual_s: float | None = None

    def note(self, took_s: float) -> None:
        """Note what a batch took."""
        before_s = took_s if self.usual_s is None else self.usual_s
        self.usual_s = before_s + _NEWER * (took_s - before_s)


def is_faster_locally(away_for_s: float, here: BatchDuration, away: BatchDuration) -> bool:
    """Whether a worker here that has nothing to do is to make a batch that is waited for.

    Args:
        away_for_s: How long ago a helper was asked for it.
        here: What a worker here takes over a batch.
        away: What a helper takes over a batch, from when it is asked.
    """
    if here.usual_s is None:
        return away_for_s > _UNKNOWN_S
    if away.usual_s is None:
        return away_for_s > _LOCAL_FACTOR * here.usual_s + 1.0
    still_s = away.usual_s - away_for_s
    return still_s > here.usual_s or away_for_s > _REMOTE_FACTOR * away.usual_s + here.usual_s


def is_faster_remotely(
    here_for_s: float, rounds: float, here: BatchDuration, away: BatchDuration
) -> bool:
    """Whether a helper with room is to make a batch that is waited for and was given out here.

    Args:
        here_for_s: How long ago it was given out.
        rounds: How many batches a worker here makes before it and with it.
        here: What a worker here takes over a batch.
        away: What a helper takes over a batch, from when it is asked.
    """
    if here.usual_s is None or away.usual_s is None:
        return False
    expected_s = rounds * here.usual_s
    is_long_over = here_for_s > _LOCAL_FACTOR * expected_s + away.usual_s
    return is_long_over or expected_s - here_for_s > _REMOTE_FACTOR * away.usual_s


def is_partition_overdue(
    waited_s: float, held_up_s: float, places: int, here: BatchDuration, away: BatchDuration
) -> bool:
    """Whether a strand of an iterable dataset that is waited for is to come home.

    It is gone through anew here, up to where it was. Who waits as long as that takes before doing
    so waits twice as long as one who knew what would come, at most. One that is slow time and again
    comes home, too.

    Args:
        waited_s: How long its batch, and nothing else, has been waited for.
        held_up_s: How long its batches, and nothing else, have been waited for in all.
        places: How many batches of it were made before.
        here: What a worker here takes over a batch.
        away: What a helper takes over a batch, from when it is asked.
    """
    one_s = next((pace.usual_s for pace in (here, away) if pace.usual_s is not None), 0.0)
    long_s = (_LONG_S if places else _LONG_FIRST_S) + _LOCAL_FACTOR * one_s
    return waited_s > long_s + places * one_s or held_up_s > long_s + _LOCAL_FACTOR * places * one_s


_AHEAD = 2
"""Batches made ahead of a late one, for each that may be open: others go on meanwhile."""


class RemoteTasks:
    """What a helper has been asked for.

    Args:
        helper: It; None: nobody helps.

    Attributes:
        numbers: The tickets that it has, and when it was asked for each.
    """

    def __init__(self, helper: RemoteWorkers | None) -> None:
        self._remote_workers = helper
        self._room = 0
        # Where helpers were too late for batches that were waited for, they are asked for fewer;
        # with each that is in time, for one more.
        self._limit = float("inf")
        self._largest = LargestBatch()
        self._failures: dict[int, tuple[BatchFailure, int]] = {}  # batch -> what happened, to whom
        self._pace = BatchDuration()
        self._begun: tuple[PickledLoaderSpec, range] | None = None
        self.numbers: dict[int, float] = {}

    def slots_for(self, depth: int) -> int:
        """Return how many batches may be under way at most, where `depth` may be without help."""
        return (
            depth
            if self._remote_workers is None
            else _AHEAD * (depth + self._remote_workers.max_open_tasks)
        )

    def max_in_flight(self, depth: int) -> int:
        """Return how many batches may be under way or made ahead now."""
        if self._remote_workers is None or not self._room:
            return depth
        # Until a size is known helpers get one to begin with, however little memory there is.
        least = depth if self._largest.is_known else depth + 1
        return max(least, min(_AHEAD * (depth + self._room), self.most_fitting))

    @property
    def most_fitting(self) -> int:
        """Return how many batches fit into the memory that those made ahead may take."""
        if self._remote_workers is None:
            return 0
        return self._largest.fitting(self._remote_workers.most_bytes)

    @property
    def has_room(self) -> bool:
        """Whether the helper can take a ticket."""
        return len(self.numbers) < min(self._room, self._limit)

    @property
    def workers(self) -> int:
        """How many workers the helper has, about: it has room for as many tickets again."""
        return self._room // 2

    @property
    def has_idle_workers(self) -> bool:
        """Whether some of them have nothing to do."""
        return self.has_room and len(self.numbers) < self.workers

    def send(self, ticket: TaskMessage, partition: int = 0) -> None:
        """Hand a ticket over; it is of that worker's strand of an iterable dataset."""
        assert self._remote_workers is not None  # there is no room otherwise
        self.numbers[ticket.number] = time.monotonic()
        try:
            self._remote_workers.send(ticket, partition)
        except LoaderError:  # it has ended: `lost` tells
            self._room = 0

    def reclaim_partition(self, partition: int) -> None:
        """Have the helper return what it has of a strand of an iterable dataset."""
        if self._remote_workers is not None:
            self._remote_workers.reclaim_partition(partition)

    def start(self, recipe: PickledLoaderSpec, strands: range) -> None:
        """Have the helper make batches of a recipe; see `RemoteWorkers`."""
        self._begun = recipe, strands
        self.resume_after_restart()

    def resume_after_restart(self) -> None:
        """Have the helper, which has forgotten all tickets, go on with that recipe."""
        self._failures.clear()
        self._limit = float("inf")
        if self._remote_workers is not None and self._begun is not None:
            if not self._remote_workers.lives:
                self._room = 0
            self._remote_workers.start(*self._begun)

    def finish(self) -> None:
        """Forget the recipe, which may be large: the iteration is over."""
        self._begun = None

    def forget(self) -> None:
        """Have the helper forget all tickets."""
        self.numbers.clear()
        if self._remote_workers is not None and not self._remote_workers.forget():
            self._room = 0

    def lost(self) -> set[int]:
        """Return the tickets that are lost with a helper that has ended, and forget them."""
        if self._remote_workers is None or not self.numbers or self._remote_workers.lives:
            return set()
        self._room = 0
        lost = set(self.numbers)
        self.numbers.clear()
        return lost

    def prefers_local(self, number: int, here: BatchDuration) -> bool:
        """Whether a ticket's batch is to be made here as well; see `is_faster_locally`."""
        return is_faster_locally(time.monotonic() - self.numbers[number], here, self._pace)

    def prefers_remote(self, issued: tuple[float, float], here: BatchDuration) -> bool:
        """Whether a batch given out here is to be made away as well; see `is_faster_remotely`."""
        since_s, rounds = issued
        return self.has_room and is_faster_remotely(
            time.monotonic() - since_s, rounds, here, self._pace
        )

    def is_overdue(
        self, waited_s: float, held_up_s: float, places: int, here: BatchDuration
    ) -> bool:
        """Whether a strand of an iterable dataset is to come home; see `is_partition_overdue`."""
        return is_partition_overdue(waited_s, held_up_s, places, here, self._pace)

    def note(self, answer: AnswerMessage) -> bool:
        """Note an answer; return whether it is one of the helper's."""
        if answer.answer is Answer.ROOM:
            self._room = answer.number
            return True
        if answer.answer is Answer.MADE:
            self._largest.note(answer.offset + answer.size_bytes)
        since_s = self.numbers.pop(answer.number, None)
        if since_s is None:
            return False
        if answer.answer is Answer.MADE:
            self._pace.note(time.monotonic() - since_s)
        return True

    def note_in_time(self, *, was_needed: bool) -> None:
        """Note whether a batch from the helper was still needed."""
        if was_needed:
            self._limit += 1
        else:
            self._limit = max(1.0, min(self._limit, len(self.numbers)) / 2)

    def note_failure(self, batch: int, failure: BatchFailure, worker: int) -> None:
        """Remember that a batch failed over there: it is made here before anybody is blamed."""
        self._failures[batch] = failure, worker

    def note_built_locally(self, batch: int) -> None:
        """Note that a batch was made here; where it failed over there, the helper hears of it."""
        failed = self._failures.pop(batch, None)
        if failed is not None and self._remote_workers is not None:
            self._remote_workers.report_failure(*failed)

    def close(self) -> None:
        """End the helper."""
        if self._remote_workers is not None:
            self._remote_workers.close()
