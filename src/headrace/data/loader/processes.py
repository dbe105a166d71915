"""Batches made by worker processes on this host, in reused shared-memory slots."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.core.errors import LoaderError, LoaderTimeoutError
from headrace.data.loader.away import TicketsAway
from headrace.data.loader.channels import HELD, Answer, AnswerMessage, TicketMessage
from headrace.data.loader.executor import Helper, Made
from headrace.data.loader.failures import Failure, describe_sample, sample_at
from headrace.data.loader.making import Order, Recipe
from headrace.data.loader.pace import Pace
from headrace.data.loader.slots import SlotPool
from headrace.data.loader.workforce import Workforce, packed_recipe
from headrace.plan.dispatch import Dispatch, Ticket

# Slots beyond those at work. A script holds the batch at hand while it asks for the next, and may
# keep one more; with fewer free than are needed for the work under way, a batch is copied out.
_SPARE_SLOTS = 3
_LOOK_AGAIN_S = 0.5  # how often a wait looks for tickets that were lost without a trace
_LOOK_AWAY_S = 0.02  # ... and for batches that helpers take too long over
_MAX_DEATHS_IN_A_ROW = 3  # times the number of workers


class ProcessExecutor:
    """Worker processes on this host.

    Args:
        workers: How many.
        prefetch_batches: How many batches are under way or made ahead; at least one a worker.
        rank: The rank they work for, for messages.
        modules: What dataset and transforms are defined in, to be imported early.
        helper: Takes what the workers have no hands for.

    Attributes:
        workers: How many worker processes make batches.
    """

    starts_anew = False  # with each iteration: workers and whoever helps them
    _others = range(0)  # numbers of the workers that the helper stands for

    def __init__(
        self,
        workers: int,
        prefetch_batches: int,
        *,
        rank: int,
        modules: Sequence[str] = (),
        helper: Helper | None = None,
    ) -> None:
        self.workers = workers
        self._depth = max(prefetch_batches, workers)
        self._rank = rank
        self._away = TicketsAway(helper)
        self._slots = SlotPool(self._most_ahead() + _SPARE_SLOTS)
        try:
            self._force = self._new_force(modules)
        except BaseException:
            self._slots.close()
            raise
        if helper is not None:
            try:
                helper.connect(self._slots.descriptors, self._force.answers.fileno())
            except BaseException:
                self.close()
                raise
        self._clean = True
        self._recipe: Recipe | None = None
        self._pace = Pace()  # of a worker here
        self._reset()

    def _new_force(self, modules: Sequence[str]) -> Workforce:
        return Workforce(
            self.workers, self._slots.descriptors, rank=self._rank, queues=1, modules=modules
        )

    def _most_ahead(self) -> int:
        return self._away.slots_for(self._depth)

    def _reset(self) -> None:
        self._dispatch = Dispatch()
        self._orders: dict[int, Order] = {}
        self._results: dict[int, AnswerMessage] = {}
        self._missing: set[int] = set()
        self._looked_s = self._asked_others_s = 0.0
        self._deaths_in_a_row = 0
        self._submitted = 0
        # Ticket here -> when it was issued, and how many rounds of the workers it waits for.
        self._issued: dict[int, tuple[float, float]] = {}

    def start(self, recipe: Recipe) -> None:
        """Get ready for an iteration over `recipe`; raises LoaderError where it cannot be sent."""
        packed = packed_recipe(recipe)
        if not self._clean or self.starts_anew:
            is_at_work = self._open_here > 0  # asked before it is forgotten what others have
            self._away.forget()
            if is_at_work or self.starts_anew:
                self._force.end_workers()
            self._force.forget_answers()
            self._slots.reclaim()
        self._reset()
        self._recipe = recipe
        self._clean = False
        self._away.start(packed, self._others)
        self._force.start(packed)

    def has_room(self) -> bool:
        """Whether another order can be taken now."""
        under_way = self._submitted - self._dispatch.next_delivery
        return (
            under_way < self._away.most_under_way(self._depth)
            and (self._has_room_here or self._away.has_room)
            and self._slots.free_count() > 0
        )

    @property
    def _open_here(self) -> int:
        return self._dispatch.open_count - len(self._away.numbers)

    @property
    def _has_room_here(self) -> bool:
        return self._open_here < self._depth

    @property
    def _waits_less_away(self) -> bool:
        """Whether, at the begin of an iteration, all workers here are at work and others are not.

        Later the queue here is kept full: whoever is here goes first.
        """
        begins = self._submitted <= self._depth + self._away.workers
        return begins and self._open_here >= self.workers and self._away.has_idle_workers

    def submit(self, order: Order) -> None:
        """Take the order of the next batch; only when there is room."""
        slot = self._slots.take()
        assert slot is not None  # the stream asks has_room() first
        batch = self._submitted
        self._submitted += 1
        self._orders[batch] = order
        is_for_here = self._has_room_here and not self._waits_less_away
        message = self._written(self._dispatch.issue(batch, slot))
        if is_for_here:
            self._send_here(message, batch)
        else:
            self._away.send(message)

    def _send(self, ticket: Ticket) -> None:
        self._send_here(self._written(ticket), ticket.batch)

    def _send_here(self, message: TicketMessage, batch: int) -> None:
        rounds = max(1.0, self._open_here / self.workers)
        self._issued[message.number] = time.monotonic(), rounds
        self._force.send(message, self._queue_of(batch))

    def _queue_of(self, batch: int) -> int:  # noqa: ARG002 - whoever has a hand free takes it
        return 0

    def _written(self, ticket: Ticket) -> TicketMessage:
        """Write a ticket's order to its slot; return what tells of it."""
        payload = self._orders[ticket.batch].to_bytes()
        self._slots.write(ticket.slot, payload)
        first = ticket.batch == 0
        return TicketMessage(ticket.number, ticket.slot, len(payload), goes_first=first)

    def next_made(self, timeout_s: float, on_room: Callable[[], None]) -> Made:
        """Return the next batch in order; raises as `Executor` says."""
        deadline = time.monotonic() + timeout_s
        while (ticket := self._dispatch.deliver()) is None:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                if not self._may_still_come():
                    raise self._overdue(timeout_s)
                deadline += timeout_s
                continue
            look_s = _LOOK_AGAIN_S if not self._away.numbers else _LOOK_AWAY_S
            answers, deaths = self._force.wait(min(remaining_s, look_s))
            self._take_in(answers, deaths)
            if not answers and not deaths:
                self._find_unseen()
            if self._away.numbers:
                self._ask_others()
            if self.has_room():
                on_room()
        return self._delivered(ticket)

    def _may_still_come(self) -> bool:
        return False

    def _ask_others(self) -> None:
        """Have what is waited for, and takes long on one side, made on the other as well."""
        now_s, first = time.monotonic(), self._dispatch.next_delivery
        if now_s - self._asked_others_s < _LOOK_AWAY_S:
            return
        self._asked_others_s = now_s
        for batch in range(first, first + max(1, self.workers - self._open_here)):
            numbers = [ticket.number for ticket in self._dispatch.tickets_for(batch)]
            if len(numbers) != 1 or not self._dispatch.is_needed(batch):
                continue  # both sides are at it, or it is made
            is_away = numbers[0] in self._away.numbers
            if is_away and self._open_here < self.workers:
                if self._away.is_better_here(numbers[0], self._pace):
                    self._ask(batch, away=False)
            elif not is_away and self._away.is_better_away(self._issued[numbers[0]], self._pace):
                self._ask(batch, away=True)

    def _ask(self, batch: int, *, away: bool) -> None:
        slot = self._slots.take()
        if slot is None:
            return
        ticket = self._dispatch.issue(batch, slot)
        if away:
            self._away.send(self._written(ticket))
        else:
            self._send(ticket)

    def _take_in(self, answers: list[AnswerMessage], deaths: list[tuple[int, int]]) -> None:
        for answer in answers:
            if self._away.note(answer):
                self._note_from_away(answer)
            else:
                self._deaths_in_a_row = 0
                self._note(answer)
        if deaths:
            self._replace_dead(deaths)

    def _note_from_away(self, answer: AnswerMessage) -> None:
        if answer.answer is Answer.ROOM:
            return
        if answer.answer in {Answer.MADE, Answer.EXHAUSTED}:
            self._away.note_in_time(was_needed=self._note(answer))
            return
        lost = self._dispatch.forget({answer.number})
        if answer.answer is Answer.FAILED:
            content = self._slots.read(answer.slot, answer.offset, answer.size_bytes)
            failure = Failure.from_bytes(content)
            self._away.note_failure(lost[0].batch, failure, answer.worker)
        self._make_here(lost)

    def _make_here(self, lost: list[Ticket]) -> None:
        """Have tickets that were given up made here, but for those that nobody needs."""
        needed = [ticket for ticket in lost if self._is_open_question(ticket.batch)]
        for ticket in lost:
            if ticket not in needed:
                self._slots.give(ticket.slot)
        self._send_again(needed)

    def _is_open_question(self, batch: int) -> bool:
        return self._dispatch.is_needed(batch) and not self._dispatch.tickets_for(batch)

    def _note(self, answer: AnswerMessage) -> bool:
        """Note that a ticket is done; return whether its batch was still needed."""
        issued = self._issued.pop(answer.number, None)
        if issued is not None:
            self._pace.note((time.monotonic() - issued[0]) / issued[1])
        superfluous = self._dispatch.finish(answer.number)
        if superfluous is not None:
            self._slots.give(superfluous.slot)
            return False
        self._results[answer.number] = answer
        return True

    def _delivered(self, ticket: Ticket) -> Made:
        answer = self._results.pop(ticket.number)
        del self._orders[ticket.batch]
        if answer.answer is Answer.EXHAUSTED:
            self._slots.give(answer.slot)
            return Made(batch=ticket.batch, exhausted=True)
        structure = self._slots.read(answer.slot, answer.offset, answer.size_bytes)
        if answer.answer is Answer.FAILED:
            self._slots.give(answer.slot)
            where = f"rank {self._rank}, worker {answer.worker}"
            raise Failure.from_bytes(structure).in_caller(where)
        self._away.note_made_here(ticket.batch)
        content, bad, samples = self._received(answer.slot, structure)
        return Made(batch=ticket.batch, content=content, bad=tuple(bad), samples=samples)

    def _received(self, slot: int, structure: bytes) -> Any:
        under_way = self._submitted - self._dispatch.next_delivery
        # The work under way must find free slots even if the script keeps every batch it gets.
        if self._slots.free_count() + under_way >= self._depth:
            return self._slots.lend(slot, structure)
        return self._slots.copy_out(slot, structure)

    def _replace_dead(self, deaths: list[tuple[int, int]]) -> None:
        held = self._force.tickets_held()
        for worker, status in deaths:
            lost = self._dispatch.forget(held[worker])
            self._raise_if_hopeless(worker, status, lost)
            self._force.fork(worker)
            self._make_here(lost)

    def _find_unseen(self) -> None:
        """Look for tickets that vanished with a worker before it could say that it had them.

        The kernel may give a message to a process that is being killed. A ticket that is missing at
        two looks in a row is lost; then all workers start anew with all that is open, so that
        nobody can still be writing to its slot. A look takes the board first and the answers after
        it, so that a ticket finished in between is not taken for missing.
        """
        if time.monotonic() - self._looked_s < _LOOK_AGAIN_S:
            return
        self._looked_s = time.monotonic()
        self._make_here(self._dispatch.forget(self._away.lost()))
        held = set().union(*self._force.tickets_held().values())
        unseen = self._dispatch.unseen(held, none_waiting=self._force.none_waiting())
        self._take_in(*self._force.wait(0))
        here = self._dispatch.open_numbers() - self._away.numbers.keys()
        unseen &= here
        if unseen & self._missing:
            # Answers of the helper that are thrown away with those of the workers are lost, too.
            self._away.forget()
            self._force.end_workers()
            self._force.start_workers()
            self._away.start_again()
            self._make_all_again()
            unseen = set()
        self._missing = unseen

    def _make_all_again(self) -> None:
        """Have each open batch made once, here; nobody writes to any slot."""
        lost = self._dispatch.forget(self._dispatch.open_numbers())
        kept: dict[int, Ticket] = {}
        for ticket in lost:
            if self._dispatch.is_needed(ticket.batch) and ticket.batch not in kept:
                kept[ticket.batch] = ticket
            else:
                self._slots.give(ticket.slot)
        self._send_again(list(kept.values()))

    def _send_again(self, lost: list[Ticket]) -> None:
        for ticket in lost:
            self._send(self._dispatch.issue(ticket.batch, ticket.slot))

    def _raise_if_hopeless(self, worker: int, status: int, lost: list[Ticket]) -> None:
        """Count deaths: a batch that kills every worker that tries it is the script's fault."""
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row < _MAX_DEATHS_IN_A_ROW * self.workers:
            return
        at = self._sample_at(lost[0], worker) if lost else "the start"
        raise LoaderError(
            f"rank {self._rank}: {self._deaths_in_a_row} workers in turn ended without making a "
            f"batch, the last with {how_it_ended(status)} at {at}. SIGKILL often means that memory "
            f"ran out; SIGSEGV is a crash in native code that the dataset calls."
        )

    def _overdue(self, timeout_s: float) -> LoaderTimeoutError:
        batch = self._dispatch.next_delivery
        held = self._force.tickets_held()
        for ticket in self._dispatch.tickets_for(batch):
            if ticket.number in self._away.numbers:
                return LoaderTimeoutError(
                    f"rank {self._rank}: batch {batch} did not arrive from the auxiliary hosts "
                    f"within {timeout_s:g} s. Raise timeout_s if the work really takes that long."
                )
            for worker, numbers in held.items():
                if ticket.number in numbers:
                    return LoaderTimeoutError(
                        f"rank {self._rank}: batch {batch} did not arrive within {timeout_s:g} s. "
                        f"Worker {worker} is at {self._sample_at(ticket, worker)}. Raise timeout_s "
                        f"if the work really takes that long."
                    )
        return LoaderTimeoutError(
            f"rank {self._rank}: batch {batch} did not arrive within {timeout_s:g} s and no worker "
            f"has begun it: all {self.workers} are still starting or busy with earlier batches."
        )

    def _sample_at(self, ticket: Ticket, worker: int) -> str:
        order = self._orders[ticket.batch]
        index = sample_at(order.indices, int(self._force.board[worker][HELD]))
        assert self._recipe is not None
        return describe_sample(self._recipe.dataset, index)

    def finish(self) -> None:
        """Forget what is under way: the iteration is over, or was left."""
        # Where every order was delivered, the workers wait for the next.
        self._clean = self._dispatch.settled
        # The script's loader may hang on its dataset or functions; it must not hang on this.
        self._recipe = None
        self._away.finish()

    @property
    def usable(self) -> bool:
        """Whether it can begin an iteration: its forkserver lives and is this process's own."""
        return self._force.usable

    def close(self) -> None:
        """End all workers and free all memory that no batch uses."""
        self._away.close()
        self._force.close()
        self._slots.close()


def how_it_ended(status: int) -> str:
    """Return how a process ended, by what its parent heard."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
