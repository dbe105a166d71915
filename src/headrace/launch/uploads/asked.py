"""What a side process is asked through its standard input, whose end says that nobody is left."""

from __future__ import annotations

import json
import os
import select
from contextlib import suppress

_UNASKED_S = 60.0


class Asked:
    """Standard input, after the line that told the task."""

    def __init__(self) -> None:
        self._line = b""
        self._over = False

    def within(self, seconds: float) -> bool:
        """Wait so long; return whether the job has ended."""
        if self._over:
            return True
        if select.select([0], [], [], seconds)[0]:
            piece = os.read(0, 4096)
            self._line += piece
            self._over = not piece or piece.endswith(b"\n")
        return self._over

    def end(self) -> tuple[bool, bool, float]:
        """Return whether somebody asked, whether no rank was killed, and a deadline in seconds."""
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(self._line)
            return True, bool(told["clean"]), float(told["deadline_s"])
        return False, False, _UNASKED_S


def first_line() -> str:
    """Return the line that tells the task."""
    with os.fdopen(0, "rb", buffering=0, closefd=False) as told:
        return told.readline().decode()
