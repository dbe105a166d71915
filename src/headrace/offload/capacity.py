"""The capacity of an auxiliary host, shared fairly by its sessions: cores, memory, slots."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Lock

from headrace.data.loader.memory_budget import LargestBatch
from headrace.data.loader.workers.shared_memory import SlotPool

_QUEUED_ONE_IN = 4  # one order in so many waits at a host, so that no worker does


def fair_shares(cores: int, wanted: Mapping[int, int]) -> dict[int, int]:
    """Return how many cores each may count on: max-min fair, at least one each.

    Args:
        cores: How many there are.
        wanted: How many each would have.

    Who wants little gets it, and the others share the rest alike; what nobody wants is shared out
    as well, for whoever comes to want more. Who wants none just now may begin with what nobody
    wants, which is kept from nobody.
    """
    wanting = [each for each in wanted if wanted[each]]
    unwanted = max(0, cores - sum(wanted.values()))
    to_begin = max(1, unwanted // max(1, len(wanted) - len(wanting)))
    shares = {each: 1 if wanted[each] else to_begin for each in wanted}
    for _ in range(cores - len(wanting) if wanting else 0):
        # Whoever has least of those who want more; where none does, whoever has least.
        short = [each for each in wanting if shares[each] < wanted[each]] or wanting
        shares[min(short, key=lambda each: shares[each])] += 1
    return shares


class SharedCores:
    """The cores of an auxiliary host, given out one batch at a time, and its memory.

    Args:
        count: How many cores.
        memory_bytes: What batches may take.
    """

    def __init__(self, count: int, memory_bytes: int) -> None:
        self.count = count
        self._memory_bytes = memory_bytes
        self._lock = Lock()
        self._wanted: dict[int, int] = {}
        self._at_work: dict[int, int] = {}
        self._wake: dict[int, Callable[[], None]] = {}

    def join(self, who: int, wake: Callable[[], None]) -> None:
        """Take part; `wake` is called when there may be a core, or another share."""
        with self._lock:
            self._wanted[who] = self._at_work[who] = 0
            self._wake[who] = wake
        self._wake_others(who)

    def leave(self, who: int) -> None:
        """Take part no more; its cores are free."""
        with self._lock:
            for known in (self._wanted, self._at_work, self._wake):
                known.pop(who, None)
        self._wake_others(who)

    def want(self, who: int, batches: int) -> None:
        """Note how many batches somebody would have."""
        with self._lock:
            changed = self._wanted.get(who) != batches
            self._wanted[who] = batches
        if changed:
            self._wake_others(who)

    def share_of(self, who: int) -> tuple[int, int]:
        """Return its share of the cores, and how many of its orders may be here: some wait."""
        with self._lock:
            share = fair_shares(self.count, self._wanted)[who]
        return share, share + max(1, share // _QUEUED_ONE_IN)

    def memory_of(self, who: int) -> tuple[int, int]:
        """Return how many bytes its batches may take, and how many it may keep for later ones.

        All who want batches may take as much, and so may one who comes to want some. Who wants none
        just now keeps no more than all could at once.
        """
        with self._lock:
            others = sum(self._wanted[each] > 0 for each in self._wanted if each != who)
            takes = self._memory_bytes // (others + 1)
            keeps = takes if self._wanted[who] else self._memory_bytes // len(self._wanted)
        return takes, keeps

    def take(self, who: int, *, waiting: int) -> bool:
        """Take a core, where one is free and nobody with fewer at work waits for it.

        Args:
            who: Asks.
            waiting: How many orders it has waiting, this one among them.
        """
        with self._lock:
            own = self._at_work[who]
            others = sum(self._at_work.values()) - own
            # Alone, some wait for workers who are all at work. With others there are more workers
            # than cores, and what waits would be begun.
            most = self.count if others else self.count + max(1, self.count // _QUEUED_ONE_IN)
            if own + others >= most:
                return False
            shares = fair_shares(self.count, self._wanted)
            if own >= shares[who] and self._is_short(shares, without=who):
                return False
            self._at_work[who] = own + 1
            self._wanted[who] = max(self._wanted[who], own + waiting)
            return True

    def _is_short(self, shares: Mapping[int, int], *, without: int) -> bool:
        """Whether somebody else has less at work than its share, and wants more."""
        return any(
            self._at_work[each] < min(shares[each], self._wanted[each])
            for each in shares
            if each != without
        )

    def give(self, who: int) -> None:
        """Give a core back."""
        with self._lock:
            if who in self._at_work:
                self._at_work[who] -= 1
        self._wake_others(who)

    def _wake_others(self, who: int) -> None:
        with self._lock:
            wakes = [wake for each, wake in self._wake.items() if each != who]
        for wake in wakes:
            wake()


class SessionSlots:
    """Slots that batches are made in, and lie in until the rank has them.

    One may be in use however little memory there is, so that a session always goes on.

    Args:
        count: How many there are.
        memory: Returns how many bytes they may take now, and how many they may keep when free.

    Attributes:
        descriptors: Their files.
    """

    def __init__(self, count: int, memory: Callable[[], tuple[int, int]]) -> None:
        self._pool = SlotPool(count)
        self._memory = memory
        self._largest = LargestBatch()
        self._in_use: set[int] = set()
        self._filled: dict[int, None] = {}  # slots whose files have pages, last used last
        self.descriptors = self._pool.descriptors

    @property
    def _most(self) -> int:
        return max(1, self._largest.fitting(self._memory()[0]))

    def task_limit_within(self, orders: int) -> int:
        """Return how many of so many orders are of use here: of large batches fewer."""
        return min(orders, self._most) if self._largest.is_known else orders

    @property
    def has_room(self) -> bool:
        """Whether another slot may be taken."""
        return self._pool.free_count() > 0 and len(self._in_use) < self._most

    def take(self) -> int:
        """Return a slot; only when there is room."""
        slot = self._pool.take()
        assert slot is not None  # whoever takes one has asked
        self._in_use.add(slot)
        return slot

    def give(self, slot: int) -> None:
        """Have a slot back. It keeps its memory for the next batch, until `trim`."""
        self._in_use.discard(slot)
        self._pool.give(slot)

    def leave(self, slot: int) -> None:
        """Never give a slot out again, as somebody may yet write to it."""
        self._in_use.discard(slot)

    def write(self, slot: int, payload: bytes) -> None:
        """Put the bytes of an order at the start of a slot."""
        self._filled.pop(slot, None)
        self._filled[slot] = None
        self._pool.write(slot, payload)

    def note(self, size_bytes: int) -> None:
        """Note how large a batch is."""
        self._largest.note(size_bytes)

    def trim(self) -> None:
        """Let the memory go of free slots that is more than they may keep."""
        excess = len(self._filled) - max(1, self._largest.fitting(self._memory()[1]))
        if excess > 0:
            free = [slot for slot in self._filled if slot not in self._in_use]
            for slot in free[:excess]:
                os.ftruncate(self.descriptors[slot], 0)
                del self._filled[slot]

    def close(self) -> None:
        """Close the files."""
        self._pool.close()
