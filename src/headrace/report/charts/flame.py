"""The flame view: which code ran, as sampled, from the outermost call in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from headrace.observe.doctor.stack_frames import StackFrame
from headrace.observe.doctor.stack_samples import (
    StackTime,
    read_code_folders,
    read_stack_times,
)
from headrace.observe.whatif.tables import Columns, Flags, Ints, Tables, columns
from headrace.report.charts.base import Chart, ChartSpan, Span, time_axis

USER_COLOUR, LIBRARY_COLOUR, ROOT_COLOUR = "#f2a65a", "#b4c2d6", "#d5dbe3"
ProcessKind = Literal["workers", "ranks"]
CallRole = Literal["root", "user", "library"]
_LEAST_SHARE = 0.003
_MAX_DEPTH = 40
_LONGEST_NAME = 24
_PASSING_FILES = re.compile(r"^headrace/|^torch/utils/data/_utils/(worker|fetch)\.py$")
"""Code that only passes calls on to the dataset: Headrace, and torch's workers and fetchers."""
_WORKER_ENTRY = re.compile(r"(^|\.)(_worker_loop|_bootstrap)$")


@dataclass(slots=True)
class CallNode:
    """A function in the call tree, called from its parent node."""

    frame: StackFrame | None  # None for the root
    wall_ns: float = 0.0  # in it and in what it calls
    cpu_ns: float = 0.0
    below: dict[tuple[str, str], CallNode] = field(default_factory=dict)  # what it calls
    lines: dict[int, float] = field(default_factory=dict)  # time by line of the function

    def add(self, sample: StackTime) -> None:
        """Add a sample's time."""
        self.wall_ns += sample.wall_ns
        self.cpu_ns += sample.cpu_ns

    @property
    def hottest_line(self) -> int:
        """The line with most of the time; 0 if none is known."""
        return max(self.lines, key=lambda line: (line > 0, self.lines[line]), default=0)

    @property
    def depth(self) -> int:
        """Levels of calls, this one included."""
        return 1 + max((call.depth for call in self.below.values()), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlameBox:
    """A function in the flame view, and what it called."""

    name: str
    role: CallRole
    value: float  # seconds in it and in what it calls
    place: str  # its file, and the line with most of the time
    text: str  # its share of the time, and how much of that on a CPU
    below: tuple[FlameBox, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlameChart(Chart):
    """Sampled code over a span of time: boxes as wide as the time in a function."""

    kind: ClassVar[str] = "flame"
    span: Span
    limits: Span
    root: FlameBox


def flame_chart(
    tables: Tables, where: ProcessKind = "workers", span: ChartSpan | None = None
) -> FlameChart | None:
    """Return the code that was sampled in a span of time; None if none was.

    "workers" are sampled while they make batches, "ranks" in their main threads.
    """
    span = span if span is not None else ChartSpan.of(time_axis(tables))
    tree = read_calls(tables, where, span)
    if tree is None:
        return None
    name = "all workers" if where == "workers" else "all ranks"
    return FlameChart(
        span=span.seconds, limits=span.axis.limits, root=_box(tree, name, tree.wall_ns)
    )


def _box(call: CallNode, name: str, total_ns: float) -> FlameBox:
    on_cpu = f"{min(call.cpu_ns / max(call.wall_ns, 1.0), 1.0):.0%}"
    return FlameBox(
        name=_label(call, name),
        role="root" if call.frame is None else "user" if call.frame.is_user else "library",
        value=round(call.wall_ns / 1e9, 6),
        place=_place(call, name),
        text=f"{call.wall_ns / total_ns:.1%} of the time, {on_cpu} of that on a CPU",
        below=tuple(_box(below, function, total_ns) for (_, function), below in call.below.items()),
    )


def _place(call: CallNode, name: str) -> str:
    if call.frame is None:
        return ""
    line = f", mostly line {call.hottest_line}" if call.hottest_line else ""
    return f"{name} in {call.frame.file}{line}"


def _label(call: CallNode, name: str) -> str:
    short = name.rsplit("<locals>.", 1)[-1]
    if call.frame is not None and call.frame.is_user:
        line = f":{call.hottest_line}" if call.hottest_line else ""
        return f"{short}  {Path(call.frame.file).name}{line}"
    return short if len(short) <= _LONGEST_NAME else short.rsplit(".", 1)[-1]


def has_samples(tables: Tables, where: ProcessKind) -> bool:
    """Return whether there is anything for a flame view to show."""
    stacks = columns(tables, "stacks")
    return bool((_is_of(stacks, where) & (stacks["wall_ns"] > 0)).any())


def _is_of(stacks: Columns, where: ProcessKind) -> Flags:
    """Return which samples are of workers that make batches, or of ranks."""
    in_worker = stacks["worker"] >= 0
    is_wanted = in_worker & (stacks["phase"] == "work") if where == "workers" else ~in_worker
    return np.asarray(is_wanted, np.bool_)


def read_calls(
    tables: Tables, where: ProcessKind, span: ChartSpan | None = None
) -> CallNode | None:
    """Return the calls sampled in a span of time, or in all, as a tree; None if there are none."""
    stacks = columns(tables, "stacks")
    wanted = _is_of(stacks, where)
    if span is not None:
        wanted = wanted & span.overlaps(stacks["start_ns"], _ends_ns(stacks))
    tree = CallNode(None)
    folders = read_code_folders(columns(tables, "code_folders"))
    for sample in read_stack_times(stacks, wanted, folders):
        tree.add(sample)
        call = tree
        for frame in _shown_frames(sample.frames)[:_MAX_DEPTH]:
            call = call.below.setdefault((frame.file, frame.function), CallNode(frame))
            call.add(sample)
            call.lines[frame.line] = call.lines.get(frame.line, 0.0) + sample.wall_ns
    if tree.wall_ns <= 0:
        return None
    _prune(tree, _LEAST_SHARE * tree.wall_ns)
    return _without_entry(tree)


def _shown_frames(frames: tuple[StackFrame, ...]) -> tuple[StackFrame, ...]:
    """Return the frames without a worker's start and code that only passes calls on."""
    entries = [at for at, frame in enumerate(frames) if _WORKER_ENTRY.search(frame.function)]
    inner = frames[entries[-1] + 1 :] if entries else frames
    shown = tuple(frame for frame in inner if not _PASSING_FILES.search(frame.module_file))
    return shown or frames[-1:]


def _prune(call: CallNode, least_ns: float) -> None:
    call.below = {key: below for key, below in call.below.items() if below.wall_ns >= least_ns}
    for below in call.below.values():
        _prune(below, least_ns)


def _without_entry(tree: CallNode) -> CallNode:
    """Remove the library calls at the top through which all time passes."""
    top = tree
    while len(top.below) == 1:
        only = next(iter(top.below.values()))
        if only.frame is None or only.frame.is_user or only.wall_ns < 0.999 * top.wall_ns:
            break
        top = only
    tree.below = top.below
    return tree


def _ends_ns(stacks: Columns) -> Ints:
    """Return when the seconds of each row ended; rows of an older version are about one second."""
    second = stacks["start_ns"] + 1_000_000_000
    return np.maximum(stacks["end_ns"], second) if "end_ns" in stacks else second
