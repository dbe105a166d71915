"""The slots of a session: as many in use at once as its part of the memory has room for."""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.data.loader.memory import LargestBatch
from headrace.data.loader.slots import SlotPool


class HeldSlots:
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

    def most_orders(self, orders: int) -> int:
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
