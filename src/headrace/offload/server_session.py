"""One loader of one rank in an offload server: batch specs in, batches out, by a worker pool."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.errors import HeadraceError
from headrace.data.loader.batch_builder import PickledLoaderSpec
from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.workers.messages import Answer, AnswerMessage, TaskMessage
from headrace.data.loader.workers.pool import WorkerPool, wait_readable
from headrace.offload.capacity import SessionSlots, SharedCores
from headrace.offload.protocol import (
    HEADER_BYTES,
    FrameHeader,
    FrameKind,
    LoaderSpecMessage,
    encode_frame,
    send_file,
    set_user_timeout,
)
from headrace.offload.worker_records import WorkerRecords


@dataclass(slots=True, kw_only=True, eq=False)
class SessionTask:
    """What a rank asked for.

    Attributes:
        ask: Its number.
        payload: The pickled `BatchSpec`.
        partition: Of an iterable dataset: which worker's it is.
        slot: Where its batch is made; -1 until a worker is to make it.
        deaths: How many workers ended at it.
        came_ns: When it came, by this host's monotonic clock.
        begun_ns: When a worker took it.
    """

    ask: int
    payload: bytes
    partition: int
    slot: int = -1
    deaths: int = 0
    came_ns: int = field(default_factory=time.monotonic_ns)
    begun_ns: int = 0


HEARTBEAT_S = 0.5
_SEND_TIMEOUT_S = 60  # a rank that takes nothing for so long is gone, or stopped; it comes again
_POLL_S = 0.5
_MAX_DEATHS = 3  # of workers, one after another, at the same order
_RECEIVE_BYTES = 1 << 20


class ServerSession:
    """The host's side of one connection; runs in a thread of its own until that ends.

    Args:
        connection: To a receiver that was let in.
        cores: The host's.
        folder: Where files of its own may lie meanwhile.
    """

    def __init__(self, connection: socket.socket, cores: SharedCores, folder: Path) -> None:
        self._connection = connection
        self._cores = cores
        self._me = id(self)
        most = 2 * (cores.count + cores.count // 2 + 2)
        self._slots = SessionSlots(most, lambda: cores.memory_of(self._me))
        self._worker_pool: WorkerPool | None = None
        self._folder = folder
        self._recorded: WorkerRecords | None = None
        self._records = True  # as the receiver said last
        self._pool_arguments: object = (
            None  # the path, variables and strands that the workforce has
        )
        self._partitions = 0
        self._arrived = bytearray()
        self._waiting: deque[SessionTask] = deque()
        self._at_work: dict[int, SessionTask] = {}  # by ticket
        self._queued_at_workers: deque[SessionTask] = (
            deque()
        )  # of these, those that no worker has yet
        self._sent: dict[int, int] = {}  # ask -> slot, until it is received
        self._next_ticket = 0
        self._is_first = True
        self._loader_spec = 0
        self._sent_share = 0, 0
        self._sending = threading.Lock()
        self._waking = threading.Lock()
        self._deaths_in_a_row = 0
        self._missing: set[int] = set()  # tickets that no worker had at the last look
        self._looked_s = time.monotonic()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_over = threading.Event()

    def run(self) -> None:
        """Serve until the receiver is gone."""
        self._connection.settimeout(None)
        longest = struct.pack("ll", _SEND_TIMEOUT_S, 0)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, longest)
        self._cores.join(self._me, self._wake_up)
        beating = threading.Thread(target=self._send_heartbeats, name="beat", daemon=True)
        beating.start()
        try:
            with suppress(OSError, ValueError, HeadraceError):  # the receiver comes again
                while self._step():
                    pass
        finally:
            self._is_over.set()
            self._cores.leave(self._me)
            beating.join()
            self._connection.close()
            self._end_worker_pool()
            if self._recorded is not None:
                self._recorded.close()
            self._slots.close()
            with self._waking:
                os.close(self._wake)
                self._wake = -1

    def _wake_up(self) -> None:
        with self._waking, suppress(BlockingIOError):
            if self._wake != -1:
                os.eventfd_write(self._wake, 1)

    def _send_heartbeats(self) -> None:
        """Tell that this host lives, also while the session imports or sends."""
        while not self._is_over.wait(HEARTBEAT_S):
            if self._sending.acquire(blocking=False):  # else it is telling just now
                try:
                    self._connection.sendall(encode_frame(FrameKind.HEARTBEAT))
                except OSError:
                    with suppress(OSError):  # half a frame may be out: the connection is no use
                        self._connection.shutdown(socket.SHUT_RDWR)
                finally:
                    self._sending.release()

    def _step(self) -> bool:
        """Wait for something to do, and do it; return whether the receiver is still there."""
        also = [self._connection.fileno(), self._wake]
        if self._worker_pool is not None:
            answers, deaths = self._worker_pool.wait(_POLL_S, also)
            for answer in answers:
                self._deliver(answer)
            self._replace(deaths)
            self._find_unseen()
        else:
            wait_readable(also, _POLL_S)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        is_there = self._receive()
        self._send_share()
        self._send_rows()
        self._give_out()
        return is_there

    def _send_share(self) -> None:
        self._slots.trim()
        cores, orders = self._cores.share_of(self._me)
        share = cores, self._slots.task_limit_within(orders)
        if share != self._sent_share:
            self._sent_share = share
            self._send(encode_frame(FrameKind.SHARE, a=share[1], b=cores))

    def _send_rows(self, *, at_once: bool = False) -> None:
        rows = self._recorded.due(at_once=at_once) if self._recorded is not None else None
        if rows is not None:
            self._send(encode_frame(FrameKind.ROWS, rows))

    def _send(self, content: bytes) -> None:
        with self._sending:
            self._connection.sendall(content)

    # --- what the receiver says

    def _receive(self) -> bool:
        while True:
            try:
                piece = self._connection.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if not piece:
                return False
            self._arrived += piece
        while (found := self._next_frame()) is not None:
            self._handle_message(*found)
        return True

    def _next_frame(self) -> tuple[FrameHeader, bytes] | None:
        if len(self._arrived) < HEADER_BYTES:
            return None
        head = FrameHeader.unpack(self._arrived[:HEADER_BYTES])
        end = HEADER_BYTES + head.body_bytes
        if len(self._arrived) < end:
            return None
        body = bytes(self._arrived[HEADER_BYTES:end])
        del self._arrived[:end]
        return head, body

    def _handle_message(self, head: FrameHeader, body: bytes) -> None:
        match head.kind:
            case FrameKind.LOADER_SPEC:
                self._load(head.a, LoaderSpecMessage.from_bytes(body))
            case FrameKind.BATCH_SPEC:
                self._waiting.append(SessionTask(ask=head.ask, payload=body, partition=head.a))
            case FrameKind.RECEIVED:
                self._slots.give(self._sent.pop(head.ask))
            case FrameKind.WANTED_BATCHES:
                self._cores.want(self._me, head.a)
            case FrameKind.FORGET:
                self._return_waiting_tasks()
            case FrameKind.RECORD:
                self._records = bool(head.a)
                if self._recorded is not None:
                    self._recorded.turn(on=self._records)
            case _:
                raise ValueError(f"a receiver does not say {head.kind.name}")

    def _load(self, number: int, recipe: LoaderSpecMessage) -> None:
        """Have the workers make batches of another recipe."""
        self._return_all_tasks()
        self._loader_spec = number
        self._is_first = True
        self._deaths_in_a_row = 0
        try:
            self._start(recipe)
        except Exception as error:  # noqa: BLE001 - loading user code may raise anything
            failure = BatchFailure.of(error, traceback.format_exc(), None, None)
            self._end_worker_pool()
            self._send(encode_frame(FrameKind.REFUSED, failure.to_bytes(), a=number))
        else:
            self._send(encode_frame(FrameKind.READY, a=number))

    def _end_worker_pool(self) -> None:
        if self._worker_pool is not None:
            self._worker_pool.close()
            self._worker_pool = None

    def _return_waiting_tasks(self) -> None:
        for order in self._waiting:
            self._send(FrameHeader(kind=FrameKind.BATCH, ask=order.ask, a=Answer.RETURNED).pack())
        self._waiting.clear()

    def _return_all_tasks(self) -> None:
        for order in self._at_work.values():
            self._slots.give(order.slot)
            self._cores.give(self._me)
        self._waiting.extend(self._at_work.values())
        self._at_work.clear()
        self._queued_at_workers.clear()
        self._return_waiting_tasks()

    def _start(self, recipe: LoaderSpecMessage) -> None:
        root = Path.cwd()
        folder = recipe.folder_below(root)
        variables = {**recipe.variables, **self._recording(recipe.loader)}
        begins_with = recipe.path, variables, recipe.strands
        if self._worker_pool is not None and not (
            begins_with == self._pool_arguments and self._worker_pool.usable
        ):
            self._end_worker_pool()
        if self._worker_pool is None:
            self._pool_arguments, self._partitions = begins_with, recipe.strands
            if recipe.strands:  # its rank bears a host's silence for longer, too
                set_user_timeout(self._connection, _SEND_TIMEOUT_S)
            # Of an iterable dataset each strand has a worker, which begins with its first order.
            self._worker_pool = WorkerPool(
                recipe.strands or self._cores.count,
                self._slots.descriptors,
                rank=recipe.rank,
                queues=recipe.strands or 1,
                beginning=0 if recipe.strands else None,
                path=[*(str(root / entry) for entry in recipe.path), *sys.path],
                variables=variables,
            )
        self._worker_pool.end_workers()  # nobody writes to the slots of what was given up
        self._worker_pool.start(
            PickledLoaderSpec(content=recipe.content, folder=str(folder), variables=variables)
        )

    def _recording(self, loader: int | None) -> dict[str, str]:
        """Return the variables by which workers record, where they are to."""
        if loader is None:
            return {}
        if self._recorded is None:
            try:
                self._recorded = WorkerRecords(loader, self._folder)
            except OSError:  # no room: batches matter more
                return {}
            self._recorded.turn(on=self._records)
        return self._recorded.variables

    # --- what the workers do

    def _give_out(self) -> None:
        """Hand waiting orders to workers, as far as cores and memory go."""
        while self._worker_pool is not None and (may_begin := self._startable_tasks()):
            if not self._slots.has_room:
                return
            if not self._cores.take(self._me, waiting=len(may_begin)):
                return
            order = may_begin[0]
            self._waiting.remove(order)
            order.slot = self._slots.take()
            self._hand_over(order)

    def _startable_tasks(self) -> Sequence[SessionTask]:
        """Return waiting orders that a worker could see to: one of a strand at a time."""
        if not self._partitions:
            return self._waiting
        first: dict[int, SessionTask] = {}
        for order in self._waiting:
            first.setdefault(order.partition, order)
        for order in self._at_work.values():
            first.pop(order.partition, None)
        return list(first.values())

    def _hand_over(self, order: SessionTask) -> None:
        assert self._worker_pool is not None
        self._slots.write(order.slot, order.payload)
        number = self._next_ticket
        self._next_ticket += 1
        self._at_work[number] = order
        order.begun_ns = time.monotonic_ns()
        # A strand has a worker of its own, which begins at once.
        if not self._partitions and len(self._at_work) > self._cores.count:
            self._queued_at_workers.append(order)
        message = TaskMessage(number, order.slot, len(order.payload), self._is_first)
        self._is_first = False
        if self._partitions:
            self._worker_pool.need(order.partition)
        self._worker_pool.send(message, order.partition)

    def _deliver(self, answer: AnswerMessage) -> None:
        self._deaths_in_a_row = 0
        if self._queued_at_workers:
            self._queued_at_workers.popleft().begun_ns = time.monotonic_ns()
        order = self._at_work.pop(answer.number, None)
        if order is None:
            return  # of a recipe that is gone
        self._cores.give(self._me)
        if not self._at_work and not self._waiting:
            self._send_rows(at_once=True)  # as soon as it has this batch, the rank may be gone
        self._send_batch(order, answer)

    def _send_batch(self, order: SessionTask, answer: AnswerMessage) -> None:
        size = answer.offset + answer.size_bytes
        if answer.answer is Answer.MADE:
            self._slots.note(size)
        head = FrameHeader(
            kind=FrameKind.BATCH, ask=order.ask, a=answer.answer, b=answer.worker, c=answer.offset,
            d=order.begun_ns - order.came_ns, e=time.monotonic_ns() - order.begun_ns,
            body_bytes=size,
        )  # fmt: skip
        self._sent[order.ask] = order.slot
        with self._sending:
            self._connection.sendall(head.pack())
            send_file(self._connection, self._slots.descriptors[order.slot], size)

    def _replace(self, deaths: list[tuple[int, int]]) -> None:
        """Fork dead workers anew, and have their orders made by others."""
        if not deaths or self._worker_pool is None:
            return
        held = self._worker_pool.assigned_tasks()
        self._deaths_in_a_row += len(deaths)
        if self._deaths_in_a_row > _MAX_DEATHS * self._cores.count:
            self._give_up_all(deaths[-1][1])
            return
        for worker, status in deaths:
            self._worker_pool.fork(worker)
            for number in sorted(held[worker] & self._at_work.keys()):
                order = self._at_work.pop(number)
                order.deaths += 1
                if order.deaths < _MAX_DEATHS:
                    self._hand_over(order)
                else:
                    self._give_up(order, worker, status)

    def _find_unseen(self) -> None:
        """Return orders that vanished with a worker before it could say that it had them."""
        now_s = time.monotonic()
        if self._worker_pool is None or now_s - self._looked_s < _POLL_S:
            return
        self._looked_s = now_s
        unseen: set[int] = set()
        if self._worker_pool.none_waiting():
            held = set().union(*self._worker_pool.assigned_tasks().values())
            answers, deaths = self._worker_pool.wait(0)
            for answer in answers:
                self._deliver(answer)
            self._replace(deaths)
            unseen = self._at_work.keys() - held
        for number in unseen & self._missing:
            # Its slot stays taken: should a worker have it after all, it may yet write there.
            order = self._at_work.pop(number)
            self._slots.leave(order.slot)
            self._cores.give(self._me)
            self._send(FrameHeader(kind=FrameKind.BATCH, ask=order.ask, a=Answer.RETURNED).pack())
        self._missing = unseen

    def _give_up_all(self, status: int) -> None:
        """End the workers, who end themselves without making anything; tell of it."""
        error = HeadraceError(
            f"{self._deaths_in_a_row} workers in turn ended without making a batch, the last with "
            f"status {status}"
        )
        self._return_all_tasks()
        self._end_worker_pool()
        self._send(
            encode_frame(
                FrameKind.REFUSED,
                BatchFailure.of(error, "", None, None).to_bytes(),
                a=self._loader_spec,
            )
        )

    def _give_up(self, order: SessionTask, worker: int, status: int) -> None:
        error = HeadraceError(
            f"{order.deaths} workers in turn ended at this batch, the last with status {status}; "
            "-9 often means that memory ran out."
        )
        content = BatchFailure.of(error, "", None, None).to_bytes()
        self._slots.write(order.slot, content)
        self._cores.give(self._me)
        self._send_batch(
            order, AnswerMessage(Answer.FAILED, worker, 0, order.slot, 0, len(content))
        )
