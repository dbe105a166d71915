"""Loader arguments and thread counts that a run uses in place of the script's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.core.errors import UsageError
from headrace.core.suggestions import did_you_mean

APPLIED = "applied"
_LONGEST_NAME = 200
WORKER_THREADS, RANK_THREADS = "worker_threads", "rank_threads"
"""Threads that libraries (OpenMP, BLAS, OpenCV) may use in each worker, and in each rank."""
_PROCESS_ARGUMENTS = frozenset({WORKER_THREADS, RANK_THREADS})
_INTEGERS = {"num_workers": 0, "prefetch_factor": 1, WORKER_THREADS: 1, RANK_THREADS: 1}
"""Whole numbers, and the least that each may be."""
_SWITCHES = frozenset({"pin_memory", "persistent_workers"})
_WORDS = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Override:
    """One argument of loaders, or how many threads processes of the job may use.

    Attributes:
        name: As torch's DataLoader calls it; or `worker_threads`, `rank_threads`.
        value: What it is to be.
        place: "train.py:40": only loaders that are constructed there; "" for all.
    """

    name: str
    value: int | bool
    place: str = ""

    @property
    def is_loader_argument(self) -> bool:
        """Whether it is an argument of loaders."""
        return self.name not in _PROCESS_ARGUMENTS

    @property
    def mark(self) -> str:
        """The name of the file that says that it was applied, in `APPLIED` of the run's folder."""
        return str(self).replace("/", "_")[-_LONGEST_NAME:]

    def __str__(self) -> str:
        """Return it as it is written: num_workers=8, or num_workers@train.py:40=8."""
        value = str(self.value)
        if self.name in _SWITCHES:
            value = "on" if self.value else "off"
        return f"{self.name}@{self.place}={value}" if self.place else f"{self.name}={value}"


def thread_count(overrides: Iterable[Override], name: str) -> int | None:
    """Return the threads that `worker_threads` or `rank_threads` asks for; None where not told."""
    return next((int(each.value) for each in overrides if each.name == name), None)


def parse_overrides(text: str) -> tuple[Override, ...]:
    """Return what "num_workers=8,pin_memory=on,prefetch_factor@train.py:40=4" says.

    Raises:
        UsageError: A name that does not exist, or a value that it cannot have.
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
    least = _INTEGERS[name]
    if not value.isdecimal() or int(value) < least:
        raise UsageError(f"{part!r}: {name} is a whole number, {least} or more.")
    return Override(name, int(value), place)
