"""Memory of a process of the run, or of a device, grows all the time.

Fires where a straight line explains at least 90 % of the variance of memory in use over the second
half of the steps, and it grows there by at least 64 MiB and 2 % of what is there: caches and
allocators settle in the first half. What else runs on the host is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Finding
from headrace.observe.whatif.tables import Columns, Floats, chosen, length

RULE = "memory-growth"
_DEVICE = re.compile(r"gpu_(\d+)_memory_bytes")
_EXPLAINED, _GROWTH_BYTES, _GROWTH_SHARE = 0.9, 64 * 2**20, 0.02
_FEWEST_ROWS = 10


def check(evidence: Evidence) -> Finding | None:
    """Return the finding, where the rule fires."""
    if not evidence.enough or evidence.steps.span_ns is None:
        return None
    begin, end = evidence.steps.span_ns
    growing = [
        (rate, whose, float(seconds[-1]))
        for whose, t_ns, used in _series(evidence)
        if (half := (t_ns >= (begin + end) // 2) & (t_ns <= end)).sum() >= _FEWEST_ROWS
        and (seconds := (t_ns[half] - t_ns[half][0]) / 1e9)[-1] > 0
        and (rate := _rate(seconds, used[half].astype(np.float64))) is not None
    ]
    if not growing:
        return None
    rate, whose, watched_s = max(growing)
    return Finding(
        rule=RULE,
        severity="serious",
        title=f"memory of {whose} grows by {rate * 60 / 2**20:,.0f} MiB a minute",
        seconds_lost=0.0,
        evidence={"growth_mb_per_min": rate * 60 / 1e6, "watched_s": watched_s},
    )


def _series(evidence: Evidence) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield what may grow: its name, times in ns, bytes in use."""
    usage, system = evidence.usage, evidence.system
    for pid in np.unique(usage["pid"]) if length(usage) else ():
        rows = chosen(usage, usage["pid"] == pid)
        yield _name(evidence.processes, int(pid)), rows["t_ns"], rows["resident_bytes"]
    for name in system if length(system) else ():
        match = _DEVICE.fullmatch(name)
        if match:
            yield f"GPU {match[1]}", system["t_ns"], system[name]


def _name(processes: Columns, pid: int) -> str:
    places = np.flatnonzero(processes["pid"] == pid).tolist() if length(processes) else []
    if not places:
        return f"process {pid}"
    row = places[-1]
    rank, worker = int(processes["rank"][row]), int(processes["worker"][row])
    return f"rank {rank}" if worker < 0 else f"worker {worker} of rank {rank}"


def _rate(seconds: Floats, used: Floats) -> float | None:
    """Return bytes a second where the growth is steady and large enough."""
    slope, base = np.polyfit(seconds, used, 1)
    growth = slope * (seconds[-1] - seconds[0])
    if growth < max(_GROWTH_BYTES, _GROWTH_SHARE * used.mean()):
        return None
    rest = float(np.square(used - (slope * seconds + base)).sum())
    total = float(np.square(used - used.mean()).sum())
    return float(slope) if rest <= (1.0 - _EXPLAINED) * total else None
