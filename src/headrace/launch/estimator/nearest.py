"""What a message says of a name that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def is_one_of(name: str, known: Sequence[str]) -> str:
    """Return the end of a message that refuses a name: what there is, and the nearest of it."""
    near = difflib.get_close_matches(name, known, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return f": it is one of {', '.join(known)}.{meant}"
