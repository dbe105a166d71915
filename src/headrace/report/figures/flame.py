"""The flame view: which code ran, from the outermost call down to the line."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.core.source_location import PACKAGE
from headrace.observe.doctor.stack_samples import StackFrame, StackSample, read_stack_samples
from headrace.observe.whatif.tables import Tables, columns
from headrace.report.figures.base import Figure, figure

USER_COLOUR, LIBRARY_COLOUR, ROOT_COLOUR = "#f2a65a", "#b4c2d6", "#d5dbe3"
ProcessKind = Literal["workers", "ranks"]
_Row = tuple[str, str, str, int, str, str]
"""Id, parent, label, time in ns, hover text and colour."""
_LEAST_SHARE = 0.003
_MAX_DEPTH = 40
_ROW_PX = 24
_LONGEST_NAME = 24
_PASSING_FILES = re.compile(
    r"/headrace/(observe/probe|data/loader|launch|enter|jobs|bootstrap|offload)/|/torch/utils/data/_utils/(worker|fetch)\.py$"
)
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

    def add(self, sample: StackSample) -> None:
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


def flame(tables: Tables, where: ProcessKind = "workers") -> Figure | None:
    """Return an icicle chart of sampled code, with widths by time; None if none was sampled.

    "workers" are sampled while they make batches, "ranks" in their main threads.
    """
    tree = read_calls(tables, where)
    if tree is None:
        return None
    rows = _icicle_rows(tree, "all workers" if where == "workers" else "all ranks")
    ids, parents, labels, values, hover_texts, colours = zip(*rows, strict=True)
    trace = {
        "type": "icicle", "branchvalues": "total", "sort": False,
        "ids": ids, "parents": parents, "labels": labels, "values": values,
        "hovertext": hover_texts, "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"colors": colours, "line": {"width": 1}},
        "leaf": {"opacity": 1.0}, "textfont": {"color": "#10151c"}, "texttemplate": "%{label}",
        "tiling": {"orientation": "v", "pad": 1}, "pathbar": {"visible": False},
    }  # fmt: skip
    return figure(
        [trace],
        {
            "height": 8 + _ROW_PX * tree.depth,
            "margin": {"l": 0, "r": 0, "t": 4, "b": 4},
            "uniformtext": {"minsize": 10, "mode": "hide"},
        },
    )


def read_calls(tables: Tables, where: ProcessKind) -> CallNode | None:
    """Return the sampled calls as a tree; None if there are none."""
    stacks = columns(tables, "stacks")
    in_worker = stacks["worker"] >= 0
    wanted = in_worker & (stacks["phase"] == "work") if where == "workers" else ~in_worker
    tree = CallNode(None)
    for sample in read_stack_samples(stacks, wanted):
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
    shown = tuple(frame for frame in inner if not _is_passing_frame(frame))
    return shown or frames[-1:]


def _is_passing_frame(frame: StackFrame) -> bool:
    return frame.file.startswith(PACKAGE) or _PASSING_FILES.search(frame.file) is not None


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


def _icicle_rows(tree: CallNode, name: str) -> list[_Row]:
    rows: list[_Row] = []

    def add(call: CallNode, parent: str, name: str) -> None:
        own_id = str(len(rows))
        rows.append(_icicle_row(call, own_id, parent, name, tree.wall_ns))
        for (_, function), below in call.below.items():
            add(below, own_id, function)

    add(tree, "", name)
    return rows


def _icicle_row(call: CallNode, own_id: str, parent: str, name: str, total_ns: float) -> _Row:
    share = f"{call.wall_ns / total_ns:.1%}"
    on_cpu = f"{min(call.cpu_ns / max(call.wall_ns, 1.0), 1.0):.0%}"
    place = f"<br>{_shown(call.frame.file)}" if call.frame else ""
    if call.hottest_line:
        place += f", mostly line {call.hottest_line}"
    hover_text = f"<b>{_shown(name)}</b>{place}<br>{share} of the time, {on_cpu} of that on a CPU"
    wall_ns = round(call.wall_ns)
    return own_id, parent, _label(call, name), wall_ns, hover_text, _colour(call.frame)


def _label(call: CallNode, name: str) -> str:
    short = name.rsplit("<locals>.", 1)[-1]
    if call.frame is not None and call.frame.is_user:
        line = f":{call.hottest_line}" if call.hottest_line else ""
        return _shown(f"{short}  {Path(call.frame.file).name}{line}")
    return _shown(short if len(short) <= _LONGEST_NAME else short.rsplit(".", 1)[-1])


def _colour(frame: StackFrame | None) -> str:
    if frame is None:
        return ROOT_COLOUR
    return USER_COLOUR if frame.is_user else LIBRARY_COLOUR


def _shown(text: str) -> str:
    """Return text for a label, which Plotly reads as a kind of HTML."""
    return html.escape(text, quote=False)
