"""How many unreadable files may be left out."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.errors import TooManyBadSamplesError
from headrace.data.shards.faults import BadFile

_SHOWN = 100


def check_budget(bad: Sequence[BadFile], max_bad: int, url: str, *, complete: bool) -> None:
    """Raise TooManyBadSamplesError, naming the files, where more are bad than may be.

    Args:
        bad: What was left out.
        max_bad: How many may be.
        url: The source.
        complete: Whether all of the source was looked at.
    """
    if complete and len(bad) <= max_bad:
        return
    lines = [f"  {each.file}: {each.reason}" for each in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        lines.append(f"  and {len(bad) - _SHOWN} more")
    advice = (
        f"Correct or remove them, or leave them out with --max-bad {len(bad)}."
        if complete
        else "Packing stopped early, because so many are bad. Is this the right source?"
    )
    raise TooManyBadSamplesError(
        f"{url}: {len(bad)} files cannot be used, {max_bad} may be left out (--max-bad):\n"
        + "\n".join(lines)
        + f"\n{advice}"
    )
