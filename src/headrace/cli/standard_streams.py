"""Standard streams that whoever started this closed, as by `>&-`: here they are /dev/null."""

from __future__ import annotations

import os
import sys


def open_closed_streams() -> None:
    """Open /dev/null in place of each standard stream that is closed.

    Python has None for such a stream, and the next file opened would get its descriptor. Call this
    before anything else opens a file.
    """
    for descriptor in range(3):
        if not _is_open(descriptor):
            # The lowest that is free, so this very one; what is started inherits it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # For as long as the process lives, as Python opens its own.
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
