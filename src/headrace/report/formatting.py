"""Numbers, names and times in words, for readers new to the tool."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace.core.units import format_seconds

UNKNOWN = "unknown"
PHASE_MEANINGS = {
    "data_wait": "waiting for the next batch of data",
    "copy": "copying the batch to the accelerator",
    "forward": "the model's forward pass and the loss",
    "backward": "computing gradients",
    "sync": "waiting for gradients of other ranks",
    "optimizer": "updating the weights",
    "other": "everything else: logging, saving, printing",
}
"""The meaning of each phase of a step, in plain words."""
_FACTS = {
    "data_wait_share": "Step time without data",
    "script_data_wait_share": "Step time in which the script waits for data",
    "script_copy_share": "Step time in which the script stands in copies",
    "device_model_share": "Time in which the accelerator is at the model, gaps included",
    "device_idle_share": "Of it, time in which the accelerator may be idle",
    "data_wait_share_alone": "Step time without data, with one rank",
    "share_of_step_time": "Of step time",
    "batch_wall_ms": "Making a batch takes",
    "batch_wall_deviation_ms": "It varies by (standard deviation)",
    "batch_cpu_ms": "CPU time a batch",
    "cpu_ms_a_batch": "CPU time a batch",
    "worker_cpu_share": "Time in which workers compute",
    "worker_waiting_share": "Time in which workers wait",
    "worker_idle_share": "Time in which workers have nothing to do",
    "cpu_share_there": "Time there that is on a CPU",
    "lock_wait_share": "Time in which workers wait for each other",
    "cpu_time_over_main_thread": "CPU time of all threads, times the main one's",
    "reads_a_sample": "Read calls a sample",
    "kb_a_read": "A read brings, in kB",
    "prefetch_factor": "Batches that a worker makes ahead",
    "idle_cores": "Idle cores",
    "busy_cores": "Busy cores",
    "send_over_make": "Handing over, relative to making",
    "wait_for_ready_batch_ms": "Taking a batch that is ready",
    "outlier_ms": "A slow step takes",
    "median_ms": "An ordinary step takes",
    "phase_excess_ms": "Longer in that phase by",
    "own_ms": "Its step without waiting",
    "others_ms": "The others' step without waiting",
}
"""Pieces of evidence whose names need more words."""
_SUFFIX_TEXTS = (
    ("_mb_per_min", " MB a minute"), ("_mb_per_s", " MB/s"), ("_kb_per_sample", " kB a sample"),
    ("_ms", " ms"), ("_s", " s"), ("_percent", "%"), ("_ns", " ns"),
)  # fmt: skip
_SHARES = ("_share", "_utilisation", "send_over_make")


def phase_name(phase: str) -> str:
    """Return a phase's name for readers: data wait."""
    return "gradient sync" if phase == "sync" else phase.replace("_", " ")


def format_fact(name: str, fact: float | str) -> tuple[str, str]:
    """Return a piece of evidence, such as batch_wall_ms, as words and as a value with its unit."""
    words = _FACTS.get(name) or _spaced_words(name)
    if isinstance(fact, str):
        return words, fact.replace("_", " ")
    if name.endswith(_SHARES) or "share_" in name:
        return words, format_share(fact)
    if name.startswith("seconds_"):
        return words, format_seconds(fact)
    inside = " ms" if "_ms_" in name else ""
    unit = next((unit for suffix, unit in _SUFFIX_TEXTS if name.endswith(suffix)), inside)
    return words, f"{format_number(fact)}{unit}"


MOST_DIGITS_BELOW = 1e16
"""Numbers from here on are written by powers of ten, not with all their digits."""


def format_number(value: float) -> str:
    """Return a number with three digits, or all digits of a whole or a large one."""
    if isinstance(value, int) or 999.5 <= abs(value) < MOST_DIGITS_BELOW:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_share(value: float) -> str:
    """Return a share from 0 to 1 in percent: 12%, 0.4%, < 0.1%."""
    percent = 100.0 * value
    if 0 < percent < 0.1:
        return "< 0.1%"
    return f"{percent:.0f}%" if percent >= 9.95 or percent == 0 else f"{percent:.1f}%"


def format_milliseconds(value_ns: float) -> str:
    """Return nanoseconds in milliseconds, with the unit."""
    return f"{format_number(float(value_ns) / 1e6)} ms"


def format_time(unix_s: float) -> str:
    """Return a moment: 2026-03-01 17:40:02 UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))


def format_list(names: Sequence[str], most: int = 6) -> str:
    """Return names in a sentence, with a count of those beyond the first `most`."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def format_count(count: int, noun: str, nouns: str = "") -> str:
    """Return a count and its noun: 1 step, 1,200 steps."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def _spaced_words(name: str) -> str:
    """Return a name without its unit in words."""
    for suffix, _ in _SUFFIX_TEXTS:
        name = name.removesuffix(suffix)
    words = (
        name.removeprefix("seconds_").replace("_", " ").replace("cpu", "CPU").replace("gpu", "GPU")
    )
    return words[:1].upper() + words[1:]
