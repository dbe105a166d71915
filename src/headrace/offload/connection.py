"""The connection of a rank's offload proxy to the server of one auxiliary host."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headrace.offload.hosts_file import AuxiliaryHost
from headrace.offload.protocol import (
    HEADER_BYTES,
    FrameHeader,
    FrameKind,
    authenticate_to_server,
    configure_socket,
    set_user_timeout,
)

_CONNECT_S = 5.0
_RECONNECT_S = 2.0  # between attempts to connect
SILENT_S = 3.0  # it beats twice a second
_MAX_SILENT_S = 60.0
_MAX_READ_BYTES = 32 << 20  # at a time, so that others have their turn


def silence_limit_s(again_s: float) -> float:
    """Return how long a host may be silent before others do what it had.

    Args:
        again_s: How long they will be at what it has done already: who waits as long before that
            waits twice as long as one who knew that the host would not come back, at most.
    """
    return min(max(SILENT_S, again_s), _MAX_SILENT_S)


@dataclass(slots=True)
class IncomingFrame:
    """A frame on its way.

    Attributes:
        head: Its head.
        body: Where its body goes.
        filled: How much of that is here.
        began_s: When its head was here.
    """

    head: FrameHeader
    body: memoryview
    filled: int = 0
    began_s: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class ServerConnection:
    """A connection to a station, made anew whenever it is lost.

    Attributes:
        host: Where it is.
        connection: None while there is none.
        heard_s: When it was heard last.
        recipe: The number of the recipe that it is ready to make, 0 for none.
        refused: The number of the recipe that it is not asked for any more.
        proven: The number of the recipe of which it made a batch last, 0 for none.
        orders: How many orders it takes.
        cores: How many cores make them.
        wanted: How many it was told would be given.
        failures: Batches of the recipe that failed there, and could be made by others.
        was_lost: It was told to be lost.
        records: It was told to record, which it does unless told otherwise.
        was_missed: It was not there in time for an iteration, or could not be reached.
    """

    host: AuxiliaryHost
    connection: socket.socket | None = None
    heard_s: float = 0.0
    recipe: int = 0
    refused: int = 0
    proven: int = 0
    orders: int = 0
    cores: int = 0
    wanted: int = -1
    failures: int = 0
    was_lost: bool = False
    records: bool = True
    was_missed: bool = False
    _next_try_s: float = 0.0
    _is_trying: bool = False
    _unsent: deque[memoryview] = field(default_factory=deque)
    _head: bytearray = field(default_factory=bytearray)
    _incoming: IncomingFrame | None = None

    def connect(
        self, key: bytes, then: Callable[[ServerConnection, socket.socket | None], None]
    ) -> None:
        """Begin to connect, where it is time to; `then` is called in another thread."""
        now_s = time.monotonic()
        if self.connection is not None or self._is_trying or now_s < self._next_try_s:
            return
        self._is_trying = True
        self._next_try_s = now_s + _RECONNECT_S

        def attempt() -> None:
            found = None
            with contextlib.suppress(Exception):  # it is tried again, with whatever is there then
                found = _open_connection(self.host, key)
            then(self, found)

        threading.Thread(target=attempt, name="connect", daemon=True).start()

    def connected(self, connection: socket.socket | None) -> None:
        """Note what came of an attempt."""
        self._is_trying = False
        self.was_missed = self.was_missed or connection is None
        self.connection = connection
        self.heard_s = time.monotonic()
        self.recipe, self.orders, self.wanted = 0, 0, -1
        self.records = True
        self._unsent.clear()
        self._head.clear()
        self._incoming = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self.connection is not None

    def is_coming(self, recipe: int) -> bool:
        """Whether it is likely about to say that it can make a recipe, or that it cannot."""
        is_ready = self.recipe == recipe and self.orders > 0
        return not (self.was_missed or is_ready or self.refused == recipe)

    def current_task_limit(self, *, is_tried: bool) -> int:
        """Return how many orders it may have now.

        Args:
            is_tried: It has one at a time until it has made a batch: should it be unable to, little
                is lost. An iterable dataset's strands have to be given out at once.
        """
        return min(self.orders, 1) if is_tried and not self.proven else self.orders

    def lost(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
            self.was_missed = True

    def send(self, content: bytes) -> None:
        """Send as much as goes at once; the rest as `pump` is called. OSError: it is gone."""
        self._unsent.append(memoryview(content))
        self.pump()

    def set_user_timeout(self) -> None:
        """Let `silence_limit_s` alone decide for how long the other side may take nothing."""
        assert self.connection is not None
        set_user_timeout(self.connection, _MAX_SILENT_S)

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def pump(self) -> None:
        """Send what waits, as far as the connection takes it; OSError where it is gone."""
        assert self.connection is not None
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                sent = self.connection.send(self._unsent[0])
                if sent < len(self._unsent[0]):
                    self._unsent[0] = self._unsent[0][sent:]
                else:
                    self._unsent.popleft()

    @property
    def incoming_assignment(self) -> int | None:
        """The order whose batch is arriving, None: none is."""
        is_batch = self._incoming is not None and self._incoming.head.kind is FrameKind.BATCH
        return self._incoming.head.ask if self._incoming is not None and is_batch else None

    def divert(self) -> None:
        """Let a batch that is arriving go nowhere: its place is needed for something else."""
        if self._incoming is not None and self.incoming_assignment is not None:
            self._incoming.body = memoryview(bytearray(len(self._incoming.body)))

    def frames(self, place: Callable[[FrameHeader], memoryview]) -> Iterator[IncomingFrame]:
        """Give the frames that have come whole.

        Args:
            place: Told a frame's head, returns where its body goes.

        Raises:
            OSError: The connection has ended.
            ValueError: What came is no frame.
        """
        assert self.connection is not None
        left = _MAX_READ_BYTES
        with contextlib.suppress(BlockingIOError):
            while left > 0:
                if self._incoming is None:
                    self._read_head(place)
                arriving = self._incoming
                if arriving is None:
                    continue
                if arriving.filled < len(arriving.body):
                    count = self.connection.recv_into(arriving.body[arriving.filled :])
                    self._heard(count)
                    arriving.filled += count
                    left -= count
                if arriving.filled == len(arriving.body):
                    self._incoming = None
                    yield arriving

    def _read_head(self, place: Callable[[FrameHeader], memoryview]) -> None:
        assert self.connection is not None
        piece = self.connection.recv(HEADER_BYTES - len(self._head))
        self._heard(len(piece))
        self._head += piece
        if len(self._head) == HEADER_BYTES:
            head = FrameHeader.unpack(self._head)
            self._head.clear()
            self._incoming = IncomingFrame(head, place(head))

    def _heard(self, count: int) -> None:
        if not count:
            raise ConnectionResetError(f"{self.host.name} has hung up")
        self.heard_s = time.monotonic()


class ConnectionAttempts:
    """Attempts to connect that have ended, in threads of their own."""

    def __init__(self) -> None:
        self._ended: queue.SimpleQueue[tuple[ServerConnection, socket.socket | None]] = (
            queue.SimpleQueue()
        )
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return what can be read once one has ended."""
        return self._wakeup

    def note(self, peer: ServerConnection, connection: socket.socket | None) -> None:
        """Note what came of one; any thread may."""
        self._ended.put((peer, connection))
        os.eventfd_write(self._wakeup, 1)

    def ended(self) -> Iterator[tuple[ServerConnection, socket.socket | None]]:
        """Give what came of each that has ended since."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._ended.get_nowait()


def _open_connection(host: AuxiliaryHost, key: bytes) -> socket.socket:
    connection = socket.create_connection((host.address, host.port), timeout=_CONNECT_S)
    try:
        configure_socket(connection)
        authenticate_to_server(connection, key, _CONNECT_S)
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return connection
