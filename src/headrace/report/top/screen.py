"""The view: its frames of bars, lines and a table, and the loop that draws and waits for keys.

A frame is for a terminal of at least 80 columns and 24 lines. The terminal is restored at the end.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.core.units import format_bytes, format_seconds
from headrace.report.charts.base import PHASE_COLOURS
from headrace.report.formatting import format_count, format_number, format_share, phase_name
from headrace.report.top.run_watcher import RunWatcher
from headrace.report.top.state import (
    GpuMetrics,
    HostMetrics,
    ProcessRates,
    RankRate,
    RunStatus,
    StepRates,
    TopState,
    merge_workers,
)

PHASE_GLYPHS = {
    "data_wait": "█",
    "copy": "▓",
    "forward": "▒",
    "backward": "░",
    "sync": "▚",
    "optimizer": "▪",
    "other": "·",
}
"""Distinct without colour, which a file or a plain terminal does not have."""
_FULL, _EMPTY = "█", "·"
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LEAST_WIDTH, _MOST_WIDTH = 3, 20


def stacked_bar(shares: Mapping[str, float], width: int) -> Text:
    """Return the phases of a step as one bar, with parts rounded so that they add up to it."""
    names = [name for name in PHASE_GLYPHS if name in shares]
    ends = np.cumsum([max(shares[name], 0.0) for name in names])
    total = max(float(ends[-1]), 1e-9) if len(ends) else 1.0
    places = [0, *(round(width * float(end) / total) for end in ends)]
    text = Text(no_wrap=True)
    for name, begin, end in zip(names, places[:-1], places[1:], strict=True):
        text.append(PHASE_GLYPHS[name] * (end - begin), PHASE_COLOURS[name])
    return text


def share_bar(share: float | None, width: int) -> Text:
    """Return a share, 0 to 1, as a bar of a number of characters; dots if it is unknown."""
    filled = 0 if share is None else round(width * min(max(share, 0.0), 1.0))
    text = Text(_FULL * filled, style=_heat(share), no_wrap=True)
    return text.append(_EMPTY * (width - filled), "bright_black")


def share_bars(
    values: Sequence[tuple[int, float | None]], width: int, most_lines: int
) -> list[Text]:
    """Return numbered shares, such as those of cores, as small bars in at most so many lines.

    With enough space each has its number and percentage; otherwise it is one block, whose height is
    the share.
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
            line.append_text(share_bar(share, length)).append(f" {format_percent(share):>4}")
        lines.append(line)
    return lines


def format_percent(share: float | None) -> str:
    """Return a share, 0 to 1, in whole percent: 42%; a dash if it is unknown."""
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


_DIM = "bright_black"
_GAP = "   "


def printable(text: str) -> str:
    """Return text from records without control characters for the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def title_line(status: RunStatus, *, paused: bool) -> Text:
    """Return the first line: which run this is, and its status."""
    text = _line().append(printable(status.name), "bold")
    text.append(f"{_GAP}attempt {status.attempt}")
    if status.world_size:
        text.append(f"{_GAP}{format_count(status.world_size, 'rank')}")
    text.append(_GAP)
    after = "" if status.elapsed_s is None else format_seconds(round(status.elapsed_s))
    if status.outcome == "going on":
        text.append(f"running, {after}" if after else "running", "green")
        if not status.live:
            text.append(f"{_GAP}its records are closed", "bold yellow")
    elif status.outcome == "unknown":
        text.append(f"recorded for {after}" if after else "recorded", "bold yellow")
        text.append(": may go on elsewhere")
    else:
        text.append(f"over after {after}" if after else "over", "bold yellow")
        code = status.exit_code
        text.append(": nothing was left to say how" if code is None else f", exit code {code}")
    if not status.recording:
        text.append(f"{_GAP}recording is off", "bold yellow")
    elif status.silent_s:
        text.append(f"{_GAP}nothing recorded for {status.silent_s:.0f} s", "bold yellow")
    return text.append(f"{_GAP}paused", "bold yellow") if paused else text


def rate_lines(state: TopState, width: int) -> list[Text]:
    """Return steps and samples a second, of all ranks and of each, and step times."""
    steps = state.steps
    if not steps.ranks:
        return [_line("no training step yet"), *_evaluation(steps)]
    when = f"in the last {(state.window.until_ns - state.window.since_ns) / 1e9:.0f} s"
    first = _line().append(f"{format_number(steps.steps_per_s)} steps/s", "bold")
    if steps.samples_per_s is not None:
        first.append(f"{_GAP}{format_number(steps.samples_per_s)} samples/s", "bold")
    first.append(f"{_GAP}{when}", _DIM)
    if steps.quiet_s and not steps.evaluated_per_s:
        first.append(f"{_GAP}no step for {steps.quiet_s:.0f} s", "bold yellow")
    lines = [first, *_evaluation(steps)]
    if len(steps.ranks) > 1:
        lines.append(_by_rank(steps.ranks, width))
    times = steps.times
    if times is not None:
        text = f"step {_ms(times.median_ns)} ms median"
        for words, value_ns in (("p90", times.p90_ns), ("p99", times.p99_ns)):
            text += f"{_GAP}{words} {_ms(value_ns)}"
        text += f"{_GAP}longest {_ms(times.longest_ns)}{_GAP}{format_count(times.count, 'step')}"
        lines.append(_line(text))
    return lines


def phase_lines(state: TopState, width: int) -> list[Text]:
    """Return the data-wait share, and the phases of a step as a bar with its legend."""
    steps, verdict = state.steps, state.verdict
    if not steps.shares:
        return []
    head = _line("data wait")
    head.append(f" {format_share(steps.shares['data_wait'])} now", PHASE_COLOURS["data_wait"])
    if verdict is not None and verdict.data_wait_share is not None:
        head.append(f"{_GAP}{format_share(verdict.data_wait_share)} over the run")
    if steps.evaluates:
        head.append(f"{_GAP}these are batches of evaluation", _DIM)
    legend: list[Text] = [_line()]
    for phase, part in steps.shares.items():
        if phase != "data_wait" and part < 0.005:
            continue  # it would be shown as 0%
        words = f" {phase_name(phase)} {format_share(part)}"
        if legend[-1] and legend[-1].cell_len + len(words) + 3 > width:
            legend.append(_line())
        legend[-1].append("  " if legend[-1] else "")
        legend[-1].append(PHASE_GLYPHS[phase], PHASE_COLOURS[phase]).append(words)
    return [head, stacked_bar(steps.shares, width), *legend]


def host_lines(host: HostMetrics, width: int, *, roomy: bool) -> list[Text]:
    """Return the host: a bar for each core, memory, disk and network rates, GPUs."""
    lines = share_bars(host.cores, width, most_lines=4 if roomy else 2)
    if host.cores:
        busy = [share for _, share in host.cores if share is not None]
        mean = sum(busy) / len(busy) if busy else None
        head = f"{format_count(len(host.cores), 'core')}, {format_percent(mean)} busy"
        for words, part in (("waiting for disk", host.io_wait), ("stopped", host.throttled)):
            if part is not None and part >= 0.005:
                head += f"{_GAP}{format_percent(part)} {words}"
        lines.insert(0, _line(head))
    return [*lines, *_memory_and_rates(host), *_gpus(host.gpus, width, roomy=roomy)]


def _evaluation(steps: StepRates) -> list[Text]:
    if not steps.evaluated_per_s:
        return []
    return [_line(f"evaluating, {format_number(steps.evaluated_per_s)} batches/s")]


def _by_rank(ranks: Sequence[RankRate], width: int) -> Text:
    rates = [f"{each.rank}: {_rank_rate(each)}" for each in ranks]
    text = "by rank, steps/s and samples/s  " + _GAP.join(rates)
    if len(text) <= width:
        return _line(text)
    slow = min(ranks, key=lambda each: each.steps_per_s)
    fast = max(ranks, key=lambda each: each.steps_per_s)
    return _line(
        f"slowest rank {slow.rank}: {format_number(slow.steps_per_s)} steps/s{_GAP}"
        f"fastest rank {fast.rank}: {format_number(fast.steps_per_s)} steps/s"
    )


def _rank_rate(rate_of_rank: RankRate) -> str:
    rates = (rate_of_rank.steps_per_s, rate_of_rank.samples_per_s)
    return ", ".join(format_number(rate) for rate in rates if rate is not None)


def _memory_and_rates(host: HostMetrics) -> list[Text]:
    parts = []
    if host.memory_used_bytes is not None:
        of = f" of {format_bytes(host.memory_bytes)}" if host.memory_bytes else ""
        parts.append(f"memory {format_bytes(host.memory_used_bytes)}{of}")
    if host.disk_read_bytes_per_s is not None:
        parts.append(f"disk read {_rate(host.disk_read_bytes_per_s)}")
    if host.received_bytes_per_s is not None and host.sent_bytes_per_s is not None:
        received, sent = _rate(host.received_bytes_per_s), _rate(host.sent_bytes_per_s)
        parts.append(f"network in {received}, out {sent}")
    return [_line(_GAP.join(parts))] if parts else []


def _gpus(gpus: Sequence[GpuMetrics], width: int, *, roomy: bool) -> list[Text]:
    if not roomy and len(gpus) > 2:
        shares = [(each.number, each.utilisation) for each in gpus]
        found = share_bars(shares, width - 5, most_lines=1)
        return [_line("GPUs ").append_text(line) for line in found]
    lines = []
    for each in gpus:
        line = _line(f"GPU {each.number} ")
        line.append_text(share_bar(each.utilisation, 12)).append(
            f" {format_percent(each.utilisation):>4}"
        )
        if each.memory_bytes is not None:
            line.append(f"{_GAP}memory {format_bytes(each.memory_bytes)}")
        if each.power_w is not None:
            line.append(f"{_GAP}{each.power_w:.0f} W")
        if each.received_bytes_per_s is not None and each.sent_bytes_per_s is not None:
            received, sent = _rate(each.received_bytes_per_s), _rate(each.sent_bytes_per_s)
            line.append(f"{_GAP}PCIe in {received}, out {sent}")
        lines.append(line)
    return lines


def _rate(bytes_per_s: float) -> str:
    return f"{format_bytes(bytes_per_s)}/s"


def _ms(value_ns: float) -> str:
    return format_number(value_ns / 1e6)


def _line(text: str = "") -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


_ROOMY_LINES = 36
_MOST_VERDICT_LINES = 3
_TABLE_HEAD = ("role", "rank", "loader", "worker", "batches/s", "busy", "CPU")


def render_frame(
    state: TopState, console: Console, *, height: int | None = None, paused: bool = False
) -> Group:
    """Return a frame for a console; `height` None: as long as needed, without keys."""
    width = console.width
    roomy = height is None or height >= _ROOMY_LINES
    top = [
        title_line(state.status, paused=paused),
        *rate_lines(state, width),
        *phase_lines(state, width),
        *host_lines(state.host, width, roomy=roomy),
        Text(""),
    ]
    bottom = _verdict(state, console, None if roomy else _MOST_VERDICT_LINES)
    if height is None:
        return Group(*top, *_table(state.processes, None), Text(""), *bottom)
    bottom.append(Text("q leaves   p pauses and goes on", style="bright_black", no_wrap=True))
    room = max(height - len(top) - len(bottom), 2)
    if len(state.processes) + 1 < room:
        bottom.insert(0, Text(""))
    return Group(*top, *_table(state.processes, room), *bottom)


def _table(processes: Sequence[ProcessRates], room: int | None) -> list[Table | Text]:
    """Return the table of processes within `room` lines, with workers merged if needed."""
    if not processes:
        return [Text("no rank or worker was seen yet")]
    shown = processes
    if room is not None and len(processes) > room - 1:
        shown = merge_workers(processes)
    hidden = 0
    if room is not None and len(shown) > room - 1:
        shown_count = max(room - 2, 1)
        hidden, shown = len(shown) - shown_count, shown[:shown_count]
    table = Table(box=None, pad_edge=False, expand=True, padding=(0, 1, 0, 0), header_style="bold")
    for name in _TABLE_HEAD:
        table.add_column(name, justify="left" if name == "role" else "right", no_wrap=True)
    table.add_column("share  line of code", ratio=1, no_wrap=True, overflow="ellipsis")
    for each in shown:
        table.add_row(*_row(each))
    found: list[Table | Text] = [table]
    if hidden:
        found.append(Text(f"{hidden} more, which a taller terminal shows", style="bright_black"))
    return found


def _row(each: ProcessRates) -> tuple[Text | str, ...]:
    worker = "-" if each.worker is None else str(each.worker)
    share = format_percent(each.doing_share)
    doing = f"{share:>5}  {printable(each.doing)}" if each.doing else "    -"
    return (
        each.role,
        str(each.rank),
        "-" if each.loader is None else str(each.loader),
        f"all {each.count}" if each.count > 1 else worker,
        format_number(each.batches_per_s),
        format_percent(each.busy),
        format_percent(each.cpu),
        Text(doing),
    )


def _verdict(state: TopState, console: Console, most: int | None) -> list[Text]:
    verdict = state.verdict
    if verdict is None:
        what = "the last minute" if state.status.live else "the whole run"
        return [Text(f"{what} is being diagnosed", style="bright_black", no_wrap=True)]
    span_s = verdict.span_s
    span = "the whole run" if span_s is None else f"last {format_seconds(round(span_s))}"
    text = Text().append(f"{span}: ", "bright_black").append(printable(verdict.sentence), "bold")
    lines = list(text.wrap(console, console.width))
    for line in lines:
        line.rstrip()
    if most is not None and len(lines) > most:
        lines = lines[:most]
        lines[-1].truncate(console.width - 1)
        lines[-1].append("…")
    return lines


_TICK_S = 0.25
"""How often the terminal's size is checked."""
_QUIT_KEY, _PAUSE_KEY = "q", "p"
_SPECIAL = re.compile(rb"\x1b(\[[0-9;]*[ -/]*[@-~]|O.)")
"""Escape sequences of arrow keys and the like, whose letters are no keys."""
_NICENESS = 5
"""The view gives way to the workers that it watches."""


def print_frame(watch: RunWatcher, console: Console) -> None:
    """Print one frame, as long as it needs to be; raises RecordsError."""
    console.print(render_frame(watch.look(wait=True), console))


def show_frames(watch: RunWatcher, console: Console, interval_s: float) -> TopState:
    """Show the run, redrawn at every interval, until the user leaves; return the last state.

    If the records cannot be read any more, the terminal is restored, and RecordsError raised.
    """
    with suppress(OSError):
        os.nice(_NICENESS)
    state = watch.look()
    with (
        _exit_on_sigterm(),
        _key_reader() as pressed,
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        paused, looked_s, drawn = False, time.monotonic(), None
        while True:
            if not paused and time.monotonic() >= looked_s + interval_s:
                looked_s = time.monotonic()
                state = watch.look()
            shown = (state, paused, console.size)
            if shown != drawn:
                frame = render_frame(state, console, height=console.height, paused=paused)
                live.update(frame, refresh=True)
                drawn = shown
            keys = pressed(_TICK_S)
            if _QUIT_KEY in keys:
                break
            paused ^= keys.count(_PAUSE_KEY) % 2 == 1
    return state


@contextmanager
def _key_reader() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for keys and returns those pressed, without enter or echo.

    If standard input is no terminal, there are none, and ctrl-C ends the view.
    """
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield _no_keys
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSADRAIN)
        changed = termios.tcgetattr(descriptor)
        changed[6][termios.VSUSP] = os.fpathconf(descriptor, "PC_VDISABLE").to_bytes(1, "little")
        termios.tcsetattr(descriptor, termios.TCSADRAIN, changed)
        yield lambda seconds: _read_keys(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _no_keys(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _read_keys(descriptor: int, seconds: float) -> str:
    readable, _, _ = select.select([descriptor], [], [], seconds)
    if not readable:
        return ""
    try:
        pressed = os.read(descriptor, 64)
    except OSError:  # the terminal is gone
        return _QUIT_KEY
    return _SPECIAL.sub(b"", pressed).decode(errors="replace") if pressed else _QUIT_KEY


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Leave the view in good order on SIGTERM, too."""
    before = signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
