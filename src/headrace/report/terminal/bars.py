"""Bars of blocks: one share, many shares in a row, the phases of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rich.text import Text

from headrace.report.figures.drawing import PHASE_COLOURS

PHASE_GLYPHS = {
    "data_wait": "█",
    "copy": "▓",
    "forward": "▒",
    "backward": "░",
    "sync": "▚",
    "optimizer": "▪",
    "other": "·",
}
"""Told apart by more than colour, which a file or a plain terminal does not have."""
_FULL, _EMPTY = "█", "·"
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LEAST_WIDTH, _MOST_WIDTH = 3, 20


def stacked(shares: Mapping[str, float], width: int) -> Text:
    """Return the phases of a step as one bar, parts rounded so that they add up to it.

    Args:
        shares: The share of each phase, 0 to 1.
        width: Its length in characters.
    """
    names = [name for name in PHASE_GLYPHS if name in shares]
    ends = np.cumsum([max(shares[name], 0.0) for name in names])
    total = max(float(ends[-1]), 1e-9) if len(ends) else 1.0
    places = [0, *(round(width * float(end) / total) for end in ends)]
    text = Text(no_wrap=True)
    for name, begin, end in zip(names, places[:-1], places[1:], strict=True):
        text.append(PHASE_GLYPHS[name] * (end - begin), PHASE_COLOURS[name])
    return text


def bar(share: float | None, width: int) -> Text:
    """Return a share, 0 to 1, as a bar of so many characters; dots where it is not known."""
    filled = 0 if share is None else round(width * min(max(share, 0.0), 1.0))
    text = Text(_FULL * filled, style=_heat(share), no_wrap=True)
    return text.append(_EMPTY * (width - filled), "bright_black")


def cells(values: Sequence[tuple[int, float | None]], width: int, most_lines: int) -> list[Text]:
    """Return numbered shares, such as those of cores, as small bars in a few lines.

    Each has its number and percentage where there is room; of more it is one block, as high as
    the core is busy.

    Args:
        values: Number and share, 0 to 1, of each.
        width: Length of a line in characters.
        most_lines: How many lines there may be, where each has its own bar.
    """
    if not values:
        return []
    digits = len(str(max(number for number, _ in values)))
    in_a_line = -(-len(values) // most_lines)
    around = digits + len(" ") + len(" 100%") + len("  ")
    length = min((width + len("  ")) // in_a_line - around, _MOST_WIDTH)
    if length < _LEAST_WIDTH:
        return _blocks(values, width)
    in_a_line = min((width + len("  ")) // (around + length), len(values))
    lines = []
    for first in range(0, len(values), in_a_line):
        line = Text(no_wrap=True)
        for number, share in values[first : first + in_a_line]:
            line.append("  " if line else "").append(f"{number:>{digits}} ")
            line.append_text(bar(share, length)).append(f" {percent(share):>4}")
        lines.append(line)
    return lines


def percent(share: float | None) -> str:
    """Return a share, 0 to 1, in whole percent: 42%; a dash where it is not known."""
    return "-" if share is None else f"{100.0 * share:.0f}%"


def _blocks(values: Sequence[tuple[int, float | None]], width: int) -> list[Text]:
    lines = []
    for first in range(0, len(values), width):
        line = Text(no_wrap=True)
        for _, share in values[first : first + width]:
            height = 0 if share is None else round(share * (len(_EIGHTHS) - 1))
            line.append(_EIGHTHS[height] if height else _EMPTY, _heat(share))
        lines.append(line)
    return lines


def _heat(share: float | None) -> str:
    if share is None:
        return "bright_black"
    return "red" if share >= 0.9 else "yellow" if share >= 0.6 else "green"
