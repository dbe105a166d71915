"""One loader of one rank, as an auxiliary host sees it: orders in, batches out."""

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
from pathlib import Path

from headrace.cluster.offload.held import HeldSlots
from headrace.cluster.offload.link import HEAD_BYTES, Head, Kind, bear_silence, frame, send_file
from headrace.cluster.offload.recipe_message import RecipeMessage
from headrace.cluster.offload.recorded import RecordedWorkers
from headrace.cluster.offload.session_order import SessionOrder
from headrace.cluster.offload.shares import Cores
from headrace.core.errors import HeadraceError
from headrace.data.loader.channels import Answer, AnswerMessage, TicketMessage
from headrace.data.loader.failures import Failure
from headrace.data.loader.packed_recipe import PackedRecipe
from headrace.data.loader.workforce import Workforce, wait_readable

BEAT_S = 0.5
_SEND_S = 60  # a rank that takes nothing for so long is gone, or stopped; it comes again
_LOOK_S = 0.5
_MOST_DEATHS = 3  # of workers, one after another, at the same order
_RECEIVE_BYTES = 1 << 20


class Session:
    """The host's side of one connection; runs in a thread of its own until that ends.

    Args:
        connection: To a receiver that was let in.
        cores: The host's.
        folder: Where files of its own may lie meanwhile.
    """

    def __init__(self, connection: socket.socket, cores: Cores, folder: Path) -> None:
        self._connection = connection
        self._cores = cores
        self._me = id(self)
        most = 2 * (cores.count + cores.count // 2 + 2)
        self._slots = HeldSlots(most, lambda: cores.memory_of(self._me))
        self._force: Workforce | None = None
        self._folder = folder
        self._recorded: RecordedWorkers | None = None
        self._records = True  # as the receiver said last
        self._begun_with: object = None  # the path, variables and strands that the workforce has
        self._strands = 0
        self._arrived = bytearray()
        self._waiting: deque[SessionOrder] = deque()
        self._at_work: dict[int, SessionOrder] = {}  # by ticket
        self._next_in_line: deque[SessionOrder] = deque()  # of these, those that no worker has yet
        self._sent: dict[int, int] = {}  # ask -> slot, until it is received
        self._next_ticket = 0
        self._is_first = True
        self._recipe = 0
        self._told_share = 0, 0
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
        longest = struct.pack("ll", _SEND_S, 0)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, longest)
        self._cores.join(self._me, self._nudge)
        beating = threading.Thread(target=self._beat, name="beat", daemon=True)
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
            self._end_force()
            if self._recorded is not None:
                self._recorded.close()
            self._slots.close()
            with self._waking:
                os.close(self._wake)
                self._wake = -1

    def _nudge(self) -> None:
        with self._waking, suppress(BlockingIOError):
            if self._wake != -1:
                os.eventfd_write(self._wake, 1)

    def _beat(self) -> None:
        """Tell that this host lives, also while the session imports or sends."""
        while not self._is_over.wait(BEAT_S):
            if self._sending.acquire(blocking=False):  # else it is telling just now
                try:
                    self._connection.sendall(frame(Kind.BEAT))
                except OSError:
                    with suppress(OSError):  # half a frame may be out: the connection is no use
                        self._connection.shutdown(socket.SHUT_RDWR)
                finally:
                    self._sending.release()

    def _step(self) -> bool:
        """Wait for something to do, and do it; return whether the receiver is still there."""
        also = [self._connection.fileno(), self._wake]
        if self._force is not None:
            answers, deaths = self._force.wait(_LOOK_S, also)
            for answer in answers:
                self._deliver(answer)
            self._replace(deaths)
            self._find_unseen()
        else:
            wait_readable(also, _LOOK_S)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        is_there = self._receive()
        self._tell_share()
        self._tell_rows()
        self._give_out()
        return is_there

    def _tell_share(self) -> None:
        self._slots.trim()
        cores, orders = self._cores.share_of(self._me)
        share = cores, self._slots.most_orders(orders)
        if share != self._told_share:
            self._told_share = share
            self._send(frame(Kind.SHARE, a=share[1], b=cores))

    def _tell_rows(self, *, at_once: bool = False) -> None:
        rows = self._recorded.due(at_once=at_once) if self._recorded is not None else None
        if rows is not None:
            self._send(frame(Kind.ROWS, rows))

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
            self._heed(*found)
        return True

    def _next_frame(self) -> tuple[Head, bytes] | None:
        if len(self._arrived) < HEAD_BYTES:
            return None
        head = Head.unpack(self._arrived[:HEAD_BYTES])
        end = HEAD_BYTES + head.body_bytes
        if len(self._arrived) < end:
            return None
        body = bytes(self._arrived[HEAD_BYTES:end])
        del self._arrived[:end]
        return head, body

    def _heed(self, head: Head, body: bytes) -> None:
        match head.kind:
            case Kind.RECIPE:
                self._load(head.a, RecipeMessage.from_bytes(body))
            case Kind.ORDER:
                self._waiting.append(SessionOrder(ask=head.ask, payload=body, strand=head.a))
            case Kind.RECEIVED:
                self._slots.give(self._sent.pop(head.ask))
            case Kind.WANT:
                self._cores.want(self._me, head.a)
            case Kind.FORGET:
                self._return_waiting()
            case Kind.RECORD:
                self._records = bool(head.a)
                if self._recorded is not None:
                    self._recorded.turn(on=self._records)
            case _:
                raise ValueError(f"a receiver does not say {head.kind.name}")

    def _load(self, number: int, recipe: RecipeMessage) -> None:
        """Have the workers make batches of another recipe."""
        self._give_back_all()
        self._recipe = number
        self._is_first = True
        self._deaths_in_a_row = 0
        try:
            self._start(recipe)
        except Exception as error:  # noqa: BLE001 - loading user code may raise anything
            failure = Failure.of(error, traceback.format_exc(), None, None)
            self._end_force()
            self._send(frame(Kind.REFUSED, failure.to_bytes(), a=number))
        else:
            self._send(frame(Kind.READY, a=number))

    def _end_force(self) -> None:
        if self._force is not None:
            self._force.close()
            self._force = None

    def _return_waiting(self) -> None:
        for order in self._waiting:
            self._send(Head(kind=Kind.BATCH, ask=order.ask, a=Answer.RETURNED).pack())
        self._waiting.clear()

    def _give_back_all(self) -> None:
        for order in self._at_work.values():
            self._slots.give(order.slot)
            self._cores.give(self._me)
        self._waiting.extend(self._at_work.values())
        self._at_work.clear()
        self._next_in_line.clear()
        self._return_waiting()

    def _start(self, recipe: RecipeMessage) -> None:
        root = Path.cwd()
        folder = recipe.folder_below(root)
        variables = {**recipe.variables, **self._recording(recipe.loader)}
        begins_with = recipe.path, variables, recipe.strands
        if self._force is not None and not (begins_with == self._begun_with and self._force.usable):
            self._end_force()
        if self._force is None:
            self._begun_with, self._strands = begins_with, recipe.strands
            if recipe.strands:  # its rank bears a host's silence for longer, too
                bear_silence(self._connection, _SEND_S)
            # Of an iterable dataset each strand has a worker, which begins with its first order.
            self._force = Workforce(
                recipe.strands or self._cores.count,
                self._slots.descriptors,
                rank=recipe.rank,
                queues=recipe.strands or 1,
                beginning=0 if recipe.strands else None,
                path=[*(str(root / entry) for entry in recipe.path), *sys.path],
                variables=variables,
            )
        self._force.end_workers()  # nobody writes to the slots of what was given up
        self._force.start(
            PackedRecipe(content=recipe.content, folder=str(folder), variables=variables)
        )

    def _recording(self, loader: int | None) -> dict[str, str]:
        """Return the variables by which workers record, where they are to."""
        if loader is None:
            return {}
        if self._recorded is None:
            try:
                self._recorded = RecordedWorkers(loader, self._folder)
            except OSError:  # no room: batches matter more
                return {}
            self._recorded.turn(on=self._records)
        return self._recorded.variables

    # --- what the workers do

    def _give_out(self) -> None:
        """Hand waiting orders to workers, as far as cores and memory go."""
        while self._force is not None and (may_begin := self._orders_that_may_begin()):
            if not self._slots.has_room:
                return
            if not self._cores.take(self._me, waiting=len(may_begin)):
                return
            order = may_begin[0]
            self._waiting.remove(order)
            order.slot = self._slots.take()
            self._hand_over(order)

    def _orders_that_may_begin(self) -> Sequence[SessionOrder]:
        """Return waiting orders that a worker could see to: one of a strand at a time."""
        if not self._strands:
            return self._waiting
        first: dict[int, SessionOrder] = {}
        for order in self._waiting:
            first.setdefault(order.strand, order)
        for order in self._at_work.values():
            first.pop(order.strand, None)
        return list(first.values())

    def _hand_over(self, order: SessionOrder) -> None:
        assert self._force is not None
        self._slots.write(order.slot, order.payload)
        number = self._next_ticket
        self._next_ticket += 1
        self._at_work[number] = order
        order.begun_ns = time.monotonic_ns()
        # A strand has a worker of its own, which begins at once.
        if not self._strands and len(self._at_work) > self._cores.count:
            self._next_in_line.append(order)
        message = TicketMessage(number, order.slot, len(order.payload), self._is_first)
        self._is_first = False
        if self._strands:
            self._force.need(order.strand)
        self._force.send(message, order.strand)

    def _deliver(self, answer: AnswerMessage) -> None:
        self._deaths_in_a_row = 0
        if self._next_in_line:
            self._next_in_line.popleft().begun_ns = time.monotonic_ns()
        order = self._at_work.pop(answer.number, None)
        if order is None:
            return  # of a recipe that is gone
        self._cores.give(self._me)
        if not self._at_work and not self._waiting:
            self._tell_rows(at_once=True)  # as soon as it has this batch, the rank may be gone
        self._send_batch(order, answer)

    def _send_batch(self, order: SessionOrder, answer: AnswerMessage) -> None:
        size = answer.offset + answer.size_bytes
        if answer.answer is Answer.MADE:
            self._slots.note(size)
        head = Head(
            kind=Kind.BATCH, ask=order.ask, a=answer.answer, b=answer.worker, c=answer.offset,
            d=order.begun_ns - order.came_ns, e=time.monotonic_ns() - order.begun_ns,
            body_bytes=size,
        )  # fmt: skip
        self._sent[order.ask] = order.slot
        with self._sending:
            self._connection.sendall(head.pack())
            send_file(self._connection, self._slots.descriptors[order.slot], size)

    def _replace(self, deaths: list[tuple[int, int]]) -> None:
        """Fork dead workers anew, and have their orders made by others."""
        if not deaths or self._force is None:
            return
        held = self._force.tickets_held()
        self._deaths_in_a_row += len(deaths)
        if self._deaths_in_a_row > _MOST_DEATHS * self._cores.count:
            self._give_up_all(deaths[-1][1])
            return
        for worker, status in deaths:
            self._force.fork(worker)
            for number in sorted(held[worker] & self._at_work.keys()):
                order = self._at_work.pop(number)
                order.deaths += 1
                if order.deaths < _MOST_DEATHS:
                    self._hand_over(order)
                else:
                    self._give_up(order, worker, status)

    def _find_unseen(self) -> None:
        """Return orders that vanished with a worker before it could say that it had them."""
        now_s = time.monotonic()
        if self._force is None or now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        unseen: set[int] = set()
        if self._force.none_waiting():
            held = set().union(*self._force.tickets_held().values())
            answers, deaths = self._force.wait(0)
            for answer in answers:
                self._deliver(answer)
            self._replace(deaths)
            unseen = self._at_work.keys() - held
        for number in unseen & self._missing:
            # Its slot stays taken: should a worker have it after all, it may yet write there.
            order = self._at_work.pop(number)
            self._slots.leave(order.slot)
            self._cores.give(self._me)
            self._send(Head(kind=Kind.BATCH, ask=order.ask, a=Answer.RETURNED).pack())
        self._missing = unseen

    def _give_up_all(self, status: int) -> None:
        """End the workers, who end themselves without making anything; tell of it."""
        error = HeadraceError(
            f"{self._deaths_in_a_row} workers in turn ended without making a batch, the last with "
            f"status {status}"
        )
        self._give_back_all()
        self._end_force()
        self._send(
            frame(Kind.REFUSED, Failure.of(error, "", None, None).to_bytes(), a=self._recipe)
        )

    def _give_up(self, order: SessionOrder, worker: int, status: int) -> None:
        error = HeadraceError(
            f"{order.deaths} workers in turn ended at this batch, the last with status {status}; "
            "-9 often means that memory ran out."
        )
        content = Failure.of(error, "", None, None).to_bytes()
        self._slots.write(order.slot, content)
        self._cores.give(self._me)
        self._send_batch(
            order, AnswerMessage(Answer.FAILED, worker, 0, order.slot, 0, len(content))
        )
