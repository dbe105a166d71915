"""The connection between a receiver and a station: who may talk, and what is said.

Both know the job's key. Each proves it to the other by a keyed hash (HMAC-SHA-256) of two random
numbers, one from either side; then frames go both ways, a head and a body each.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum

from headrace.core.errors import LaunchError

_MAGIC = b"headrace batches 2"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_GONE_MS = 10_000  # what is sent is not taken for so long
_HEAD = struct.Struct("<qqqqqqqq")
HEAD_BYTES = _HEAD.size


class Kind(IntEnum):
    """What a frame says. The receiver says the first six."""

    RECIPE = 1  # a: its number; body: `RecipeMessage`
    ORDER = 2  # make batch `ask`; a: the strand of an iterable dataset; body: the order
    RECEIVED = 3  # batch `ask` is here, its memory is free
    WANT = 4  # a: how many batches the rank would have of this host
    FORGET = 5  # what was asked for so far is needed no more
    RECORD = 6  # a: 1, workers are to record what they do; 0, no more
    # Of `ask`; a: the answer, b: the worker, c: where the structure is, d: nanoseconds until it
    # had a worker, e: ... and with that; body: all of it.
    BATCH = 7
    SHARE = 8  # a: how many orders may be here, b: how many cores make them
    READY = 9  # a: the number of the recipe that can be made
    REFUSED = 10  # a: the number of the recipe that cannot; body: the failure
    BEAT = 11  # this host lives
    ROWS = 12  # body: what workers have recorded, see `RecordedWorkers`


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What comes before a frame's body.

    Attributes:
        kind: What it says.
        ask: The order that it is about.
        a, b, c, d, e: As `kind` explains.
        body_bytes: Length of the body that follows.
    """

    kind: Kind
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
        return _HEAD.pack(self.kind, self.ask, *numbers, self.body_bytes)

    @classmethod
    def unpack(cls, content: bytes | bytearray | memoryview) -> Head:
        """Return the head that `pack` made; ValueError where it is none."""
        kind, ask, a, b, c, d, e, body_bytes = _HEAD.unpack(content)
        return cls(kind=Kind(kind), ask=ask, a=a, b=b, c=c, d=d, e=e, body_bytes=body_bytes)


def frame(kind: Kind, body: bytes = b"", *, ask: int = 0, a: int = 0, b: int = 0) -> bytes:
    """Return a whole frame."""
    return Head(kind=kind, ask=ask, a=a, b=b, body_bytes=len(body)).pack() + body


def prepare(connection: socket.socket) -> None:
    """Have small frames sent at once, and a side that is gone without a word noticed."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE_MS)


def bear_silence(connection: socket.socket, longest_s: float) -> None:
    """Have a side that takes nothing noticed only after so long."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(longest_s * 1000))


class NoEntryError(LaunchError):
    """The other side does not know the job's key, or speaks something else."""


def greet(connection: socket.socket, key: bytes, longest_s: float) -> None:
    """Prove the key to a station, and have it prove it; raises NoEntryError, OSError."""
    deadline_s = time.monotonic() + longest_s
    own = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(_MAGIC + own)
    told = _exactly(connection, _NONCE_BYTES + _PROOF_BYTES, deadline_s)
    others, proof = told[:_NONCE_BYTES], told[_NONCE_BYTES:]
    _check(proof, _proof(key, b"station", own, others))
    connection.sendall(_proof(key, b"receiver", others, own))


def admit(connection: socket.socket, key: bytes, longest_s: float) -> None:
    """Let a receiver in that proves the key; raises NoEntryError, OSError."""
    deadline_s = time.monotonic() + longest_s
    told = _exactly(connection, len(_MAGIC) + _NONCE_BYTES, deadline_s)
    if not told.startswith(_MAGIC):
        raise NoEntryError("This is another program, or another version of Headrace.")
    others, own = told[len(_MAGIC) :], secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(own + _proof(key, b"station", others, own))
    _check(_exactly(connection, _PROOF_BYTES, deadline_s), _proof(key, b"receiver", own, others))


def _proof(key: bytes, side: bytes, theirs: bytes, own: bytes) -> bytes:
    return hmac.digest(key, side + theirs + own, "sha256")


def _check(proof: bytes, right: bytes) -> None:
    if not hmac.compare_digest(proof, right):
        raise NoEntryError("The other side does not know this job's key.")


def _exactly(connection: socket.socket, size: int, deadline_s: float) -> bytes:
    content = b""
    while len(content) < size:
        connection.settimeout(max(0.001, deadline_s - time.monotonic()))
        piece = connection.recv(size - len(content))
        if not piece:
            raise NoEntryError("The other side has hung up: it does not know this job's key.")
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
