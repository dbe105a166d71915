"""One end of an offload connection, as tests speak it."""

from __future__ import annotations

import socket

from headrace.offload.frames import (
    CODE_BYTES,
    HEADER_BYTES,
    FrameCodes,
    FrameHeader,
    SessionKeys,
    check_body,
)

KEYS = SessionKeys.derive(b"key", b"nonce of the proxy", b"nonce of the server")


class FrameEnd:
    """The end of a proxy, or of a server, at a connected socket."""

    def __init__(
        self, connection: socket.socket, *, is_server: bool, keys: SessionKeys = KEYS
    ) -> None:
        own, theirs = (keys.to_proxy, keys.to_server)[:: 1 if is_server else -1]
        self.socket = connection
        self._sent, self._received = FrameCodes(own), FrameCodes(theirs)

    def sealed(self, head: FrameHeader, body: bytes = b"") -> bytes:
        """Return the bytes of the next frame."""
        return self._sent.seal(head._replace(body_bytes=len(body)).pack(), body)

    def send(self, head: FrameHeader, body: bytes = b"") -> None:
        """Send a frame."""
        self.socket.sendall(self.sealed(head, body))

    def receive(self) -> tuple[FrameHeader, bytes]:
        """Return the next frame; raises BlockingIOError where there is none."""
        head = FrameHeader.unpack(
            self._received.check_header(self._exactly(HEADER_BYTES + CODE_BYTES))
        )
        body = b""
        if head.body_bytes:
            body = self._exactly(head.body_bytes)
            code = self._received.body()
            code.update(body)
            check_body(self._exactly(CODE_BYTES), code)
        return head, body

    def _exactly(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            content += self.socket.recv(size - len(content))
        return content
