"""Hints in error messages: the valid names, and the one closest to a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean X?" with the closest known name, ignoring case; "" if none is close."""
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    return f" Did you mean {lower[near[0]]}?" if near else ""


def choices_hint(name: str, known: Sequence[str]) -> str:
    """Return the end of a message about a wrong name: the known names, and the closest one."""
    return f": it is one of {', '.join(known)}.{did_you_mean(name, known)}"
