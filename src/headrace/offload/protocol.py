"""The protocol between offload proxy and offload server: authentication, frames, messages.

Both know the job's key. Each proves it to the other by an HMAC-SHA-256 of two nonces, one from
either side; then frames go both ways, a header and a body each.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from headrace.core.errors import LaunchError, LoaderError

PARTITIONS_KEY = "strands"  # in messages and hosts files, as earlier versions read them


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSpecMessage:
    """A loader spec with what a server needs to load it."""

    rank: int
    loader: int | None = None  # the probe's number; None if workers are not to record
    folder: str  # the rank's working folder, relative to the job's if it is below that
    path: list[str]  # entries of the rank's sys.path below the job's folder, relative to it
    variables: Mapping[str, str | None]  # the rank's own, by `env.own_variables`
    partitions: int = 0  # of an iterable dataset, local ones included; 0: an indexed one
    content: bytes  # the pickled `LoaderSpec`

    def to_bytes(self) -> bytes:
        """Return the message as a line of JSON and the content."""
        fields = asdict(self)
        content: bytes = fields.pop("content")
        fields[PARTITIONS_KEY] = fields.pop("partitions")
        return json.dumps(fields).encode() + b"\n" + content

    @classmethod
    def from_bytes(cls, body: bytes) -> LoaderSpecMessage:
        """Return the message of which `to_bytes` made `body`."""
        line, _, content = body.partition(b"\n")
        fields = json.loads(line)
        return cls(partitions=fields.pop(PARTITIONS_KEY, 0), **fields, content=content)

    def folder_below(self, root: Path) -> Path:
        """Return the working folder, below the job's; raises LoaderError where it is missing."""
        folder = root / self.folder
        if not folder.is_dir():
            raise LoaderError(
                f"the script stands in {self.folder}, which this host has not, and paths may begin "
                "there. Have the folder there, or stay in the job's own and name paths in full"
            )
        return folder


_MAGIC = b"headrace batches 2"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_USER_TIMEOUT_S = 10.0  # the kernel ends a connection whose data is not acknowledged for so long
_HEADER = struct.Struct("<qqqqqqqq")
HEADER_BYTES = _HEADER.size


class FrameKind(IntEnum):
    """The kinds of frames. The proxy sends the first six, the server the others."""

    LOADER_SPEC = 1  # a: its number; body: `LoaderSpecMessage`
    BATCH_SPEC = 2  # `assignment`; a: partition of an iterable dataset; body: the batch spec
    RECEIVED = 3  # the batch of `assignment` was received, its slot is free
    WANTED_BATCHES = 4  # a: how many batches the rank wants from this host
    FORGET = 5  # the batches requested so far are not needed any more
    RECORD = 6  # a: whether workers record, 1 or 0
    # Of `assignment`; a: the `Answer`, b: the worker, c: offset of the structure, d: ns until
    # a worker took it, e: ns that this one worked on it; body: the slot's content.
    BATCH = 7
    SHARE = 8  # a: how many tasks the rank may have here, b: how many cores work on them
    READY = 9  # a: the number of the loader spec that is loaded
    REFUSED = 10  # a: the number of the loader spec that cannot be loaded; body: the failure
    HEARTBEAT = 11
    ROWS = 12  # body: rows that workers recorded, see `WorkerRecords`


class FrameHeader(NamedTuple):
    """The header of a frame; what `a` to `e` mean depends on its kind."""

    kind: FrameKind
    assignment: int = 0  # its number
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    e: int = 0
    body_bytes: int = 0

    def pack(self) -> bytes:
        """Return the header's bytes."""
        return _HEADER.pack(*self)

    @classmethod
    def unpack(cls, content: bytes | bytearray | memoryview) -> FrameHeader:
        """Return the header in bytes of `pack`; raises ValueError for other bytes."""
        kind, *numbers = _HEADER.unpack(content)
        return cls(FrameKind(kind), *numbers)


def encode_frame(
    kind: FrameKind, body: bytes = b"", *, assignment: int = 0, a: int = 0, b: int = 0
) -> bytes:
    """Return the bytes of a frame."""
    return FrameHeader(kind, assignment, a, b, body_bytes=len(body)).pack() + body


def configure_socket(connection: socket.socket) -> None:
    """Have small frames sent at once, and a vanished other side noticed."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    set_user_timeout(connection, _USER_TIMEOUT_S)


def set_user_timeout(connection: socket.socket, longest_s: float) -> None:
    """Set for how long the other side may acknowledge nothing before the connection ends."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(longest_s * 1000))


class AuthenticationError(LaunchError):
    """The other side does not know the job's key, or uses another protocol."""


def authenticate_to_server(connection: socket.socket, key: bytes, longest_s: float) -> None:
    """Authenticate to a server, and check its proof; raises AuthenticationError, OSError."""
    deadline_s = time.monotonic() + longest_s
    own_nonce = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(_MAGIC + own_nonce)
    reply = _receive_exactly(connection, _NONCE_BYTES + _PROOF_BYTES, deadline_s)
    their_nonce, proof = reply[:_NONCE_BYTES], reply[_NONCE_BYTES:]
    _check_proof(proof, _proof(key, b"station", own_nonce, their_nonce))
    connection.sendall(_proof(key, b"receiver", their_nonce, own_nonce))


def authenticate_client(connection: socket.socket, key: bytes, longest_s: float) -> None:
    """Authenticate a proxy, and prove the key to it; raises AuthenticationError, OSError."""
    deadline_s = time.monotonic() + longest_s
    hello = _receive_exactly(connection, len(_MAGIC) + _NONCE_BYTES, deadline_s)
    if not hello.startswith(_MAGIC):
        raise AuthenticationError("This is another program, or another version of Headrace.")
    their_nonce, own_nonce = hello[len(_MAGIC) :], secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(own_nonce + _proof(key, b"station", their_nonce, own_nonce))
    _check_proof(
        _receive_exactly(connection, _PROOF_BYTES, deadline_s),
        _proof(key, b"receiver", own_nonce, their_nonce),
    )


def _proof(key: bytes, side: bytes, their_nonce: bytes, own_nonce: bytes) -> bytes:
    return hmac.digest(key, side + their_nonce + own_nonce, "sha256")


def _check_proof(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise AuthenticationError("The other side does not know this job's key.")


def _receive_exactly(connection: socket.socket, size: int, deadline_s: float) -> bytes:
    content = b""
    while len(content) < size:
        connection.settimeout(max(0.001, deadline_s - time.monotonic()))
        piece = connection.recv(size - len(content))
        if not piece:
            raise AuthenticationError(
                "The other side has hung up: it does not know this job's key."
            )
        content += piece
    return content


def send_file(connection: socket.socket, descriptor: int, size: int) -> None:
    """Send the first `size` bytes of a file; raises OSError where the other side is gone.

    The kernel sends the file's own pages, so they must not change until the other side has received
    them.
    """
    sent = 0
    while sent < size:
        count = os.sendfile(connection.fileno(), descriptor, sent, size - sent)
        if not count:
            raise OSError("the batch ends early")
        sent += count
