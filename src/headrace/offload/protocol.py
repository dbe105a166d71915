"""The protocol between offload proxy and offload server: authentication, frames, messages.

Both know the job's key. Each proves it to the other by a keyed hash (HMAC-SHA-256) of two random
numbers, one from either side; then frames go both ways, a header and a body each.
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
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from headrace.core.errors import LaunchError, LoaderError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSpecMessage:
    """What goes with a recipe.

    Attributes:
        rank: Whose it is.
        loader: The number of its loader, where workers are to record what they do.
        folder: The rank's working folder, from the job's folder on; its whole path elsewhere.
        path: Where the rank looks for modules, as far as that is below the job's folder.
        variables: The rank's own, as `env.own_variables` returns them.
        strands: Among how many workers an iterable dataset is shared, wherever they are; 0: the
            dataset is indexed, and any worker makes any batch.
        content: The recipe, pickled.
    """

    rank: int
    loader: int | None = None
    folder: str
    path: list[str]
    variables: Mapping[str, str | None]
    strands: int = 0
    content: bytes

    def to_bytes(self) -> bytes:
        """Return bytes that `from_bytes` reads."""
        names = ("rank", "loader", "folder", "path", "variables", "strands")
        told = {name: getattr(self, name) for name in names}
        return json.dumps(told).encode() + b"\n" + self.content

    @classmethod
    def from_bytes(cls, body: bytes) -> LoaderSpecMessage:
        """Return the message that `to_bytes` told."""
        told, _, content = body.partition(b"\n")
        return cls(**json.loads(told), content=content)

    def folder_below(self, root: Path) -> Path:
        """Return the rank's working folder as this host has it: relative paths begin there.

        Args:
            root: The job's folder here.

        Raises:
            LoaderError: This host has none.
        """
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
_USER_TIMEOUT_MS = 10_000  # what is sent is not taken for so long
_HEADER = struct.Struct("<qqqqqqqq")
HEADER_BYTES = _HEADER.size


class FrameKind(IntEnum):
    """What a frame says. The receiver says the first six."""

    LOADER_SPEC = 1  # a: its number; body: `LoaderSpecMessage`
    BATCH_SPEC = 2  # make batch `ask`; a: the strand of an iterable dataset; body: the order
    RECEIVED = 3  # batch `ask` is here, its memory is free
    WANTED_BATCHES = 4  # a: how many batches the rank would have of this host
    FORGET = 5  # what was asked for so far is needed no more
    RECORD = 6  # a: 1, workers are to record what they do; 0, no more
    # Of `ask`; a: the answer, b: the worker, c: where the structure is, d: nanoseconds until it
    # had a worker, e: ... and with that; body: all of it.
    BATCH = 7
    SHARE = 8  # a: how many orders may be here, b: how many cores make them
    READY = 9  # a: the number of the recipe that can be made
    REFUSED = 10  # a: the number of the recipe that cannot; body: the failure
    HEARTBEAT = 11  # this host lives
    ROWS = 12  # body: what workers have recorded, see `WorkerRecords`


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader:
    """What comes before a frame's body.

    Attributes:
        kind: What it says.
        ask: The order that it is about.
        a, b, c, d, e: As `kind` explains.
        body_bytes: Length of the body that follows.
    """

    kind: FrameKind
    ask: int = 0
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    e: int = 0
    body_bytes: int = 0

    def pack(self) -> bytes:
        """Return its bytes."""
        numbers = self.a, self.b, self.c, self.d, self.e
        return _HEADER.pack(self.kind, self.ask, *numbers, self.body_bytes)

    @classmethod
    def unpack(cls, content: bytes | bytearray | memoryview) -> FrameHeader:
        """Return the head that `pack` made; ValueError where it is none."""
        kind, ask, a, b, c, d, e, body_bytes = _HEADER.unpack(content)
        return cls(kind=FrameKind(kind), ask=ask, a=a, b=b, c=c, d=d, e=e, body_bytes=body_bytes)


def encode_frame(
    kind: FrameKind, body: bytes = b"", *, ask: int = 0, a: int = 0, b: int = 0
) -> bytes:
    """Return a whole frame."""
    return FrameHeader(kind=kind, ask=ask, a=a, b=b, body_bytes=len(body)).pack() + body


def configure_socket(connection: socket.socket) -> None:
    """Have small frames sent at once, and a side that is gone without a word noticed."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)


def set_user_timeout(connection: socket.socket, longest_s: float) -> None:
    """Have a side that takes nothing noticed only after so long."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(longest_s * 1000))


class AuthenticationError(LaunchError):
    """The other side does not know the job's key, or speaks something else."""


def authenticate_to_server(connection: socket.socket, key: bytes, longest_s: float) -> None:
    """Prove the key to a station, and have it prove it; raises NoEntryError, OSError."""
    deadline_s = time.monotonic() + longest_s
    own = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(_MAGIC + own)
    told = _receive_exactly(connection, _NONCE_BYTES + _PROOF_BYTES, deadline_s)
    others, proof = told[:_NONCE_BYTES], told[_NONCE_BYTES:]
    _check_proof(proof, _proof(key, b"station", own, others))
    connection.sendall(_proof(key, b"receiver", others, own))


def authenticate_client(connection: socket.socket, key: bytes, longest_s: float) -> None:
    """Let a receiver in that proves the key; raises NoEntryError, OSError."""
    deadline_s = time.monotonic() + longest_s
    told = _receive_exactly(connection, len(_MAGIC) + _NONCE_BYTES, deadline_s)
    if not told.startswith(_MAGIC):
        raise AuthenticationError("This is another program, or another version of Headrace.")
    others, own = told[len(_MAGIC) :], secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(own + _proof(key, b"station", others, own))
    _check_proof(
        _receive_exactly(connection, _PROOF_BYTES, deadline_s),
        _proof(key, b"receiver", own, others),
    )


def _proof(key: bytes, side: bytes, theirs: bytes, own: bytes) -> bytes:
    return hmac.digest(key, side + theirs + own, "sha256")


def _check_proof(proof: bytes, right: bytes) -> None:
    if not hmac.compare_digest(proof, right):
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
    """Send the first `size` bytes of a file; OSError where the other side is gone or takes nothing.

    The kernel sends the file's own pages, so they must stay as they are until the other side has
    them.
    """
    sent = 0
    while sent < size:
        now = os.sendfile(connection.fileno(), descriptor, sent, size - sent)
        if not now:
            raise OSError("the batch ends early")
        sent += now
