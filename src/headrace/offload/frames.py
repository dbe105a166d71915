"""The frames of the offload protocol: kinds, headers, and the codes that authenticate them.

Who cannot compute the codes cannot add, alter, repeat or drop a frame.

Each direction of a connection has a key of its own, derived from the job's key and the nonces of
both sides. A frame's number is part of its codes, so a frame that comes twice, late or from another
connection is refused, as is one after a frame that was dropped. The header has a code of its own
(keyed BLAKE2b, RFC 7693), which is checked before its numbers are used. The body has a Poly1305
code (RFC 8439) by a key of its own, as in ChaCha20-Poly1305; it costs a sixth of HMAC-SHA-256
(`benchmarks/frame_codes.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

_HEADER = struct.Struct("<qqqqqqqq")
HEADER_BYTES = _HEADER.size
CODE_BYTES = 16
_KEY_BYTES = 32


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKeys:
    """The keys of both directions of one connection, known only to its two ends."""

    to_server: bytes = field(repr=False)
    to_proxy: bytes = field(repr=False)

    @classmethod
    def derive(cls, key: bytes, proxy_nonce: bytes, server_nonce: bytes) -> SessionKeys:
        """Return the keys of the connection that was opened with these nonces."""
        nonces = proxy_nonce + server_nonce
        return cls(
            to_server=hmac.digest(key, b"frames to the server" + nonces, "sha256"),
            to_proxy=hmac.digest(key, b"frames to the proxy" + nonces, "sha256"),
        )


class FrameError(ValueError):
    """A frame is not the next one that the other side has sent."""


class BodyCode(Protocol):
    """The code of a body, of which pieces are added in their order."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add a piece."""

    def finalize(self) -> bytes:
        """Return the code."""


class FrameCodes:
    """The codes of the frames of one direction, in the order of the frames."""

    def __init__(self, key: bytes) -> None:
        # Only who sends or receives frames imports it.
        from cryptography.hazmat.primitives.poly1305 import Poly1305

        self._new_poly1305 = Poly1305
        self._key = key
        self._number = 0

    def next_header(self, header: bytes | bytearray | memoryview) -> bytes:
        """Return the code of the next frame's header."""
        self._number += 1
        return self._hash(b"header", header, CODE_BYTES)

    def body(self) -> BodyCode:
        """Return the code of the same frame's body, to which the body is to be added."""
        return self._new_poly1305(self._hash(b"body", b"", _KEY_BYTES))

    def seal(self, header: bytes, body: bytes = b"") -> bytes:
        """Return a frame's bytes with its codes."""
        sealed = header + self.next_header(header)
        if not body:
            return sealed
        code = self.body()
        code.update(body)
        return sealed + body + code.finalize()

    def check_header(self, content: bytes | bytearray) -> bytes:
        """Return the next header from its bytes with their code; raises FrameError."""
        header, code = bytes(content[:-CODE_BYTES]), bytes(content[-CODE_BYTES:])
        _check(code, self.next_header(header))
        return header

    def _hash(self, purpose: bytes, content: bytes | bytearray | memoryview, size: int) -> bytes:
        state = hashlib.blake2b(
            self._number.to_bytes(8, "little"), key=self._key, person=purpose, digest_size=size
        )
        state.update(content)
        return state.digest()


def check_body(code: bytes | bytearray, expected: BodyCode) -> None:
    """Raise FrameError for a body that is not the one that was sent."""
    _check(bytes(code), expected.finalize())


def _check(code: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(code, expected):
        raise FrameError("a frame is not the one that the other side has sent")
