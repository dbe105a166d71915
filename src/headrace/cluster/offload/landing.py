"""Where batches of other hosts land: in the slots of their tickets, or nowhere."""

from __future__ import annotations

import mmap
import os

from headrace.data.loader.slots import read_at


class Landing:
    """The tickets under way, with their slots and their orders.

    Args:
        slots: Descriptors of the slots' files.
    """

    def __init__(self, slots: list[int]) -> None:
        self._slots = slots
        self._maps: dict[int, mmap.mmap] = {}
        # Ticket -> its slot and its order, which the batch overwrites there.
        self._placed: dict[int, tuple[int, bytes]] = {}
        self._trash = bytearray()

    def add(self, ticket: int, slot: int, payload_bytes: int) -> None:
        """Take a ticket, whose order lies in its slot."""
        self._placed[ticket] = slot, read_at(self._slots[slot], 0, payload_bytes)

    def order_of(self, ticket: int) -> bytes:
        """Return a ticket's order."""
        return self._placed[ticket][1]

    def pop(self, ticket: int) -> int:
        """Let go of a ticket; return its slot."""
        return self._placed.pop(ticket)[0]

    def clear(self) -> None:
        """Let go of all tickets."""
        self._placed.clear()

    def memory(self, ticket: int | None, size_bytes: int) -> memoryview:
        """Return where a ticket's batch goes; that of no ticket goes where nobody looks."""
        if ticket is None:
            if len(self._trash) < size_bytes:
                self._trash = bytearray(size_bytes)
            return memoryview(self._trash)[:size_bytes]
        slot = self._placed[ticket][0]
        mapped = self._maps.get(slot)
        if mapped is None or len(mapped) < size_bytes:
            if os.fstat(self._slots[slot]).st_size < size_bytes:
                os.ftruncate(self._slots[slot], size_bytes)
            mapped = self._maps[slot] = mmap.mmap(
                self._slots[slot], os.fstat(self._slots[slot]).st_size
            )
        return memoryview(mapped)[:size_bytes]
