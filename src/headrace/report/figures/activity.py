"""Charts of what processes did: how busy each was over time, and which code ran."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headrace.observe.doctor.stack_frames import StackFrame
from headrace.observe.doctor.stack_samples import (
    StackSample,
    read_code_folders,
    read_stack_samples,
)
from headrace.observe.whatif.tables import Columns, Floats, Tables, columns
from headrace.report.figures.base import (
    TIME_MARGIN,
    Figure,
    Pooling,
    TimeAxis,
    busy_shares,
    figure,
    pool_intervals,
    time_axis,
)

MAX_HEATMAP_COLUMNS = 600
"""At most the pixels across a page, so that drawing leaves out no column."""
_FEWEST_COLUMNS = 300
_COLUMN_S = 0.1
_MAX_ROWS = 400
_ROW_PX, _GAP_PX, _AROUND_PX = 18, 16, 110
_VIRIDIS = (
    "#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58",
    "#b5de2b", "#fde725",
)  # fmt: skip
_COLOUR_SCALE = [[place / 9, colour] for place, colour in enumerate(_VIRIDIS)]
_GPU = re.compile(r"gpu_(\d+)_utilisation_percent")
_CORE = re.compile(r"core_(\d+)_percent")


@dataclass(frozen=True, slots=True)
class HeatmapBand:
    """Rows of one kind: their names, and busy shares, 0 to 1, a value a column; NaN if unknown."""

    title: str
    rows: tuple[tuple[str, Floats], ...]


def heatmap(tables: Tables) -> Figure | None:
    """Return how busy every rank, GPU, worker and core was over time; None if not recorded."""
    bands = read_bands(tables)
    if not bands:
        return None
    clock = time_axis(tables)
    middle = clock.read(_edges(clock))
    middle = (middle[1:] + middle[:-1]) / 2
    total = sum(len(band.rows) for band in bands)
    height_px = _height_px(bands)
    gap = 0.0 if len(bands) == 1 else _GAP_PX / height_px
    room = 1.0 - gap * (len(bands) - 1)
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "height": height_px,
        "xaxis": {**clock.axis(), "anchor": "free", "position": 0.0, "showgrid": False},
        "margin": TIME_MARGIN,
        "coloraxis": {
            "colorscale": _COLOUR_SCALE, "cmin": 0, "cmax": 100,
            "colorbar": {
                "orientation": "h", "thickness": 10, "len": 240, "lenmode": "pixels", "x": 0.0,
                "xanchor": "left", "y": 1.0, "yanchor": "bottom", "ypad": 4,
                "tickvals": [0, 25, 50, 75, 100],
                "ticktext": ["idle", "25%", "50%", "75%", "busy"],
                "ticklabelposition": "outside top",
            },
        },
    }  # fmt: skip
    top = 1.0
    for place, band in enumerate(bands):
        height = room * len(band.rows) / total
        axis = f"y{place + 1}" if place else "y"
        traces.append(_trace(band, middle, axis, clock.unit))
        layout[f"yaxis{place + 1}" if place else "yaxis"] = {
            "domain": [max(top - height, 0.0), top], "autorange": "reversed", "showgrid": False,
            "ticks": "", "type": "category", "zeroline": False,
        }  # fmt: skip
        top -= height + gap
    return figure(traces, layout)


def read_bands(tables: Tables) -> list[HeatmapBand]:
    """Return the rows of the heatmap, with the kinds in the order shown."""
    edges = _edges(time_axis(tables))
    system = columns(tables, "system")
    found = [
        HeatmapBand("ranks", tuple(_ranks(columns(tables, "steps"), edges))),
        HeatmapBand("GPUs", tuple(_ticks(system, edges, _GPU, "GPU"))),
        HeatmapBand("workers", tuple(_workers(columns(tables, "batches"), edges))),
        HeatmapBand("cores", tuple(_ticks(system, edges, _CORE, "core"))),
    ]
    return [HeatmapBand(band.title, band.rows[:_MAX_ROWS]) for band in found if band.rows]


def _height_px(bands: Sequence[HeatmapBand]) -> int:
    rows = sum(len(band.rows) for band in bands)
    row_px = _ROW_PX if rows <= 40 else max(40 * _ROW_PX // rows, 4)
    return max(_AROUND_PX + rows * row_px + _GAP_PX * len(bands), 220)


def _edges(clock: TimeAxis) -> Floats:
    span_s = (clock.ended_ns - clock.began_ns) / 1e9
    count = int(np.clip(span_s / _COLUMN_S, _FEWEST_COLUMNS, MAX_HEATMAP_COLUMNS))
    return np.linspace(clock.began_ns, clock.ended_ns, count + 1)


def _ranks(steps: Columns, edges: Floats) -> Iterable[tuple[str, Floats]]:
    """Yield each rank's share of its steps without data wait, the lowest in a column."""
    for rank in np.unique(steps["rank"]):
        of_rank = steps.having(rank=rank)
        start, wall = of_rank["start_ns"].astype(np.float64), of_rank["wall_ns"].astype(np.float64)
        at_work = 1.0 - np.clip(of_rank["data_wait_ns"] / np.maximum(wall, 1.0), 0.0, 1.0)
        yield f"rank {rank}", pool_intervals(start, start + wall, at_work, edges, "min")


def _workers(batches: Columns, edges: Floats) -> Iterable[tuple[str, Floats]]:
    if batches.count == 0:
        return
    known = np.unique(
        np.column_stack((batches["rank"], batches["loader"], batches["worker"])), axis=0
    )
    several_ranks = len(np.unique(known[:, 0])) > 1
    several_loaders = len(np.unique(known[known[:, 2] >= 0][:, 1])) > 1
    for rank, loader, worker in known[known[:, 2] >= 0]:
        of_worker = batches.having(rank=rank, loader=loader, worker=worker)
        start = of_worker["start_ns"].astype(np.float64)
        end = start + of_worker["wall_ns"]
        # Workers may restart in each epoch: in between there is no worker, rather than an idle one.
        there = start - np.maximum(of_worker["idle_ns"], 0) - np.maximum(of_worker["send_ns"], 0)
        alive = pool_intervals(there, end, np.ones(len(end)), edges, "max")
        name = f"worker {worker}"
        name = f"loader {loader} {name}" if several_loaders else name
        name = f"rank {rank} {name}" if several_ranks else name
        yield name, np.where(np.isnan(alive), np.nan, busy_shares(start, end, edges))


def _ticks(
    system: Columns, edges: Floats, pattern: re.Pattern[str], noun: str
) -> Iterable[tuple[str, Floats]]:
    names = [(int(match[1]), name) for name in system if (match := pattern.fullmatch(name))]
    if system.count == 0 or not names:
        return
    order = np.argsort(system["t_ns"])
    end = system["t_ns"][order].astype(np.float64)
    start = np.append(min(edges[0], end[0] - 1), end[:-1])  # a row describes the time before it
    for number, name in sorted(names):
        values = np.clip(system[name][order].astype(np.float64) / 100.0, 0.0, 1.0)
        how: Pooling = "min" if noun == "GPU" else "mean"
        yield f"{noun} {number}", pool_intervals(start, end, values, edges, how)


def _trace(band: HeatmapBand, middle: Floats, axis: str, unit: str) -> dict[str, Any]:
    values = np.array([shares for _, shares in band.rows]) * 100.0
    return {
        "type": "heatmap", "x": middle.round(4), "y": [name for name, _ in band.rows],
        "z": values.astype(np.float32).round(1), "yaxis": axis, "name": band.title,
        "coloraxis": "coloraxis",
        "hoverongaps": False, "ygap": 1 if len(band.rows) <= 60 else 0,
        "hovertemplate": f"%{{y}}: %{{z:.0f}}% busy at %{{x:.1f}} {unit}<extra></extra>",
    }  # fmt: skip


USER_COLOUR, LIBRARY_COLOUR, ROOT_COLOUR = "#f2a65a", "#b4c2d6", "#d5dbe3"
ProcessKind = Literal["workers", "ranks"]
_Row = tuple[str, str, str, int, str, str]
"""Id, parent, label, time in ns, hover text and colour."""
_LEAST_SHARE = 0.003
_MAX_DEPTH = 40
_FLAME_ROW_PX = 24
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
            "height": 8 + _FLAME_ROW_PX * tree.depth,
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
    folders = read_code_folders(columns(tables, "code_folders"))
    for sample in read_stack_samples(stacks, wanted, folders=folders):
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
    return own_id, parent, _label(call, name), round(call.wall_ns), hover_text, _colour(call.frame)


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
