"""The connections of a server that have not authenticated yet: a limited number of them."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress

_MOST = 64


class UnauthenticatedConnections:
    """Connections that have not authenticated yet, `most` at a time.

    One more replaces the oldest one of the address that has most of them. So who opens many holds
    up only himself: a host that authenticates at once is done before its turn would come.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._addresses: dict[socket.socket, str] = {}  # the oldest first

    def add(self, connection: socket.socket, address: str) -> None:
        """Add a connection; where there are too many, another one ends, which its owner closes."""
        with self._lock:
            self._addresses[connection] = address
            if len(self._addresses) <= self._most:
                return
            (busiest, _), *_ = Counter(self._addresses.values()).most_common(1)
            oldest = next(each for each, peer in self._addresses.items() if peer == busiest)
            del self._addresses[oldest]
            # Under the lock, as its owner closes it only after `remove`.
            with suppress(OSError):  # the other side has left
                oldest.shutdown(socket.SHUT_RDWR)

    def remove(self, connection: socket.socket) -> None:
        """Remove a connection that has authenticated, or has ended."""
        with self._lock:
            self._addresses.pop(connection, None)
