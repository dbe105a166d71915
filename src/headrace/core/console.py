"""Status lines of Headrace itself, on stderr."""

from __future__ import annotations

import sys
from contextlib import suppress


def print_status(text: str) -> None:
    """Write text to stderr; ignore errors, such as a closed pipe or a full disk."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
