"""The capacity of an auxiliary host, shared fairly by its sessions: cores, memory, slots."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from headrace.data.loader.memory_budget import LargestBatch
from headrace.data.loader.workers.shared_memory import SlotPool

_QUEUED_ONE_IN = 4  # of a host's tasks so many wait for a worker, so that no worker idles


def fair_shares(cores: int, wanted: Mapping[int, int]) -> dict[int, int]:
    """Return the fair share of the host's cores of each session: max-min fair, at least one each.

    A session gets at most what it wants, and the others share the rest equally. Cores that nobody
    wants are divided among the sessions that want some, in case they want more. A session that
    wants none now may begin with an equal part of them; they are not reserved for it.
    """
    wanting = [each for each in wanted if wanted[each]]
    unwanted = max(0, cores - sum(wanted.values()))
    initial_share = max(1, unwanted // max(1, len(wanted) - len(wanting)))
    shares = {each: 1 if wanted[each] else initial_share for each in wanted}
    for _ in range(cores - len(wanting) if wanting else 0):
        # The smallest share of those that want more; if none does, the smallest share.
        short = [each for each in wanting if shares[each] < wanted[each]] or wanting
        shares[min(short, key=lambda each: shares[each])] += 1
    return shares


class SharedCores:
    """The memory and cores of an auxiliary host; sessions take a core for one batch at a time.

    Args:
        count: Cores.
        memory_bytes: Memory for batches.
        lock: Lets one session at a time take or give: each runs in a thread of its own.
    """

    def __init__(self, count: int, memory_bytes: int, lock: AbstractContextManager[Any]) -> None:
        self.count = count
        self._memory_bytes = memory_bytes
        self._lock = lock
        self._wanted: dict[int, int] = {}
        self._cores_in_use: dict[int, int] = {}
        self._callbacks: dict[int, Callable[[], None]] = {}

    def join(self, session: int, wake: Callable[[], None]) -> None:
        """Add a session; `wake` is called when a core may be free or its share may have changed."""
        with self._lock:
            self._wanted[session] = self._cores_in_use[session] = 0
            self._callbacks[session] = wake
        self._wake_others(session)

    def leave(self, session: int) -> None:
        """Remove a session; its cores are free."""
        with self._lock:
            for table in (self._wanted, self._cores_in_use, self._callbacks):
                table.pop(session, None)
        self._wake_others(session)

    def want(self, session: int, batches: int) -> None:
        """Note how many batches a session could make now."""
        with self._lock:
            changed = self._wanted.get(session) != batches
            self._wanted[session] = batches
        if changed:
            self._wake_others(session)

    def share_of(self, session: int) -> tuple[int, int]:
        """Return a session's share of the cores, and how many tasks it may have, some waiting."""
        with self._lock:
            share = fair_shares(self.count, self._wanted)[session]
        return share, share + max(1, share // _QUEUED_ONE_IN)

    def memory_of(self, session: int) -> tuple[int, int]:
        """Return the limits of a session's memory, in bytes: for slots in use, and for free ones.

        Sessions that want batches have equal limits, and one that begins to want some gets the
        same. The free slots of a session that wants none are limited to an equal part of all.
        """
        with self._lock:
            others = sum(self._wanted[each] > 0 for each in self._wanted if each != session)
            limit = self._memory_bytes // (others + 1)
            idle_limit = limit if self._wanted[session] else self._memory_bytes // len(self._wanted)
        return limit, idle_limit

    def take(self, session: int, *, waiting: int) -> bool:
        """Take a core if one is free and no session below its fair share waits for it.

        The session has `waiting` tasks that wait for one.
        """
        with self._lock:
            own = self._cores_in_use[session]
            others = sum(self._cores_in_use.values()) - own
            # A session alone may queue some tasks at busy workers. With others there are more
            # workers than cores, and queued tasks would be started at once.
            limit = self.count if others else self.count + max(1, self.count // _QUEUED_ONE_IN)
            if own + others >= limit:
                return False
            shares = fair_shares(self.count, self._wanted)
            if own >= shares[session] and self._is_short(shares, except_session=session):
                return False
            self._cores_in_use[session] = own + 1
            self._wanted[session] = max(self._wanted[session], own + waiting)
            return True

    def _is_short(self, shares: Mapping[int, int], *, except_session: int) -> bool:
        """Whether another session uses fewer cores than its share, and wants more."""
        return any(
            self._cores_in_use[each] < min(shares[each], self._wanted[each])
            for each in shares
            if each != except_session
        )

    def give(self, session: int) -> None:
        """Give a core back."""
        with self._lock:
            if session in self._cores_in_use:
                self._cores_in_use[session] -= 1
        self._wake_others(session)

    def _wake_others(self, session: int) -> None:
        with self._lock:
            wakes = [wake for each, wake in self._callbacks.items() if each != session]
        for wake in wakes:
            wake()


class SessionSlots(SlotPool):
    """A session's shared-memory slots, each with a batch until the rank has received it.

    One may be in use however little memory there is, so that a session always makes progress.

    `memory` returns the limits in bytes: for slots in use, and for free ones.
    """

    def __init__(self, count: int, memory: Callable[[], tuple[int, int]]) -> None:
        super().__init__(count)
        self._memory = memory
        self._largest = LargestBatch()
        self._in_use: set[int] = set()
        self._filled: dict[int, None] = {}  # slots whose files have pages, last used last

    @property
    def _limit(self) -> int:
        return max(1, self._largest.fitting(self._memory()[0]))

    def task_limit_within(self, tasks: int) -> int:
        """Return how many of some tasks fit into memory at once: fewer if batches are large."""
        return min(tasks, self._limit) if self._largest.is_known else tasks

    @property
    def has_room(self) -> bool:
        """Whether another slot may be taken."""
        return self.free_count() > 0 and len(self._in_use) < self._limit

    def take(self) -> int:
        """Return a free slot; only if `has_room`."""
        slot = super().take()
        assert slot is not None  # the caller has checked `has_room`
        self._in_use.add(slot)
        return slot

    def give(self, slot: int) -> None:
        """Free a slot. It keeps its memory for the next batch, until `trim`."""
        self._in_use.discard(slot)
        super().give(slot)

    def leave(self, slot: int) -> None:
        """Retire a slot that a worker may still write to."""
        self._in_use.discard(slot)

    def write(self, slot: int, payload: bytes) -> None:
        """Write a pickled batch spec at the start of a slot."""
        self._filled.pop(slot, None)
        self._filled[slot] = None
        super().write(slot, payload)

    def note(self, size_bytes: int) -> None:
        """Note the size of a batch."""
        self._largest.note(size_bytes)

    def trim(self) -> None:
        """Free the memory of free slots beyond their limit, least recently used first."""
        excess = len(self._filled) - max(1, self._largest.fitting(self._memory()[1]))
        if excess > 0:
            free = [slot for slot in self._filled if slot not in self._in_use]
            for slot in free[:excess]:
                os.ftruncate(self.descriptors[slot], 0)
                del self._filled[slot]
