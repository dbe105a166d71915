"""Answers for the executor, in their order, sent as its socket has room for them."""

from __future__ import annotations

import contextlib
import socket
from collections import deque

from headrace.data.loader.channels import Answer, AnswerMessage


class Answers:
    """What a receiver has to say.

    Args:
        taking: Takes it.
    """

    def __init__(self, taking: socket.socket) -> None:
        self._taking = taking
        self._unsent: deque[bytes] = deque()
        self._told_room = -1

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def add(self, answer: AnswerMessage) -> None:
        """Have an answer sent after all others."""
        self._unsent.append(answer.pack())

    def tell_room(self, room: int) -> None:
        """Have it told how many tickets there is room for, where that has changed."""
        if self._told_room != room:
            self._told_room = room
            self.add(AnswerMessage(Answer.ROOM, 0, room, 0, 0, 0))

    def tell_room_anew(self) -> None:
        """Have that told next time, changed or not."""
        self._told_room = -1

    def send(self) -> None:
        """Send what there is room for: a blocking send could wait for who waits for us."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._taking.send(self._unsent[0], socket.MSG_DONTWAIT)
                self._unsent.popleft()

    def clear(self) -> None:
        """Forget what waits, and what was told."""
        self._unsent.clear()
        self.tell_room_anew()
