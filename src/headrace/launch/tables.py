"""Lines for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

_COLUMNS = 80
_MOST_LINES = 3
_LABEL = 14


def pairs(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield lines of labels and what they say; "" goes on with the label before."""
    for label, text in facts:
        yield filled(f"{label:<{_LABEL}}", text)


def filled(head: str, text: str) -> str:
    """Return a text behind a head, in lines; of one that is too long, how long it is.

    Args:
        head: What comes before it.
        text: Anything.
    """
    lines = textwrap.wrap(
        text, _COLUMNS, initial_indent=head, subsequent_indent=" " * min(len(head), _LABEL),
        break_on_hyphens=False, drop_whitespace=False,
    ) or [head]  # fmt: skip
    if len(lines) > _MOST_LINES and len(text) > 3 * _COLUMNS:
        last = f" ... ({len(text):,} characters)"
        lines = lines[:_MOST_LINES]
        lines[-1] = lines[-1][: _COLUMNS - len(last)] + last
    return "\n".join(line.rstrip() for line in lines)
