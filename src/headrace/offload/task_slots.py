"""A proxy's side of its executor: open tasks with their slots, and the queue of answers."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from collections import deque

from headrace.data.loader.workers.messages import Answer, AnswerMessage
from headrace.data.loader.workers.shared_memory import read_at


class AnswerQueue:
    """The queue of answers to the executor, sent without blocking."""

    def __init__(self, answers: socket.socket) -> None:
        self._socket = answers
        self._unsent: deque[bytes] = deque()
        self._announced_room = -1

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def add(self, answer: AnswerMessage) -> None:
        """Queue an answer."""
        self._unsent.append(answer.pack())

    def announce_room(self, room: int) -> None:
        """Queue the number of tasks there is room for, if it has changed."""
        if self._announced_room != room:
            self._announced_room = room
            self.add(AnswerMessage(Answer.ROOM, 0, room, 0))

    def repeat_room(self) -> None:
        """Have the room announced next time in any case."""
        self._announced_room = -1

    def send(self) -> None:
        """Send what the socket takes; blocking could deadlock with the executor."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._socket.send(self._unsent[0], socket.MSG_DONTWAIT)
                self._unsent.popleft()

    def clear(self) -> None:
        """Drop the queued answers, and have the room announced again."""
        self._unsent.clear()
        self.repeat_room()


class TaskSlots:
    """The open tasks with their slots and batch specs."""

    def __init__(self, slots: list[int]) -> None:
        self._slots = slots
        self._maps: dict[int, mmap.mmap] = {}
        # Task -> slot, and a copy of its batch spec, which the batch overwrites in the slot.
        self._tasks: dict[int, tuple[int, bytes]] = {}
        self._discard_buffer = bytearray()

    def add(self, task: int, slot: int, payload_bytes: int) -> None:
        """Add a task, whose batch spec is in its slot."""
        self._tasks[task] = slot, read_at(self._slots[slot], 0, payload_bytes)

    def batch_spec_of(self, task: int) -> bytes:
        """Return a task's batch spec."""
        return self._tasks[task][1]

    def pop(self, task: int) -> int:
        """Remove a task; return its slot."""
        return self._tasks.pop(task)[0]

    def clear(self) -> None:
        """Remove all tasks."""
        self._tasks.clear()

    def memory(self, task: int | None, size_bytes: int) -> memoryview:
        """Return the memory for a task's batch; without a task, a buffer that is never read."""
        if task is None:
            if len(self._discard_buffer) < size_bytes:
                self._discard_buffer = bytearray(size_bytes)
            return memoryview(self._discard_buffer)[:size_bytes]
        slot = self._tasks[task][0]
        mapped = self._maps.get(slot)
        if mapped is None or len(mapped) < size_bytes:
            descriptor = self._slots[slot]
            if os.fstat(descriptor).st_size < size_bytes:
                os.ftruncate(descriptor, size_bytes)
            mapped = self._maps[slot] = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        return memoryview(mapped)[:size_bytes]
