"""The metrics that SageMaker Debugger's rules use: system, steps and batches, as recorded.

Debugger samples every 500 ms, as Headrace does by default, and its rules are evaluated once a
minute while the job runs. So a rule here is evaluated for the same moments: each minute, and the
end.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from headrace.observe.doctor.findings import Fact, Finding, NotEvaluated
from headrace.observe.whatif.tables import (
    Columns,
    Flags,
    Floats,
    Ints,
    Tables,
    columns,
)

PATIENCE = 1000
"""A rule about the system needs more samples than this: over eight minutes."""
WINDOW = 500
"""Number of samples that quantiles are of."""
_LOOK_NS = 60_000_000_000
_CORE = re.compile(r"core_(\d+)_percent")
_GPU = re.compile(r"gpu_(\d+)_utilisation_percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class DebuggerMetrics:
    """The recorded metrics of a run; percentages are NaN if a sample lacks them, None if all do."""

    t_ns: Ints  # of each sample of the system, ascending
    cores: Floats  # percent: a row a sample, a column a core
    io_wait: Floats | None  # of all cores together, in percent
    gpu_numbers: tuple[int, ...]
    gpus: Floats  # percent: a row a sample, a column a GPU
    gpu_memory: Floats | None  # in percent, in that shape
    steps: Columns
    batches: Columns
    processes: Columns
    system: Columns

    @property
    def evaluations(self) -> tuple[int, ...]:
        """Sample counts at which rules are evaluated: each minute and the end, after PATIENCE."""
        if not len(self.t_ns):
            return ()
        minutes = np.arange(self.t_ns[0] + _LOOK_NS, self.t_ns[-1], _LOOK_NS)
        counts = np.append(np.searchsorted(self.t_ns, minutes), len(self.t_ns))
        return tuple(int(count) for count in np.unique(counts) if count > PATIENCE)

    @property
    def started_ns(self) -> int | None:
        """When the recording of the run began; None if nothing was recorded."""
        starts = (self.t_ns, self.processes["started_ns"])
        return min((int(times.min()) for times in starts if len(times)), default=None)

    def minutes(self, count: int) -> float:
        """Return the minutes of sampling before an evaluation."""
        return float(self.t_ns[count - 1] - self.t_ns[0]) / _LOOK_NS

    def first_above(self, share: float, there: Flags) -> int | None:
        """Return the first evaluation by which more than a share of the samples had a property."""
        counts = np.cumsum(there)
        return next(
            (count for count in self.evaluations if counts[count - 1] > share * count), None
        )

    def missing(self, gpus: int) -> str | None:
        """Return why a rule about the system, or some GPUs, is not evaluated; None if it is."""
        if len(self.gpu_numbers) < gpus:
            count_text = "no GPU" if not self.gpu_numbers else f"only {len(self.gpu_numbers)} GPU"
            return f"{count_text} was recorded"
        if not self.evaluations:
            return (
                f"{len(self.t_ns):,} samples of the system were recorded, and it begins after "
                f"{PATIENCE:,}"
            )
        return None


def read_debugger_metrics(tables: Tables) -> DebuggerMetrics:
    """Return the recorded metrics of a run."""
    system = columns(tables, "system")
    system = system.where(np.argsort(system["t_ns"], kind="stable"))
    numbers = sorted(
        int(match[1])
        for name in system
        if (match := _GPU.fullmatch(name)) and np.isfinite(system[name]).any()
    )
    return DebuggerMetrics(
        t_ns=system["t_ns"],
        cores=_stacked_columns(system, [name for name in system if _CORE.fullmatch(name)]),
        io_wait=system.get("io_wait_percent"),
        gpu_numbers=tuple(numbers),
        gpus=_stacked_columns(system, [f"gpu_{number}_utilisation_percent" for number in numbers]),
        gpu_memory=_memory(system, numbers),
        steps=columns(tables, "steps"),
        batches=columns(tables, "batches"),
        processes=columns(tables, "processes"),
        system=system,
    )


DebuggerRuleCheck: TypeAlias = Callable[[DebuggerMetrics], Finding | NotEvaluated | None]
_Check: TypeAlias = Callable[[DebuggerMetrics], Finding | str | None]
REGISTERED: dict[str, DebuggerRuleCheck] = {}


def debugger_rule(name: str, *, gpus: int = 0) -> Callable[[_Check], DebuggerRuleCheck]:
    """Register a check that returns a finding, or why it is not evaluated, under its name.

    If it looks at GPUs, it needs so many, and PATIENCE.
    """

    def register(check: _Check) -> DebuggerRuleCheck:
        @functools.wraps(check)
        def named(recorded: DebuggerMetrics) -> Finding | NotEvaluated | None:
            outcome = (recorded.missing(gpus) if gpus else None) or check(recorded)
            if isinstance(outcome, str):
                return NotEvaluated(name, outcome)
            return None if outcome is None else replace(outcome, rule=name)

        REGISTERED[name] = named
        return named

    return register


def debugger_finding(title: str, seconds_lost: float = 0.0, **evidence: float | str) -> Finding:
    """Return a finding of Debugger's, which has no severities: each is a warning."""
    return Finding(
        rule="", severity="warning", title=title, seconds_lost=seconds_lost, evidence=evidence
    )


def debugger_report(title: str, evidence: Mapping[str, Fact]) -> Finding:
    """Return the finding of a rule that only reports."""
    return Finding(rule="", severity="info", title=title, seconds_lost=0.0, evidence=evidence)


def quantile(values: Floats, share: float) -> float:
    """Return a quantile of the finite values; NaN if there are none."""
    known = values[np.isfinite(values)]
    return float(np.quantile(known, share)) if len(known) else float("nan")


def _stacked_columns(system: Columns, names: Sequence[str]) -> Floats:
    if not names:
        return np.zeros((system.count, 0))
    return np.column_stack([system[name].astype(np.float64) for name in names])


def _memory(system: Columns, numbers: Sequence[int]) -> Floats | None:
    used = [f"gpu_{number}_memory_bytes" for number in numbers]
    total = [f"gpu_{number}_memory_total_bytes" for number in numbers]
    if not numbers or not {*used, *total} <= system.keys():
        return None
    part, whole = _stacked_columns(system, used), _stacked_columns(system, total)
    known = (part >= 0) & (whole > 0)
    return np.where(known, 100.0 * part / np.where(known, whole, 1.0), np.nan)
