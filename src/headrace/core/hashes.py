"""Hashes whose library is loaded when the first is asked for.

`hashlib` brings OpenSSL, 5 MB that most workers never use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash


def blake2b(data: bytes, size_bytes: int) -> bytes:
    """Return the BLAKE2b hash of `data`, 1 to 64 bytes long."""
    import hashlib

    return hashlib.blake2b(data, digest_size=size_bytes).digest()


def sha256() -> _Hash:
    """Return a new SHA-256 state."""
    import hashlib

    return hashlib.sha256()
