"""Status lines of Headrace itself, on stderr."""

from __future__ import annotations

import sys
from contextlib import suppress


def print_status(line: str) -> None:
    """Print a status line, which says that it is Headrace's."""
    write_status(f"headrace: {line}\n")


def write_status(text: str) -> None:
    """Write text to stderr as it is; ignore errors, such as a closed pipe or a full disk."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
