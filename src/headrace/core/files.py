"""Files that are there whole or not at all, and how many may be open."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

_MANY = 65_536


def allow_many_files() -> None:
    """Let this process, and those it starts, have as many files open as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MANY if hard == resource.RLIM_INFINITY else min(hard, _MANY)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def write_whole(path: Path, text: str) -> None:
    """Write a text file, as UTF-8, so that nobody ever finds half of it there.

    Args:
        path: The file; its folder exists.
        text: What it is to say.

    Raises:
        OSError: It cannot be written; what was there before still is.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8", newline="\n")
        draft.replace(path)
    except BaseException:
        with suppress(OSError):  # it may never have come into being
            draft.unlink()
        raise
