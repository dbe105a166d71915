"""Checksums of kept files."""

from __future__ import annotations

import hashlib
from pathlib import Path

_PIECE_BYTES = 4 * 1024 * 1024
_SIZE_BYTES = 16


def new_digest() -> hashlib.blake2b:
    """Return the state of a new checksum."""
    return hashlib.blake2b(digest_size=_SIZE_BYTES)


def digest_of(path: Path) -> str:
    """Return a file's checksum in hexadecimal digits; raises OSError."""
    digest = new_digest()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
