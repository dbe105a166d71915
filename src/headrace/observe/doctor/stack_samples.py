"""Stack samples of processes: the user's own line, the library call below it, and the hotspots."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from headrace.core.source_location import is_library
from headrace.observe.doctor.findings import Cause
from headrace.observe.whatif.tables import Columns, Flags, Ints, group_rows, select_rows

_ONE_LINE = 0.5
_LINE = re.compile(r"[0-9]+|None|-1|")
"""How a line is written; not a number where the interpreter had none: between two lines of a loop,
and in code that is generated."""
_SECOND_NS = 1_000_000_000
_FINE_NS = 3 * _SECOND_NS
"""What was added up over no longer than this is as it was written: about a second."""
_CALLS_MANY = re.compile(
    r"(^|\.)(__getitem__|__getitems__|__iter__|__call__|forward|main|<module>)$"
)
"""Functions whose lines do different things: a line that takes half of one is named alone. Of other
functions the whole is at fault, at its hottest line: two lines of a loop are one fault."""


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One frame of a stack; its line is 0 where the interpreter was between lines."""

    file: str
    line: int
    function: str

    @property
    def is_user(self) -> bool:
        """Whether the code is the user's: not installed, not Python's, not Headrace's."""
        return not _is_library(self.file)

    def __str__(self) -> str:
        """Return the end of the file's path and the function: PIL/Image.py:resize."""
        return f"{'/'.join(Path(self.file).parts[-2:])}:{self.function}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackSample:
    """A stack in which main threads of a rank or its workers were seen.

    Attributes:
        frames: From the outermost in.
        rank: Of which rank.
        phase: What the process was doing.
        rows: When: the rows of the table `stacks` that it is made of.
        wall_ns: Wall time it stands for.
        cpu_ns: CPU time it stands for.
        ran_since_s: When the run began, in seconds since 1970, for a look at its source; None
            where not known.
    """

    frames: tuple[StackFrame, ...]
    rank: int
    phase: str
    rows: Columns
    wall_ns: float
    cpu_ns: float
    ran_since_s: float | None = None

    @property
    def own_frame(self) -> StackFrame:
        """The innermost frame of the user's code; where there is none, the innermost of all."""
        return next((frame for frame in reversed(self.frames) if frame.is_user), self.frames[-1])

    @property
    def calls(self) -> tuple[StackFrame, ...]:
        """The library frames below the user's, outermost first."""
        inner: list[StackFrame] = []
        for frame in reversed(self.frames):
            if frame.is_user:
                break
            inner.append(frame)
        return tuple(reversed(inner)) if len(inner) < len(self.frames) else ()

    def passes(self, pattern: re.Pattern[str]) -> bool:
        """Whether any frame matches, as file:function."""
        return any(_matches(pattern, frame.file, frame.function) for frame in self.frames)

    def only(self, where: Flags) -> StackSample:
        """Return it as it was seen in some of its rows."""
        rows = select_rows(self.rows, where)
        wall_ns, cpu_ns = _sums(rows)
        return replace(self, rows=rows, wall_ns=wall_ns, cpu_ns=cpu_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hotspot:
    """A line of code and the time spent there.

    Attributes:
        frame: The user's line.
        call: The library call below it in which most of the time went; empty where there is none.
        share: Of the time of all sightings, 0 to 1.
        cpu_share: CPU time over wall time there.
    """

    frame: StackFrame
    call: str
    share: float
    cpu_share: float

    def cause(self, transform: str = "") -> Cause:
        """Return it as the cause of a finding."""
        function = f"{self.frame.function} > {self.call}" if self.call else self.frame.function
        return Cause(
            file=self.frame.file,
            line=self.frame.line,
            function=function,
            transform=transform,
            share=self.share,
        )


def read_stack_samples(
    stacks: Columns, where: Flags, ran_since_s: float | None = None
) -> tuple[StackSample, ...]:
    """Return every stack once for each rank and phase; unreadable ones are left out.

    Args:
        stacks: The table.
        where: Its rows that count.
        ran_since_s: As in `StackSample`.
    """
    rows = select_rows(stacks, where)
    frames_of: dict[str, tuple[StackFrame, ...]] = {}
    found: list[StackSample] = []
    for places in group_rows(rows, ("stack", "rank", "phase")):
        same = select_rows(rows, places)
        text = str(same["stack"][0])
        if text not in frames_of:
            parsed = (_frame(line) for line in text.split("\n"))
            frames_of[text] = tuple(frame for frame in parsed if frame)
        wall_ns, cpu_ns = _sums(same)
        if frames_of[text]:
            found.append(
                StackSample(
                    frames=frames_of[text],
                    rank=int(same["rank"][0]),
                    phase=str(same["phase"][0]),
                    rows=same,
                    wall_ns=wall_ns,
                    cpu_ns=cpu_ns,
                    ran_since_s=ran_since_s,
                )
            )
    return tuple(found)


def end_ns_of(stacks: Columns) -> Ints:
    """Return when the seconds of each row ended; an older version did not record it."""
    ends: Ints = np.maximum(stacks["end_ns"], stacks["start_ns"] + _SECOND_NS)
    return ends


def samples_during(
    sightings: Iterable[StackSample], begin_ns: Mapping[int, Ints], end_ns: Mapping[int, Ints]
) -> list[StackSample]:
    """Return what was seen at some times, by the finest rows that there are of them.

    A row that was added up over minutes holds more than a short time in it; so where any of the
    times falls into the first minutes of a run, or its last, which are kept by the second, those
    tell.

    Args:
        sightings: The stacks.
        begin_ns: When the times began, ascending, a rank; they do not overlap.
        end_ns: When each ended.
    """
    near: list[tuple[StackSample, Flags, Flags]] = []
    for sighting in sightings:
        if sighting.rank not in begin_ns:
            continue
        inside = overlaps(sighting, begin_ns[sighting.rank], end_ns[sighting.rank])
        lasted_ns = end_ns_of(sighting.rows) - sighting.rows["start_ns"]
        near.append((sighting, inside, inside & (lasted_ns <= _FINE_NS)))
    by_second = any(fine.any() for _, _, fine in near)
    kept = [(sighting, fine if by_second else inside) for sighting, inside, fine in near]
    return [sighting.only(where) for sighting, where in kept if where.any()]


def overlaps(sighting: StackSample, begin_ns: Ints, end_ns: Ints) -> Flags:
    """Tell which rows of a sighting have part in any of some times, ascending and apart."""
    # The first time that ends after a row's begin is the only one that matters.
    first = np.searchsorted(end_ns, sighting.rows["start_ns"])
    starts = np.append(begin_ns, np.iinfo(np.int64).max)
    inside: Flags = starts[first] <= end_ns_of(sighting.rows)
    return inside


def find_hotspot(
    sightings: Iterable[StackSample], total_ns: float | None = None, *, off_cpu_only: bool = False
) -> Hotspot | None:
    """Return the place that took the most time; None where nothing was seen.

    Args:
        sightings: The stacks.
        total_ns: What shares are of; by default the time of all the sightings.
        off_cpu_only: Count time off the CPU alone.
    """
    seen = [(s, max(s.wall_ns - s.cpu_ns, 0.0) if off_cpu_only else s.wall_ns) for s in sightings]
    total = sum(weight for _, weight in seen) if total_ns is None else total_ns
    if total <= 0 or not seen:
        return None
    lines: dict[StackFrame, float] = {}
    functions: dict[tuple[str, str], float] = {}
    for sighting, weight in seen:
        frame = sighting.own_frame
        lines[frame] = lines.get(frame, 0.0) + weight
        key = (frame.file, frame.function)
        functions[key] = functions.get(key, 0.0) + weight
    function = max(functions, key=lambda key: functions[key])
    frame = max(
        (line for line in lines if (line.file, line.function) == function),
        key=lambda line: (line.line > 0, lines[line]),
    )
    many = _CALLS_MANY.search(frame.function) is not None
    by_line = many and lines[frame] >= _ONE_LINE * functions[function]
    there = [
        (sighting, weight)
        for sighting, weight in seen
        if sighting.own_frame == frame
        or (not by_line and _is_same_function(sighting.own_frame, frame))
    ]
    wall = sum(sighting.wall_ns for sighting, _ in there)
    return Hotspot(
        frame=frame,
        call=_most_called(there),
        share=min((lines[frame] if by_line else functions[function]) / total, 1.0),
        cpu_share=min(sum(sighting.cpu_ns for sighting, _ in there) / max(wall, 1.0), 1.0),
    )


def off_cpu_ns(sightings: Iterable[StackSample]) -> float:
    """Return how long the sightings stand for time off the CPU."""
    return sum(max(sighting.wall_ns - sighting.cpu_ns, 0.0) for sighting in sightings)


def _is_same_function(one: StackFrame, other: StackFrame) -> bool:
    return (one.file, one.function) == (other.file, other.function)


def _most_called(there: list[tuple[StackSample, float]]) -> str:
    calls: dict[str, float] = {}
    for sighting, weight in there:
        name = str(sighting.calls[0]) if sighting.calls else ""
        calls[name] = calls.get(name, 0.0) + weight
    return max(calls, key=lambda name: calls[name], default="")


def _sums(rows: Columns) -> tuple[float, float]:
    return float(rows["wall_ns"].sum()), float(rows["cpu_ns"].sum())


@lru_cache(maxsize=4096)
def _is_library(file: str) -> bool:
    return is_library(file)


@lru_cache(maxsize=65_536)
def _matches(pattern: re.Pattern[str], file: str, function: str) -> bool:
    return pattern.search(f"{file}:{function}") is not None


@lru_cache(maxsize=65_536)  # stacks share most of their lines; a live view reads them each second
def _frame(text: str) -> StackFrame | None:
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or not _LINE.fullmatch(parts[1]):  # a text that was cut short
        return None
    line = int(parts[1]) if parts[1].isdecimal() else 0
    return StackFrame(file=parts[0], line=line, function=parts[2])
