"""Overrides of a script's loader arguments and thread counts (`headrace run --apply`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.core.errors import UsageError, did_you_mean

APPLIED = "applied"
_LONGEST_NAME = 200
WORKER_THREADS, RANK_THREADS = "worker_threads", "rank_threads"
"""Threads that libraries (OpenMP, BLAS, OpenCV) may use in each worker, and in each rank."""
_PROCESS_ARGUMENTS = frozenset({WORKER_THREADS, RANK_THREADS})
_INTEGERS = {"num_workers": 0, "prefetch_factor": 1, WORKER_THREADS: 1, RANK_THREADS: 1}
"""Integers with their minimum."""
_SWITCHES = frozenset({"pin_memory", "persistent_workers"})
_WORDS = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Override:
    """An override of a loader argument, or of the threads of the job's processes."""

    name: str  # an argument of torch's DataLoader, or `worker_threads`, `rank_threads`
    value: int | bool
    place: str = ""  # for loaders constructed at this line alone, such as "train.py:40"

    @property
    def is_loader_argument(self) -> bool:
        """Whether it overrides an argument of loaders."""
        return self.name not in _PROCESS_ARGUMENTS

    @property
    def mark(self) -> str:
        """Name of the file in the run folder's `APPLIED` that records that it was applied."""
        return str(self).replace("/", "_")[-_LONGEST_NAME:]

    def __str__(self) -> str:
        """Return it as text: num_workers=8, or num_workers@train.py:40=8."""
        value = str(self.value)
        if self.name in _SWITCHES:
            value = "on" if self.value else "off"
        return f"{self.name}@{self.place}={value}" if self.place else f"{self.name}={value}"


def thread_count(overrides: Iterable[Override], name: str) -> int | None:
    """Return the value of the override `worker_threads` or `rank_threads`; None without it."""
    return next((int(each.value) for each in overrides if each.name == name), None)


def parse_overrides(text: str) -> tuple[Override, ...]:
    """Return the overrides in a text: "num_workers=8,pin_memory=on,prefetch_factor@train.py:40=4".

    Raises UsageError (an unknown name, or an invalid value).
    """
    return tuple(_parse_override(part.strip()) for part in text.split(",") if part.strip())


def _parse_override(part: str) -> Override:
    name, equals, value = part.rpartition("=")
    name, _, place = name.partition("@")
    known = [*_INTEGERS, *sorted(_SWITCHES)]
    if not equals or name not in known:
        meant = did_you_mean(name, known)
        raise UsageError(f"{part!r}: write NAME=VALUE, with one of {', '.join(known)}.{meant}")
    if name in _PROCESS_ARGUMENTS and place:
        raise UsageError(f"{part!r}: {name} is of all loaders. Write {name}={value}.")
    if name in _SWITCHES:
        if value.lower() not in _WORDS:
            raise UsageError(f"{part!r}: {name} is on or off.")
        return Override(name, _WORDS[value.lower()], place)
    minimum = _INTEGERS[name]
    if not value.isdecimal() or int(value) < minimum:
        raise UsageError(f"{part!r}: {name} is a whole number, {minimum} or more.")
    return Override(name, int(value), place)
