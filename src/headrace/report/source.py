"""The lines of code around a cause, where its file is still there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headrace.records.redaction import HIDDEN, redact

_AROUND = 4
_LARGEST_BYTES = 1_000_000
_LONGEST = 160
_SECRET = re.compile(
    r"((?:token|secret|passw|credential|signature|(?:api|access|private)[-_]?key)\w*"
    r"[\"']?\]?\s*[=:,]\s*[a-z]{0,2})([\"']).*?(?:\2|$)",
    re.IGNORECASE,
)
"""A literal that is given to a name that speaks of a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Lines of a source file.

    Attributes:
        first: Number of the first of them.
        lines: The lines, secrets hidden.
        changed: Whether the file was written after the run began: lines may have moved.
    """

    first: int
    lines: tuple[str, ...]
    changed: bool


def read_excerpt(file: str, line: int, began_s: float | None) -> Excerpt | None:
    """Return the lines around a line; None where they cannot be had.

    Only Python source is read: the path comes from records, and a page may be passed on.

    Args:
        file: The source file, absolute.
        line: The line in question.
        began_s: When the run began, in seconds since 1970; None where not known.
    """
    path = Path(file)
    try:
        if line < 1 or path.suffix != ".py" or not path.is_absolute() or not path.is_file():
            return None
        status = path.stat()
        if status.st_size > _LARGEST_BYTES:
            return None
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return None
    if line > len(lines):
        return None
    first = max(line - _AROUND, 1)
    return Excerpt(
        first=first,
        lines=tuple(_shown(text) for text in lines[first - 1 : line + _AROUND]),
        changed=began_s is not None and status.st_mtime > began_s,
    )


def _shown(text: str) -> str:
    indent = text[: len(text) - len(text.lstrip())]
    hidden = _SECRET.sub(rf"\g<1>\g<2>{HIDDEN}\g<2>", text)
    words = (redact((word,))[0] if "://" in word else word for word in hidden.lstrip().split(" "))
    shown = indent + " ".join(words)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
