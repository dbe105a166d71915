"""A worker: takes the next ticket, makes its batch, says so; until the loader is gone."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import traceback
from collections import deque

from headrace.core.lifetime import leave_signals_to_the_parent
from headrace.data.loader.channels import (
    HELD,
    NOBODY,
    Answer,
    AnswerMessage,
    Ends,
    Gate,
    TicketMessage,
    map_board,
)
from headrace.data.loader.failures import Failure, sample_at
from headrace.data.loader.making import BatchMaker, Exhausted, Order, Recipe
from headrace.data.loader.randomness import seed_generators
from headrace.data.loader.slots import SlotArena, read_at
from headrace.data.loader.torch_worker import seed_as_torch, tell_torch
from headrace.data.storage.process import declare_leaf

_LONGEST_AT_GATE_S = 2.0  # whoever makes the first batch may have died, or wait for a slow answer


class Worker:
    """One worker process's side of the channels."""

    def __init__(self, number: int, ends: Ends, recipe: Recipe) -> None:
        self._number = number
        self._ends = ends
        self._recipe = recipe
        self._tickets = socket.socket(fileno=os.dup(ends.tickets[number % len(ends.tickets)]))
        self._answers = socket.socket(fileno=os.dup(ends.answers))
        self._board = map_board(ends.board, ends.workers)[number]
        self._gate = Gate(ends.gate)
        self._slots = ends.slots
        self._held: deque[tuple[TicketMessage, Order | Exception]] = deque()
        self._maker = BatchMaker(recipe, self._note_progress)

    def run(self) -> None:
        """Work until the loader closes its end."""
        self._board[:] = NOBODY
        use_one_thread()
        recipe = self._recipe
        tell_torch(
            self._number,
            self._ends.workers,
            recipe.worker_seed(self._number),
            recipe.dataset,
            iterable=recipe.iterable,
        )
        self._prepare()
        while True:
            if not self._held and not self._take(wait=True):
                return
            self._work(*self._held[0])
            self._held.popleft()
            self._note_held()

    def _prepare(self) -> None:
        """Run the user's worker_init_fn; where it fails, each ticket is answered with its error."""
        self._unprepared: Exception | None = None
        if self._recipe.worker_init_fn is None:
            return
        try:
            self._recipe.worker_init_fn(self._number)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; it is told
            self._unprepared = error

    def _look_ahead(self) -> None:
        """Take another ticket and begin its reads, once those of the batch at work are there."""
        ticket, order = self._held[0]
        if (
            self._maker.looks_ahead
            and isinstance(order, Order)
            and self._maker.may_look_ahead(order)
        ):
            if ticket.goes_first:
                self._gate.open()
            elif len(self._held) < HELD and self._gate.wait(0):
                self._take(wait=False)

    def _take(self, *, wait: bool) -> bool:
        try:
            message = self._tickets.recv(64, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if not message:
            return False
        ticket = TicketMessage.unpack(message)
        # First of all say who has it: should this worker be killed, the ticket is not lost.
        self._board[len(self._held)] = ticket.number
        payload = read_at(self._slots[ticket.slot], 0, ticket.payload_bytes)
        try:
            order: Order | Exception = pickle.loads(payload)
        except Exception as error:  # noqa: BLE001 - a sampler's keys may raise anything; it is told
            order = error
        self._held.append((ticket, order))
        if self._maker.looks_ahead and isinstance(order, Order):
            if not (ticket.goes_first or self._gate.wait(_LONGEST_AT_GATE_S)):
                self._gate.open()  # for all: nobody else is to wait as long again
            with contextlib.suppress(Exception):  # whatever it is, making the batch tells
                self._maker.look_ahead(order)
        return True

    def _work(self, ticket: TicketMessage, order: Order | Exception) -> None:
        self._note_progress(0)
        arena = SlotArena(self._slots[ticket.slot])
        try:
            content, answer = self._made(order, arena), Answer.MADE
        except Exhausted:
            content, answer = b"", Answer.EXHAUSTED
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; it is told
            content, answer = self._failure(error, order), Answer.FAILED
        if ticket.goes_first:
            self._gate.open()
        offset = arena.reserve(len(content))
        arena.write(offset, 0, content)
        self._answers.send(
            AnswerMessage(
                answer, self._number, ticket.number, ticket.slot, offset, len(content)
            ).pack()
        )

    def _made(self, order: Order | Exception, arena: SlotArena) -> bytes:
        if isinstance(order, Exception):
            raise order
        if self._unprepared is not None:
            raise self._unprepared
        return self._maker.make(order, arena)

    def _failure(self, error: Exception, order: Order | Exception) -> bytes:
        indices = order.indices if isinstance(order, Order) else ()
        index = sample_at(indices, int(self._board[HELD]))
        return Failure.of(error, traceback.format_exc(), self._recipe.dataset, index).to_bytes()

    def _note_progress(self, samples_done: int) -> None:
        self._board[HELD] = samples_done
        self._look_ahead()

    def _note_held(self) -> None:
        for place in range(HELD):
            ticket = self._held[place][0].number if place < len(self._held) else NOBODY
            self._board[place] = ticket


def work(number: int, ends: Ends, recipe: Recipe) -> None:
    """Run worker `number` in this forked process."""
    leave_signals_to_the_parent()
    declare_leaf()  # no worker forks: it may call object stores itself
    if recipe.torch_seed is None:
        seed_generators(recipe.worker_seed(number))
    else:
        seed_as_torch(recipe.torch_seed, number)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the loader is gone
        Worker(number, ends, recipe).run()


def use_one_thread() -> None:
    """Keep libraries that are loaded from starting threads of their own: workers are many."""
    torch, cv2 = sys.modules.get("torch"), sys.modules.get("cv2")
    if torch is not None:
        torch.set_num_threads(1)
    if cv2 is not None:
        cv2.setNumThreads(0)
