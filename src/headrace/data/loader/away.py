"""The tickets of an executor that its helper has, or none where it has no helper."""

from __future__ import annotations

import time

from headrace.core.errors import LoaderError
from headrace.data.loader.channels import Answer, AnswerMessage, TicketMessage
from headrace.data.loader.executor import Helper
from headrace.data.loader.failures import Failure
from headrace.data.loader.memory import LargestBatch
from headrace.data.loader.pace import (
    Pace,
    is_better_made_away,
    is_better_made_here,
    is_strand_overdue,
)
from headrace.data.loader.packed_recipe import PackedRecipe

_AHEAD = 2
"""Batches made ahead of a late one, for each that may be open: others go on meanwhile."""


class TicketsAway:
    """What a helper has been asked for.

    Args:
        helper: It; None: nobody helps.

    Attributes:
        numbers: The tickets that it has, and when it was asked for each.
    """

    def __init__(self, helper: Helper | None) -> None:
        self._helper = helper
        self._room = 0
        # Where helpers were too late for batches that were waited for, they are asked for fewer;
        # with each that is in time, for one more.
        self._limit = float("inf")
        self._largest = LargestBatch()
        self._failures: dict[int, tuple[Failure, int]] = {}  # batch -> what happened, to whom
        self._pace = Pace()
        self._begun: tuple[PackedRecipe, range] | None = None
        self.numbers: dict[int, float] = {}

    def slots_for(self, depth: int) -> int:
        """Return how many batches may be under way at most, where `depth` may be without help."""
        return depth if self._helper is None else _AHEAD * (depth + self._helper.most_open)

    def most_under_way(self, depth: int) -> int:
        """Return how many batches may be under way or made ahead now."""
        if self._helper is None or not self._room:
            return depth
        # Until a size is known helpers get one to begin with, however little memory there is.
        least = depth if self._largest.is_known else depth + 1
        return max(least, min(_AHEAD * (depth + self._room), self.most_fitting))

    @property
    def most_fitting(self) -> int:
        """Return how many batches fit into the memory that those made ahead may take."""
        if self._helper is None:
            return 0
        return self._largest.fitting(self._helper.most_bytes)

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

    def send(self, ticket: TicketMessage, strand: int = 0) -> None:
        """Hand a ticket over; it is of that worker's strand of an iterable dataset."""
        assert self._helper is not None  # there is no room otherwise
        self.numbers[ticket.number] = time.monotonic()
        try:
            self._helper.send(ticket, strand)
        except LoaderError:  # it has ended: `lost` tells
            self._room = 0

    def take_home(self, strand: int) -> None:
        """Have the helper return what it has of a strand of an iterable dataset."""
        if self._helper is not None:
            self._helper.take_home(strand)

    def start(self, recipe: PackedRecipe, strands: range) -> None:
        """Have the helper make batches of a recipe; see `Helper`."""
        self._begun = recipe, strands
        self.start_again()

    def start_again(self) -> None:
        """Have the helper, which has forgotten all tickets, go on with that recipe."""
        self._failures.clear()
        self._limit = float("inf")
        if self._helper is not None and self._begun is not None:
            if not self._helper.lives:
                self._room = 0
            self._helper.start(*self._begun)

    def finish(self) -> None:
        """Forget the recipe, which may be large: the iteration is over."""
        self._begun = None

    def forget(self) -> None:
        """Have the helper forget all tickets."""
        self.numbers.clear()
        if self._helper is not None and not self._helper.forget():
            self._room = 0

    def lost(self) -> set[int]:
        """Return the tickets that are lost with a helper that has ended, and forget them."""
        if self._helper is None or not self.numbers or self._helper.lives:
            return set()
        self._room = 0
        lost = set(self.numbers)
        self.numbers.clear()
        return lost

    def is_better_here(self, number: int, here: Pace) -> bool:
        """Whether a ticket's batch is to be made here as well; see `is_better_made_here`."""
        return is_better_made_here(time.monotonic() - self.numbers[number], here, self._pace)

    def is_better_away(self, issued: tuple[float, float], here: Pace) -> bool:
        """Whether a batch given out here is to be made away as well; see `is_better_made_away`."""
        since_s, rounds = issued
        return self.has_room and is_better_made_away(
            time.monotonic() - since_s, rounds, here, self._pace
        )

    def is_overdue(self, waited_s: float, held_up_s: float, places: int, here: Pace) -> bool:
        """Whether a strand of an iterable dataset is to come home; see `is_strand_overdue`."""
        return is_strand_overdue(waited_s, held_up_s, places, here, self._pace)

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

    def note_failure(self, batch: int, failure: Failure, worker: int) -> None:
        """Remember that a batch failed over there: it is made here before anybody is blamed."""
        self._failures[batch] = failure, worker

    def note_made_here(self, batch: int) -> None:
        """Note that a batch was made here; where it failed over there, the helper hears of it."""
        failed = self._failures.pop(batch, None)
        if failed is not None and self._helper is not None:
            self._helper.tell_failure(*failed)

    def close(self) -> None:
        """End the helper."""
        if self._helper is not None:
            self._helper.close()
