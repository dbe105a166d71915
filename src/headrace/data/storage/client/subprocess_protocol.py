"""Frames between a process and its storage subprocess: a JSON header, then raw bytes; no pickle.

The layout: header length (4 bytes) and body length (8 bytes), big-endian; header; body. File
descriptors are sent with the lengths.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.data.storage.store import Buffer, ObjectInfo

_LENGTHS = struct.Struct("!IQ")
_PIECE = struct.Struct("!Q")
_SOCKET_BUFFER_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedFrame:
    """A frame that was received."""

    header: dict[str, Any]
    body: Buffer  # read-only
    descriptors: Sequence[int]  # files; the receiver closes them


class FrameConnection:
    """One end of a connected socket pair. Any thread may send; one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)

    def send(
        self,
        header: dict[str, Any],
        body: bytes | memoryview = b"",
        descriptors: Sequence[int] = (),
    ) -> None:
        """Send one frame; raises OSError where the other end has closed or does not read."""
        text = json.dumps(header).encode()
        with self._sending:
            lengths = _LENGTHS.pack(len(text), len(body))
            if descriptors:
                socket.send_fds(self._socket, [lengths], descriptors)
                self._socket.sendall(text)
            else:
                self._socket.sendall(lengths + text)
            if len(body):
                self._socket.sendall(body)

    def receive(self) -> ReceivedFrame | None:
        """Return the next frame, or None where the other end is closed.

        TimeoutError: nothing came in the socket's timeout. OSError: it ended within a frame.
        """
        lengths, descriptors = self._receive_lengths()
        if not lengths:
            return None
        header_bytes, body_bytes = _LENGTHS.unpack(lengths)
        header = json.loads(bytes(self._receive_exactly(header_bytes)))
        body = self._receive_exactly(body_bytes)
        return ReceivedFrame(
            header=header, body=memoryview(body).toreadonly(), descriptors=tuple(descriptors)
        )

    def close(self) -> None:
        """Close this end; the other end's `receive` returns None."""
        self._socket.close()

    def shut_down(self) -> None:
        """End the connection for all users of this end, including a thread within `receive`."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _receive_lengths(self) -> tuple[bytes, list[int]]:
        lengths, descriptors = b"", []
        while len(lengths) < _LENGTHS.size:
            piece, fresh, _, _ = socket.recv_fds(self._socket, _LENGTHS.size - len(lengths), 4)
            descriptors += fresh
            lengths += piece
            if not piece:
                break
        return lengths if len(lengths) == _LENGTHS.size else b"", descriptors

    def _receive_exactly(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise ConnectionResetError("the other end broke off within a frame")
            view = view[count:]
        return data


def write_piece(descriptor: int, piece: bytes) -> Iterator[None]:
    """Write a piece to a non-blocking pipe; yields whenever the pipe is full. b"" marks the end."""
    left = memoryview(_PIECE.pack(len(piece)) + piece)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            yield


def read_pieces(descriptor: int) -> Iterator[bytes]:
    """Yield the pieces that `write_piece` wrote, to the end mark; EOFError: it is missing."""
    with os.fdopen(descriptor, "rb") as pipe:
        while length := _PIECE.unpack(_exactly(pipe.read(_PIECE.size), _PIECE.size))[0]:
            yield _exactly(pipe.read(length), length)


def _exactly(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise EOFError("the writer went away before the end")
    return data


def object_row(info: ObjectInfo) -> list[Any]:
    """Return an object's description as JSON that `object_of_row` reads."""
    return [info.path, info.size_bytes, info.etag, info.modified_s]


def object_of_row(row: Sequence[Any]) -> ObjectInfo:
    """Return the description of an `object_row`."""
    path, size_bytes, etag, modified_s = row
    return ObjectInfo(path=path, size_bytes=size_bytes, etag=etag, modified_s=modified_s)
