"""The protocol between offload proxy and offload server: authentication, and the loader spec.

Both know the job's key. Each proves it to the other by an HMAC-SHA-256 of two nonces, one from
either side; then frames go both ways, a header and a body each, with codes by keys of the
connection (`frames.py`).
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from headrace.core.errors import LaunchError, LoaderError
from headrace.offload.frames import SessionKeys

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


class ByteStream(Protocol):
    """What authentication needs of a connected socket."""

    def settimeout(self, seconds: float, /) -> None:
        """Limit how long a call may take."""

    def sendall(self, content: bytes, /) -> None:
        """Send bytes; raises OSError."""

    def recv(self, size: int, /) -> bytes:
        """Return up to `size` bytes, none at the end; raises OSError."""


_PROGRAM = b"headrace batches "
VERSION = 3  # of the protocol; 2 had frames without codes
_MAGIC = _PROGRAM + b"%d" % VERSION
_NONCE_BYTES = 32
_PROOF_BYTES = 32


class AuthenticationError(LaunchError):
    """The other side does not know the job's key, or uses another protocol."""


class VersionError(AuthenticationError):
    """The other side uses another version of the protocol."""

    @classmethod
    def of(cls, content: bytes) -> VersionError | None:
        """Return the error of what the other side has sent first; None: it names no version."""
        version = content.removeprefix(_PROGRAM)[:1]
        if not content.startswith(_PROGRAM) or not version.isdigit():
            return None
        return cls(
            f"The other side has version {version.decode()} of offload's protocol, this one "
            f"{VERSION}. Install the same version of Headrace on every host."
        )


def authenticate_to_server(connection: ByteStream, key: bytes, longest_s: float) -> SessionKeys:
    """Authenticate to a server, and check its proof; raises AuthenticationError, OSError."""
    deadline_s = time.monotonic() + longest_s
    own_nonce = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(_MAGIC + own_nonce)
    try:
        reply = _receive_exactly(connection, _NONCE_BYTES + _PROOF_BYTES, deadline_s)
    except EOFError:
        raise AuthenticationError(
            "The other side has hung up: it is another program, or an older version of Headrace. "
            "Install the same version on every host."
        ) from None
    if (other := VersionError.of(reply)) is not None:
        raise other
    their_nonce, proof = reply[:_NONCE_BYTES], reply[_NONCE_BYTES:]
    _check_proof(proof, _proof(key, b"station", own_nonce, their_nonce))
    connection.sendall(_proof(key, b"receiver", their_nonce, own_nonce))
    return SessionKeys.derive(key, own_nonce, their_nonce)


def authenticate_client(connection: ByteStream, key: bytes, longest_s: float) -> SessionKeys:
    """Authenticate a proxy, and prove the key to it; raises AuthenticationError, OSError."""
    deadline_s = time.monotonic() + longest_s
    try:
        hello = _receive_exactly(connection, len(_MAGIC) + _NONCE_BYTES, deadline_s)
        if not hello.startswith(_MAGIC):
            if (other := VersionError.of(hello)) is not None:
                connection.sendall(_MAGIC.ljust(_NONCE_BYTES + _PROOF_BYTES, b"\0"))
                raise other
            raise AuthenticationError("This is another program.")
        their_nonce, own_nonce = hello[len(_MAGIC) :], secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(own_nonce + _proof(key, b"station", their_nonce, own_nonce))
        proof = _receive_exactly(connection, _PROOF_BYTES, deadline_s)
    except EOFError:
        raise AuthenticationError("The other side has hung up.") from None
    _check_proof(proof, _proof(key, b"receiver", own_nonce, their_nonce))
    return SessionKeys.derive(key, their_nonce, own_nonce)


def _proof(key: bytes, side: bytes, their_nonce: bytes, own_nonce: bytes) -> bytes:
    return hmac.digest(key, _MAGIC + side + their_nonce + own_nonce, "sha256")


def _check_proof(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise AuthenticationError("The other side does not know this job's key.")


def _receive_exactly(connection: ByteStream, size: int, deadline_s: float) -> bytes:
    content = b""
    while len(content) < size:
        connection.settimeout(max(0.001, deadline_s - time.monotonic()))
        piece = connection.recv(size - len(content))
        if not piece:
            raise EOFError
        content += piece
    return content
