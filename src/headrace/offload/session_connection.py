"""A server's side of the connection to a rank's proxy: frames, and heartbeats."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

from headrace.offload.protocol import (
    HEADER_BYTES,
    FrameHeader,
    FrameKind,
    encode_frame,
    send_file,
    set_user_timeout,
)

HEARTBEAT_S = 0.5
_SEND_TIMEOUT_S = 60  # a rank that reads nothing for so long is gone or stopped; it reconnects
_RECEIVE_BYTES = 1 << 20


class SessionConnection:
    """The connection of a session; heartbeats go out also while the session imports or sends."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = bytearray()
        self._send_lock = threading.Lock()
        self._is_over = threading.Event()
        self._heartbeats: threading.Thread | None = None

    def open(self) -> None:
        """Begin; raises OSError."""
        self._socket.settimeout(None)
        longest = struct.pack("ll", _SEND_TIMEOUT_S, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, longest)
        self._heartbeats = threading.Thread(target=self._send_heartbeats, name="beat", daemon=True)
        self._heartbeats.start()

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._socket.fileno()

    def tolerate_silence(self) -> None:
        """Raise the kernel's send timeout: the rank tolerates a longer silence, too."""
        set_user_timeout(self._socket, _SEND_TIMEOUT_S)

    def send(self, content: bytes, descriptor: int = -1, size_bytes: int = 0) -> None:
        """Send a frame, whose body may be the start of a file; raises OSError."""
        with self._send_lock:
            self._socket.sendall(content)
            if size_bytes:
                send_file(self._socket, descriptor, size_bytes)

    def receive(self) -> list[tuple[FrameHeader, bytes]] | None:
        """Return the frames that have arrived, with their bodies; None if the proxy is gone."""
        with suppress(BlockingIOError):
            while piece := self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT):
                self._received += piece
            return None
        frames = []
        while len(self._received) >= HEADER_BYTES:
            head = FrameHeader.unpack(self._received[:HEADER_BYTES])
            end = HEADER_BYTES + head.body_bytes
            if len(self._received) < end:
                break
            frames.append((head, bytes(self._received[HEADER_BYTES:end])))
            del self._received[:end]
        return frames

    def close(self) -> None:
        """End the heartbeats, and close the connection."""
        self._is_over.set()
        if self._heartbeats is not None:
            self._heartbeats.join()
        self._socket.close()

    def _send_heartbeats(self) -> None:
        while not self._is_over.wait(HEARTBEAT_S):
            if self._send_lock.acquire(blocking=False):  # else it is sending something just now
                try:
                    self._socket.sendall(encode_frame(FrameKind.HEARTBEAT))
                except OSError:
                    with suppress(OSError):  # half a frame may be sent: the connection is useless
                        self._socket.shutdown(socket.SHUT_RDWR)
                finally:
                    self._send_lock.release()
