"""Hints in error messages: the valid names, and the one closest to what was written."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean X?" of the name that is nearest, whatever its case; "": none is near.

    Args:
        name: As it was written.
        known: What there is.
    """
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    return f" Did you mean {lower[near[0]]}?" if near else ""


def choices_hint(name: str, known: Sequence[str]) -> str:
    """Return the end of a message that refuses a name: what there is, and the nearest of it."""
    return f": it is one of {', '.join(known)}.{did_you_mean(name, known)}"
