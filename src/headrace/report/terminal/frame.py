"""One frame of the view, for a terminal of 80 columns and 24 lines or more."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from headrace.core.units import format_seconds
from headrace.report.telling import number
from headrace.report.terminal.bars import percent
from headrace.report.terminal.lines import host, phases, plain, rates, title
from headrace.report.terminal.processes import Process, together
from headrace.report.terminal.state import State

_ROOMY_LINES = 36
_MOST_VERDICT_LINES = 3
_FEWEST_ROWS = 2
_HEAD = ("role", "rank", "loader", "worker", "batches/s", "busy", "CPU")
_KEYS = "q leaves   p pauses and goes on"


def frame(
    state: State, console: Console, *, height: int | None = None, paused: bool = False
) -> Group:
    """Return a frame.

    Args:
        state: What it shows.
        console: Where it will be printed; its width counts.
        height: Lines that it may take; None: as many as it needs, and no line about keys.
        paused: Whether the frame is an old one, for the user to look at.
    """
    width = console.width
    roomy = height is None or height >= _ROOMY_LINES
    top = [
        title(state.status, paused=paused),
        *rates(state, width),
        *phases(state, width),
        *host(state.machine, width, roomy=roomy),
        Text(""),
    ]
    bottom = _verdict(state, console, None if roomy else _MOST_VERDICT_LINES)
    if height is None:
        return Group(*top, *_table(state.processes, None), Text(""), *bottom)
    bottom.append(Text(_KEYS, style="bright_black", no_wrap=True))
    room = max(height - len(top) - len(bottom), _FEWEST_ROWS)
    if len(state.processes) + 1 < room:
        bottom.insert(0, Text(""))
    return Group(*top, *_table(state.processes, room), *bottom)


def _table(processes: Sequence[Process], room: int | None) -> list[Table | Text]:
    """Return the processes in so many lines: workers one by one, or a loader's as one."""
    if not processes:
        return [Text("no rank or worker was seen yet")]
    shown = processes
    if room is not None and len(processes) > room - 1:
        shown = together(processes)
    left = 0
    if room is not None and len(shown) > room - 1:
        kept = max(room - 2, 1)
        left, shown = len(shown) - kept, shown[:kept]
    table = Table(box=None, pad_edge=False, expand=True, padding=(0, 1, 0, 0), header_style="bold")
    for name in _HEAD:
        table.add_column(name, justify="left" if name == "role" else "right", no_wrap=True)
    table.add_column("share  line of code", ratio=1, no_wrap=True, overflow="ellipsis")
    for each in shown:
        table.add_row(*_row(each))
    found: list[Table | Text] = [table]
    if left:
        found.append(Text(f"{left} more, which a taller terminal shows", style="bright_black"))
    return found


def _row(each: Process) -> tuple[Text | str, ...]:
    worker = "-" if each.worker is None else str(each.worker)
    doing = f"{percent(each.doing_share):>5}  {plain(each.doing)}" if each.doing else "    -"
    return (
        each.role,
        str(each.rank),
        "-" if each.loader is None else str(each.loader),
        f"all {each.count}" if each.count > 1 else worker,
        number(each.batches_per_s),
        percent(each.busy),
        percent(each.cpu),
        Text(doing),
    )


def _verdict(state: State, console: Console, most: int | None) -> list[Text]:
    told = state.told
    if told is None:
        what = "the last minute" if state.status.live else "the whole run"
        return [Text(f"{what} is being diagnosed", style="bright_black", no_wrap=True)]
    text = Text()
    if told.span_s is not None:
        text.append(f"last {format_seconds(round(told.span_s))}: ", "bright_black")
    else:
        text.append("the whole run: ", "bright_black")
    text.append(plain(told.sentence), "bold")
    lines = list(text.wrap(console, console.width))
    for line in lines:
        line.rstrip()
    if most is not None and len(lines) > most:
        lines = lines[:most]
        lines[-1].truncate(console.width - 1)
        lines[-1].append("…")
    return lines
