"""Small files of the kernel, read by as few steps as can be: they are looked at again and again."""

from __future__ import annotations

import os

_MOST_BYTES = 1 << 14


def read(path: str) -> bytes:
    """Return what is in a file of /proc, up to 16 KB.

    Raises:
        OSError: It is not there, or belongs to someone else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
