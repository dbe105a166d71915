"""Sockets of offload's connections: their options, and files that the kernel sends itself."""

from __future__ import annotations

import os
import socket

from headrace.offload.frames import BodyCode

_USER_TIMEOUT_S = 10.0  # the kernel ends a connection whose data is not acknowledged for so long


def configure_socket(connection: socket.socket) -> None:
    """Have small frames sent at once, and a vanished other side noticed."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    set_user_timeout(connection, _USER_TIMEOUT_S)


def set_user_timeout(connection: socket.socket, longest_s: float) -> None:
    """Set for how long the other side may acknowledge nothing before the connection ends."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(longest_s * 1000))


_PIECE_BYTES = 4 << 20  # sent, then added to the code, so that the other side need not wait


def send_file(
    connection: socket.socket, descriptor: int, content: memoryview, code: BodyCode
) -> None:
    """Send the start of a file, which is mapped as `content`, and add it to a code.

    The kernel sends the file's own pages, so they must not change until the other side has received
    them. Raises OSError (the other side is gone, or the file is shorter).
    """
    for start in range(0, len(content), _PIECE_BYTES):
        end = min(len(content), start + _PIECE_BYTES)
        _send_piece(connection, descriptor, start, end)
        code.update(content[start:end])


def _send_piece(connection: socket.socket, descriptor: int, start: int, end: int) -> None:
    while start < end:
        count = os.sendfile(connection.fileno(), descriptor, start, end - start)
        if not count:
            raise OSError("the batch ends early")
        start += count
