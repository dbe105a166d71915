"""The messages between a loader and its workers, their status table and first-batch event.

Tasks go out over a socket that keeps message boundaries; all workers read the same one, so any free
worker takes the next. (An iterable dataset has one such socket a worker, because its batches come
from that worker's own iterator.) Answers come back over one more. Anything larger than a few
numbers is in the task's slot. None of it has a name in the file system.

The first-batch event delays the reads of later batches until those of an iteration's first batch
have arrived: the script waits for that batch alone, and reads of other workers at the same time
would share the network.

The status table, in shared memory, shows which tasks each worker has taken and its progress: which
batch a killed worker had, and which sample a stuck one is at.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
from collections import deque
from contextlib import suppress
from enum import IntEnum
from io import FileIO
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TASKS_PER_WORKER = 2  # a worker makes one batch and may have started the reads of the next one
STATUS_COLUMNS = TASKS_PER_WORKER + 1  # its tasks, and the samples done of the current one
NO_TASK = -1

_TASK = struct.Struct("<qqqq")  # task number, slot, payload bytes, whether it goes first
_ANSWER = struct.Struct("<qqqqqq")  # answer, worker, task number, slot, offset, bytes


class Answer(IntEnum):
    """The outcome of a task."""

    MADE = 0
    FAILED = 1
    EXHAUSTED = 2
    RETURNED = 3  # by remote workers: workers here have to make it
    ROOM = 4  # of remote workers: `number` is how many tasks they can have


class TaskMessage(NamedTuple):
    """Task `number`: make the batch whose pickled spec is in `slot`, in `slot`."""

    number: int
    slot: int
    payload_bytes: int  # of the batch spec
    is_first_batch: bool  # of an iteration: its reads precede all others

    def pack(self) -> bytes:
        """Return the message's bytes."""
        return _TASK.pack(*self)

    @classmethod
    def unpack(cls, message: bytes) -> TaskMessage:
        """Return the message that `pack` made."""
        number, slot, payload_bytes, is_first_batch = _TASK.unpack(message)
        return cls(number, slot, payload_bytes, bool(is_first_batch))


class AnswerMessage(NamedTuple):
    """The outcome of task `number`; its data are `size_bytes` at `offset` of `slot`."""

    answer: Answer
    worker: int
    number: int
    slot: int
    offset: int = 0
    size_bytes: int = 0

    def pack(self) -> bytes:
        """Return the message's bytes."""
        return _ANSWER.pack(*self)

    @classmethod
    def unpack(cls, message: bytes) -> AnswerMessage:
        """Return the message that `pack` made."""
        answer, *rest = _ANSWER.unpack(message)
        return cls(Answer(answer), *rest)


class WorkerDescriptors(NamedTuple):
    """File descriptors that workers inherit, and the number of workers."""

    task_sockets: list[int]  # receiving ends: one, or one a worker
    answers: int  # sending end of the answer socket
    status_table: int
    first_batch_event: int
    slots: list[int]
    workers: int

    def descriptors(self) -> list[int]:
        """Return all descriptors."""
        others = self.answers, self.status_table, self.first_batch_event
        return [*self.task_sockets, *others, *self.slots]


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return (sender, receiver) of a socket that keeps message boundaries."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_unsent(sender: socket.socket, unsent: deque[bytes]) -> None:
    """Send the messages that a socket has room for; a blocking send could wait for ever."""
    with suppress(BlockingIOError):
        while unsent:
            sender.send(unsent[0], socket.MSG_DONTWAIT)
            unsent.popleft()


def wait_readable(descriptors: list[int], timeout_s: float) -> bool:
    """Wait until one is readable. Not select, which fails for descriptors of 1024 and above."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def new_status_table(workers: int) -> int:
    """Return the descriptor of a status table for that many workers."""
    descriptor = os.memfd_create("headrace-status", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, workers * STATUS_COLUMNS * 8)
    map_status_table(descriptor, workers)[:] = NO_TASK
    return descriptor


def map_status_table(descriptor: int, workers: int) -> NDArray[np.int64]:
    """Return the status table as a shared int64[workers, 3]."""
    pages = mmap.mmap(descriptor, workers * STATUS_COLUMNS * 8)
    return np.frombuffer(pages, np.int64).reshape(workers, STATUS_COLUMNS)


class FirstBatchEvent(FileIO):
    """An eventfd, cleared at the start of an iteration and set once; all workers share it."""

    @classmethod
    def new(cls) -> FirstBatchEvent:
        """Return an event that is not set."""
        return cls(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def open(self) -> None:
        """Set the event: nobody waits from now on."""
        with suppress(BlockingIOError):  # its counter is full: it is set
            os.eventfd_write(self.fileno(), 1)

    def shut(self) -> None:
        """Clear the event: readers wait until it is set."""
        with suppress(BlockingIOError):  # it was not set
            os.eventfd_read(self.fileno())

    def wait(self, longest_s: float) -> bool:
        """Wait until the event is set, `longest_s` at most; return whether it is."""
        return wait_readable([self.fileno()], longest_s)
