"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


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
