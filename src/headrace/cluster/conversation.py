"""Lines of JSON both ways over one connection between two hosts of a job."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from typing import Any

_LONGEST_LINE = 16 << 10
_SAY_S = 10.0
# A host that vanished with its machine is noticed after idle + count x interval seconds.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}


class Conversation:
    """One connection; one thread hears, any may say.

    Args:
        connection: Open; it is closed with the conversation.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):  # not every system has them
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._heard = b""
        self._saying = threading.Lock()

    @property
    def own_address(self) -> str:
        """This end's address."""
        return str(self._socket.getsockname()[0])

    def say(self, **words: object) -> None:
        """Send a line.

        Raises:
            OSError: The other one is not there any more.
        """
        line = json.dumps(words).encode() + b"\n"
        with self._saying:
            self._socket.settimeout(_SAY_S)
            self._socket.sendall(line)

    def hear(self, longest_s: float) -> dict[str, Any]:
        """Wait for a line, and return it.

        Args:
            longest_s: Longest wait, in seconds.

        Raises:
            TimeoutError: None came in that time.
            ConnectionError: The other one has gone, or says what is no line of ours.
        """
        deadline_s = time.monotonic() + longest_s
        while b"\n" not in self._heard:
            if len(self._heard) > _LONGEST_LINE:
                raise ConnectionError("what is said there has no end")
            self._heard += self._more(max(0.0, deadline_s - time.monotonic()))
        line, _, self._heard = self._heard.partition(b"\n")
        try:
            words = json.loads(line)
        except ValueError:
            words = None
        if not isinstance(words, dict):
            raise ConnectionError("something else than headrace speaks there")
        return words

    def close(self) -> None:
        """End it; who hears is told so."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _more(self, longest_s: float) -> bytes:
        self._socket.settimeout(longest_s)
        try:
            heard = self._socket.recv(4096)
        except BlockingIOError:
            raise TimeoutError from None
        if not heard:
            raise ConnectionError("it has ended the connection")
        return heard
