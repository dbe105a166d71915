"""Arguments of loaders that a run is to use in place of the script's, as they are written."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from headrace.core.errors import UsageError

_INTEGERS = {"num_workers": 0, "prefetch_factor": 1}
"""Whole numbers, and the least that each may be."""
_SWITCHES = frozenset({"pin_memory", "persistent_workers"})
_WORDS = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Override:
    """One argument of loaders.

    Attributes:
        name: As torch's DataLoader calls it.
        value: What it is to be.
        place: "train.py:40": only loaders that are constructed there; "" for all.
    """

    name: str
    value: int | bool
    place: str = ""

    def __str__(self) -> str:
        """Return it as it is written: num_workers=8, or num_workers@train.py:40=8."""
        value = str(self.value)
        if self.name in _SWITCHES:
            value = "on" if self.value else "off"
        return f"{self.name}@{self.place}={value}" if self.place else f"{self.name}={value}"


def parse_overrides(text: str) -> tuple[Override, ...]:
    """Return what "num_workers=8,pin_memory=on,prefetch_factor@train.py:40=4" says.

    Raises:
        UsageError: A name that does not exist, or a value that it cannot have.
    """
    return tuple(_parse(part.strip()) for part in text.split(",") if part.strip())


def _parse(part: str) -> Override:
    name, equals, value = part.rpartition("=")
    name, _, place = name.partition("@")
    known = [*_INTEGERS, *sorted(_SWITCHES)]
    if not equals or name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"{part!r}: write NAME=VALUE, with one of {', '.join(known)}.{meant}")
    if name in _SWITCHES:
        if value.lower() not in _WORDS:
            raise UsageError(f"{part!r}: {name} is on or off.")
        return Override(name, _WORDS[value.lower()], place)
    least = _INTEGERS[name]
    if not value.isdecimal() or int(value) < least:
        raise UsageError(f"{part!r}: {name} is a whole number, {least} or more.")
    return Override(name, int(value), place)
