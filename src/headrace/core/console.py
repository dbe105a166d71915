"""Status lines of Headrace itself, on stderr."""

from __future__ import annotations

import sys
from contextlib import suppress


def print_status(text: str) -> None:
    """Write text to stderr; where nobody reads that any more, or its disk is full, go on."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
