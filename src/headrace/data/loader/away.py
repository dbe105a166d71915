"""The tickets of an executor that its helper has, or none where it has no helper."""

from __future__ import annotations

from headrace.core.errors import LoaderError
from headrace.data.loader.channels import Answer, AnswerMessage, TicketMessage
from headrace.data.loader.executor import Helper
from headrace.data.loader.failures import Failure

_AHEAD = 2
"""Batches made ahead of a late one, for each that may be open: others go on meanwhile."""


class TicketsAway:
    """What a helper has been asked for.

    Args:
        helper: It; None: nobody helps.

    Attributes:
        numbers: The tickets that it has.
    """

    def __init__(self, helper: Helper | None) -> None:
        self._helper = helper
        self._room = 0
        self._batch_bytes = 1
        self._failures: dict[int, tuple[Failure, int]] = {}  # batch -> what happened, to whom
        self.numbers: set[int] = set()

    def slots_for(self, depth: int) -> int:
        """Return how many batches may be under way at most, where `depth` may be without help."""
        return depth if self._helper is None else _AHEAD * (depth + self._helper.most_open)

    def most_under_way(self, depth: int) -> int:
        """Return how many batches may be under way or made ahead now."""
        if self._helper is None or not self._room:
            return depth
        fitting = self._helper.most_bytes // self._batch_bytes
        return max(depth, min(_AHEAD * (depth + self._room), fitting))

    @property
    def has_room(self) -> bool:
        """Whether the helper can take a ticket."""
        return len(self.numbers) < self._room

    def send(self, ticket: TicketMessage) -> None:
        """Hand a ticket over."""
        assert self._helper is not None  # there is no room otherwise
        self.numbers.add(ticket.number)
        try:
            self._helper.send(ticket)
        except LoaderError:  # it has ended: `lost` tells
            self._room = 0

    def start(self, content: bytes) -> None:
        """Have the helper make batches of the recipe in `content`."""
        self._failures.clear()
        if self._helper is not None and self._helper.lives:
            self._helper.start(content)

    def forget(self) -> None:
        """Have the helper forget all tickets."""
        self.numbers.clear()
        if self._helper is not None and self._helper.lives:
            self._helper.forget()

    def lost(self) -> set[int]:
        """Return the tickets that are lost with a helper that has ended, and forget them."""
        if self._helper is None or not self.numbers or self._helper.lives:
            return set()
        self._room = 0
        lost, self.numbers = self.numbers, set()
        return lost

    def note(self, answer: AnswerMessage) -> bool:
        """Note an answer; return whether it is one of the helper's."""
        if answer.answer is Answer.ROOM:
            self._room = answer.number
            return True
        if answer.answer is Answer.MADE:
            self._batch_bytes = max(self._batch_bytes, answer.offset + answer.size_bytes)
        is_helpers = answer.number in self.numbers
        self.numbers.discard(answer.number)
        return is_helpers

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
