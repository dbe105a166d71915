"""Sizes in bytes, durations in seconds, and dollars: parsing and formatting."""

from __future__ import annotations

import math
import re
from numbers import Integral

from headrace.core.errors import UsageError

_SUFFIX_BYTES = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "m": 1000**2, "mb": 1000**2, "g": 1000**3, "gb": 1000**3,
    "t": 1000**4, "tb": 1000**4,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4,
}  # fmt: skip


def parse_bytes(size: str | int) -> int:
    """Return a size such as "128MiB", "1.5 GB" or 4096 in bytes; raises UsageError."""
    amount: float
    if isinstance(size, int | Integral):  # NumPy's, too
        amount, suffix = int(size), ""
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(size))
        suffix = match[2].lower() if match else "?"
        if match is None or suffix not in _SUFFIX_BYTES:
            raise UsageError(f"{size!r} is not a size. Write it as 128MiB, 1.5GB or 4096 (bytes).")
        amount = float(match[1])
    if amount < 0:
        raise UsageError(f"{size!r} is negative; a size is 0 or more bytes.")
    return int(amount * _SUFFIX_BYTES[suffix])


def parse_seconds(duration: str) -> float:
    """Return a duration such as "500ms", "20s", "2min" or "2m" in seconds; raises UsageError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m)\s*", duration)
    if match is None:
        raise UsageError(f"{duration!r} is not a duration. Write it as 500ms, 20s or 2min.")
    return float(match[1]) * {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0}[match[2]]


def format_bytes(size_bytes: float) -> str:
    """Return a size in bytes as text with a binary suffix: "1.21 GiB", "1023 KiB"."""
    suffix = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size_bytes) < 1024:
            break
        size_bytes, suffix = size_bytes / 1024, larger
    digits = ".0f" if suffix == "B" or abs(size_bytes) >= 999.5 else ".3g"
    return f"{size_bytes:{digits}} {suffix}"


def format_seconds(seconds: float) -> str:
    """Return a duration in seconds as text: "0.42 s", "3 min 05 s", "2 h 07 min"."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_usd(usd: float) -> str:
    """Return dollars: with cents, or with three digits that count where they are less than one."""
    if usd >= 1 or usd <= 0:
        return f"{usd:,.2f}"
    return f"{usd:.{2 - math.floor(math.log10(usd))}f}"
