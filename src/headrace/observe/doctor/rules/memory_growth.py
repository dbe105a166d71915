"""Memory in use grows all the time, on the host or on a device.

Fires where a straight line explains at least 90 % of the variance of memory in use over the second
half of the steps, and it grows there by at least 256 MiB and 2 % of what is there: caches and
allocators settle in the first half.
"""

from __future__ import annotations

import re

import numpy as np

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Finding
from headrace.observe.whatif.tables import Floats, length

RULE = "memory-growth"
_COLUMN = re.compile(r"memory_used_bytes|gpu_\d+_memory_bytes")
_EXPLAINED, _GROWTH_BYTES, _GROWTH_SHARE = 0.9, 256 * 2**20, 0.02
_FEWEST_ROWS = 10


def check(evidence: Evidence) -> Finding | None:
    """Return the finding, where the rule fires."""
    system, span = evidence.system, evidence.steps.span_ns
    if not evidence.enough or span is None or length(system) == 0:
        return None
    half = (system["t_ns"] >= (span[0] + span[1]) // 2) & (system["t_ns"] <= span[1])
    if half.sum() < _FEWEST_ROWS:
        return None
    seconds = (system["t_ns"][half] - system["t_ns"][half][0]) / 1e9
    growing = [
        (rate, name)
        for name in system
        if _COLUMN.fullmatch(name)
        and (rate := _rate(seconds, system[name][half].astype(np.float64))) is not None
    ]
    if not growing:
        return None
    rate, name = max(growing)
    where = "the host" if name == "memory_used_bytes" else f"GPU {name.split('_')[1]}"
    return Finding(
        rule=RULE,
        severity="serious",
        title=f"memory of {where} grows by {rate * 60 / 2**20:,.0f} MiB a minute",
        seconds_lost=0.0,
        evidence={
            "column": name,
            "growth_mb_per_min": rate * 60 / 1e6,
            "watched_s": float(seconds[-1]),
        },
    )


def _rate(seconds: Floats, used: Floats) -> float | None:
    """Return bytes a second where the growth is steady and large enough."""
    slope, base = np.polyfit(seconds, used, 1)
    growth = slope * (seconds[-1] - seconds[0])
    if growth < max(_GROWTH_BYTES, _GROWTH_SHARE * used.mean()):
        return None
    rest = float(np.square(used - (slope * seconds + base)).sum())
    total = float(np.square(used - used.mean()).sum())
    return float(slope) if rest <= (1.0 - _EXPLAINED) * total else None
