"""HTTP/1.1 on its way through a proxy: headers are read, bodies pass through the kernel."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, replace

_PIPE_BYTES = 2**20
_PACE_BYTES = 2**18  # between two sleeps of a capped connection
_CATCH_UP_S = 0.02  # how much of a sleep that lasted too long is made good
_MOST_HEADER_BYTES = 2**16


class ClosedError(Exception):
    """One side closed the connection."""


@dataclass(frozen=True, slots=True)
class Header:
    """First line and header lines of a request or an answer."""

    first_line: str
    lines: tuple[str, ...]

    @property
    def text(self) -> bytes:
        """The header as it goes over the wire."""
        return "\r\n".join([self.first_line, *self.lines, "", ""]).encode("latin-1")

    def value(self, name: str) -> str:
        """Return the value of the header line `name` (lower case), "" without one."""
        for line in self.lines:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return ""

    def body_bytes(self) -> int:
        """Return the length of the body that follows."""
        return int(self.value("content-length") or 0)

    def without(self, name: str) -> Header:
        """Return this without the line `name` (lower case)."""
        kept = tuple(line for line in self.lines if line.partition(":")[0].lower() != name)
        return replace(self, lines=kept)

    def with_line(self, line: str) -> Header:
        """Return this with one line more."""
        return replace(self, lines=(*self.lines, line))


class Side:
    """A socket with what was read from it beyond a header."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ahead = b""
        self._pipe: tuple[int, int] | None = None

    def read_header(self) -> Header:
        """Return the next header; raises ClosedError where none comes."""
        while b"\r\n\r\n" not in self._ahead:
            if len(self._ahead) > _MOST_HEADER_BYTES:
                raise ClosedError
            self._ahead += self._receive(_MOST_HEADER_BYTES)
        text, _, self._ahead = self._ahead.partition(b"\r\n\r\n")
        first_line, *lines = text.decode("latin-1").split("\r\n")
        return Header(first_line, tuple(lines))

    def read(self, length: int) -> bytes:
        """Return exactly so many bytes."""
        while len(self._ahead) < length:
            self._ahead += self._receive(length)
        data, self._ahead = self._ahead[:length], self._ahead[length:]
        return data

    def swallow(self, length: int) -> None:
        """Read and forget so many bytes."""
        while length:
            length -= len(self.read(min(length, _PIPE_BYTES)))

    def pour(
        self, to: Side, length: int, *, rate: float, pause_s: float, first: bytes = b""
    ) -> None:
        """Pass `first` and `length` bytes on, after `pause_s`, at no more than `rate` bytes/s."""
        due = time.monotonic() + pause_s
        while length or first:
            size = min(length, _PACE_BYTES if rate else _PIPE_BYTES)
            due = max(due, time.monotonic() - _CATCH_UP_S) + (size / rate if rate else 0.0)
            time.sleep(max(0.0, due - time.monotonic()))
            ahead, self._ahead = self._ahead[:size], self._ahead[size:]
            if first or ahead:
                to.socket.sendall(first + ahead)
            self._splice(to, size - len(ahead))
            length -= size
            first = b""

    def pour_chunks(self, to: Side) -> None:
        """Pass a chunked body on."""
        size = 1
        while size:
            while b"\r\n" not in self._ahead:
                self._ahead += self._receive(_MOST_HEADER_BYTES)
            size = int(self._ahead.partition(b"\r\n")[0].partition(b";")[0], 16)
            line = len(self._ahead.partition(b"\r\n")[0]) + 2
            to.socket.sendall(self.read(line + size + 2))

    def answer(self, status: str, body: bytes) -> None:
        """Send an answer of the proxy itself."""
        header = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.sendall(header.encode() + body)

    def reset(self) -> None:
        """Close so that the other end sees a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
        for descriptor in self._pipe or ():
            os.close(descriptor)
        self._pipe = None

    def _receive(self, size: int) -> bytes:
        data = self.socket.recv(size)
        if not data:
            raise ClosedError
        return data

    def _splice(self, to: Side, length: int) -> None:
        if length and self._pipe is None:
            self._pipe = os.pipe()
            with suppress(PermissionError):  # the user's pipes have a limit in all
                fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        while length:
            assert self._pipe is not None
            moved = os.splice(self.socket.fileno(), self._pipe[1], length)
            if not moved:
                raise ClosedError
            length -= moved
            while moved:
                moved -= os.splice(self._pipe[0], to.socket.fileno(), moved)
