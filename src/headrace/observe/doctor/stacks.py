"""Where in the code a process was seen: the user's own line, and the library call below it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.core.places import is_library
from headrace.observe.doctor.model import Cause
from headrace.observe.whatif.tables import Columns, Flags

_ONE_LINE = 0.5
_LINE = re.compile(r"[0-9]+|None|-1|")
"""How a line is written; not a number where the interpreter had none: between two lines of a loop,
and in code that is generated."""
_CALLS_MANY = re.compile(
    r"(^|\.)(__getitem__|__getitems__|__iter__|__call__|forward|main|<module>)$"
)
"""Functions whose lines do different things: a line that takes half of one is named alone. Of other
functions the whole is at fault, at its hottest line: two lines of a loop are one fault."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack; its line is 0 where the interpreter was between lines."""

    file: str
    line: int
    function: str

    @property
    def is_user(self) -> bool:
        """Whether the code is the user's: not installed, not Python's, not Headrace's."""
        return not is_library(self.file)

    def __str__(self) -> str:
        """Return the end of the file's path and the function: PIL/Image.py:resize."""
        return f"{'/'.join(Path(self.file).parts[-2:])}:{self.function}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A stack in which a main thread was seen, over some seconds.

    Attributes:
        frames: From the outermost in.
        rank: Of which rank.
        phase: What the process was doing.
        start_ns: When these seconds began.
        wall_ns: Wall time it stands for.
        cpu_ns: CPU time it stands for.
    """

    frames: tuple[Frame, ...]
    rank: int
    phase: str
    start_ns: int
    wall_ns: float
    cpu_ns: float

    @property
    def own_frame(self) -> Frame:
        """The innermost frame of the user's code; where there is none, the innermost of all."""
        return next((frame for frame in reversed(self.frames) if frame.is_user), self.frames[-1])

    @property
    def calls(self) -> tuple[Frame, ...]:
        """The library frames below the user's, outermost first."""
        inner: list[Frame] = []
        for frame in reversed(self.frames):
            if frame.is_user:
                break
            inner.append(frame)
        return tuple(reversed(inner)) if len(inner) < len(self.frames) else ()

    def passes(self, pattern: re.Pattern[str]) -> bool:
        """Whether any frame matches, as file:function."""
        return any(pattern.search(f"{frame.file}:{frame.function}") for frame in self.frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of code and the time spent there.

    Attributes:
        frame: The user's line.
        call: The library call below it in which most of the time went; empty where there is none.
        share: Of the time of all sightings, 0 to 1.
        cpu_share: CPU time over wall time there.
    """

    frame: Frame
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


def read_sightings(stacks: Columns, where: Flags) -> tuple[Sighting, ...]:
    """Return the rows of the table `stacks` that a mask chooses; unreadable ones are left out."""
    found: list[Sighting] = []
    for place in where.nonzero()[0]:
        frames = tuple(
            frame for text in str(stacks["stack"][place]).split("\n") if (frame := _frame(text))
        )
        if frames:
            found.append(
                Sighting(
                    frames=frames,
                    rank=int(stacks["rank"][place]),
                    phase=str(stacks["phase"][place]),
                    start_ns=int(stacks["start_ns"][place]),
                    wall_ns=float(stacks["wall_ns"][place]),
                    cpu_ns=float(stacks["cpu_ns"][place]),
                )
            )
    return tuple(found)


def hottest(
    sightings: Iterable[Sighting], total_ns: float | None = None, *, weigh_waiting: bool = False
) -> Place | None:
    """Return the place that took the most time; None where nothing was seen.

    Args:
        sightings: The stacks.
        total_ns: What shares are of; by default the time of all the sightings.
        weigh_waiting: Count time off the CPU alone.
    """
    seen = [(s, max(s.wall_ns - s.cpu_ns, 0.0) if weigh_waiting else s.wall_ns) for s in sightings]
    total = sum(weight for _, weight in seen) if total_ns is None else total_ns
    if total <= 0 or not seen:
        return None
    lines: dict[Frame, float] = {}
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
        if sighting.own_frame == frame or (not by_line and _same(sighting.own_frame, frame))
    ]
    wall = sum(sighting.wall_ns for sighting, _ in there)
    return Place(
        frame=frame,
        call=_most_called(there),
        share=min((lines[frame] if by_line else functions[function]) / total, 1.0),
        cpu_share=min(sum(sighting.cpu_ns for sighting, _ in there) / max(wall, 1.0), 1.0),
    )


def waiting_ns(sightings: Iterable[Sighting]) -> float:
    """Return how long the sightings stand for time off the CPU."""
    return sum(max(sighting.wall_ns - sighting.cpu_ns, 0.0) for sighting in sightings)


def _same(one: Frame, other: Frame) -> bool:
    return (one.file, one.function) == (other.file, other.function)


def _most_called(there: list[tuple[Sighting, float]]) -> str:
    calls: dict[str, float] = {}
    for sighting, weight in there:
        name = str(sighting.calls[0]) if sighting.calls else ""
        calls[name] = calls.get(name, 0.0) + weight
    return max(calls, key=lambda name: calls[name], default="")


def _frame(text: str) -> Frame | None:
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or not _LINE.fullmatch(parts[1]):  # a text that was cut short
        return None
    line = int(parts[1]) if parts[1].isdecimal() else 0
    return Frame(file=parts[0], line=line, function=parts[2])
