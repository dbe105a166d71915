"""A client of a store of rows."""

from __future__ import annotations

import socket

ROW_BYTES = 1024


class RowClient:
    """Asks for rows over one connection.

    Args:
        port: Where the store listens on this host.
    """

    def __init__(self, port: int) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port))

    def get(self, number: int) -> bytes:
        """Return a row."""
        self.connection.sendall(b"%d\n" % number)
        row = b""
        while len(row) < ROW_BYTES:
            row += self.connection.recv(ROW_BYTES - len(row))
        return row
