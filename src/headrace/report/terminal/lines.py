"""The lines of a frame about the run, its steps and its host."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from headrace.core.units import format_bytes, format_seconds
from headrace.report.figures.drawing import PHASE_COLOURS
from headrace.report.telling import counted, number, phase_name, share
from headrace.report.terminal.bars import PHASE_GLYPHS, bar, cells, percent, stacked
from headrace.report.terminal.machine import Gpu, Machine
from headrace.report.terminal.state import State, Status
from headrace.report.terminal.steps import RankRate, Steps

_DIM = "bright_black"
_GAP = "   "


def plain(text: str) -> str:
    """Return a text from records without what would steer the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def title(status: Status, *, paused: bool) -> Text:
    """Return the first line: which run this is and how it stands with it."""
    text = _line().append(plain(status.name), "bold")
    text.append(f"{_GAP}attempt {status.attempt}")
    if status.world_size:
        text.append(f"{_GAP}{counted(status.world_size, 'rank')}")
    text.append(_GAP)
    after = "" if status.elapsed_s is None else format_seconds(round(status.elapsed_s))
    if status.live:
        text.append(f"running, {after}" if after else "running", "green")
    else:
        text.append(f"over after {after}" if after else "over", "bold yellow")
        code = status.exit_code
        text.append(": nothing was left to say how" if code is None else f", exit code {code}")
    if not status.recording:
        text.append(f"{_GAP}recording is off", "bold yellow")
    elif status.silent_s:
        text.append(f"{_GAP}nothing recorded for {status.silent_s:.0f} s", "bold yellow")
    return text.append(f"{_GAP}paused", "bold yellow") if paused else text


def rates(state: State, width: int) -> list[Text]:
    """Return how many steps and samples a second, of all ranks and of each, and step times."""
    steps = state.steps
    if not steps.ranks:
        return [_line("no training step yet"), *_evaluation(steps)]
    when = f"in the last {state.window.seconds:.0f} s"
    first = _line().append(f"{number(steps.steps_per_s)} steps/s", "bold")
    if steps.samples_per_s is not None:
        first.append(f"{_GAP}{number(steps.samples_per_s)} samples/s", "bold")
    first.append(f"{_GAP}{when}", _DIM)
    if steps.quiet_s and not steps.evaluated_per_s:
        first.append(f"{_GAP}no step for {steps.quiet_s:.0f} s", "bold yellow")
    lines = [first, *_evaluation(steps)]
    if len(steps.ranks) > 1:
        lines.append(_by_rank(steps.ranks, width))
    took = steps.times
    if took is not None:
        text = f"step {_ms(took.median_ns)} ms median"
        for words, value_ns in (("p90", took.p90_ns), ("p99", took.p99_ns)):
            text += f"{_GAP}{words} {_ms(value_ns)}"
        lines.append(
            _line(f"{text}{_GAP}longest {_ms(took.longest_ns)}{_GAP}{counted(took.count, 'step')}")
        )
    return lines


def phases(state: State, width: int) -> list[Text]:
    """Return the data-wait share, and the phases of a step as a bar with its legend."""
    steps, told = state.steps, state.told
    if not steps.shares:
        return []
    head = _line("data wait")
    head.append(f" {share(steps.shares['data_wait'])} now", PHASE_COLOURS["data_wait"])
    if told is not None and told.data_wait_share is not None:
        head.append(f"{_GAP}{share(told.data_wait_share)} over the run")
    if steps.evaluates:
        head.append(f"{_GAP}these are batches of evaluation", _DIM)
    legend: list[Text] = [_line()]
    for phase, part in steps.shares.items():
        if phase != "data_wait" and part < 0.005:
            continue  # would be shown as 0%
        words = f" {phase_name(phase)} {share(part)}"
        if legend[-1] and legend[-1].cell_len + len(words) + 3 > width:
            legend.append(_line())
        legend[-1].append("  " if legend[-1] else "")
        legend[-1].append(PHASE_GLYPHS[phase], PHASE_COLOURS[phase]).append(words)
    return [head, stacked(steps.shares, width), *legend]


def host(machine: Machine, width: int, *, roomy: bool) -> list[Text]:
    """Return the host: a bar for each core, memory, disk and network rates, GPUs.

    Args:
        machine: What is known of it.
        width: Length of a line in characters.
        roomy: Whether cores and GPUs may take several lines.
    """
    lines = cells(machine.cores, width, most_lines=4 if roomy else 2)
    if machine.cores:
        busy = [each for _, each in machine.cores if each is not None]
        mean = sum(busy) / len(busy) if busy else None
        head = f"{counted(len(machine.cores), 'core')}, {percent(mean)} busy"
        for words, part in (("waiting for disk", machine.io_wait), ("stopped", machine.throttled)):
            if part is not None and part >= 0.005:
                head += f"{_GAP}{percent(part)} {words}"
        lines.insert(0, _line(head))
    return [*lines, *_memory_and_rates(machine), *_gpus(machine.gpus, width, roomy=roomy)]


def _evaluation(steps: Steps) -> list[Text]:
    if not steps.evaluated_per_s:
        return []
    return [_line(f"evaluating, {number(steps.evaluated_per_s)} batches/s")]


def _by_rank(ranks: Sequence[RankRate], width: int) -> Text:
    told = [f"{each.rank}: {_rank_rate(each)}" for each in ranks]
    text = "by rank, steps/s and samples/s  " + _GAP.join(told)
    if len(text) <= width:
        return _line(text)
    slow = min(ranks, key=lambda each: each.steps_per_s)
    fast = max(ranks, key=lambda each: each.steps_per_s)
    return _line(
        f"slowest rank {slow.rank}: {number(slow.steps_per_s)} steps/s{_GAP}"
        f"fastest rank {fast.rank}: {number(fast.steps_per_s)} steps/s"
    )


def _rank_rate(each: RankRate) -> str:
    rate = number(each.steps_per_s)
    return rate if each.samples_per_s is None else f"{rate}, {number(each.samples_per_s)}"


def _memory_and_rates(machine: Machine) -> list[Text]:
    parts = []
    if machine.memory_used_bytes is not None:
        of = f" of {format_bytes(machine.memory_bytes)}" if machine.memory_bytes else ""
        parts.append(f"memory {format_bytes(machine.memory_used_bytes)}{of}")
    if machine.disk_read_bytes_per_s is not None:
        parts.append(f"disk read {_rate(machine.disk_read_bytes_per_s)}")
    if machine.received_bytes_per_s is not None and machine.sent_bytes_per_s is not None:
        received, sent = _rate(machine.received_bytes_per_s), _rate(machine.sent_bytes_per_s)
        parts.append(f"network in {received}, out {sent}")
    return [_line(_GAP.join(parts))] if parts else []


def _gpus(gpus: Sequence[Gpu], width: int, *, roomy: bool) -> list[Text]:
    if not roomy and len(gpus) > 2:
        found = cells([(each.number, each.utilisation) for each in gpus], width - 5, most_lines=1)
        return [_line("GPUs ").append_text(line) for line in found]
    lines = []
    for each in gpus:
        line = _line(f"GPU {each.number} ")
        line.append_text(bar(each.utilisation, 12)).append(f" {percent(each.utilisation):>4}")
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
    return number(value_ns / 1e6)


def _line(text: str = "") -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
