"""Comparison of two runs, or of parts of one, and the check of predictions against measurements.

Runs are compared by samples a second of all ranks, because steps may be larger, or made by more
ranks; if samples were not counted, by steps a second. A difference counts if the 90 % interval of
the ratio excludes 1. How a run is measured: see `run_speed`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.errors import RecordsError
from headrace.core.files import write_text_atomically
from headrace.observe.whatif.run_speed import OTHER_SEED, RunSpeed, check_steps, run_speed
from headrace.observe.whatif.tables import Floats, Tables
from headrace.observe.whatif.train_steps import read_steps
from headrace.records.schema import PHASES

_TIMED = {"steps": "wall_ns", "fetches": "wait_ns", "batches": "wall_ns", "arrivals": "wall_ns"}
"""Tables of which only rows that began and ended in the slice count, with their duration column."""


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """The records of a run between two moments by the host's clock; None: its start or its end."""

    tables: Tables
    begin_ns: int | None = None
    end_ns: int | None = None

    def table(self, name: str) -> pa.Table:
        """Return a table of `headrace.records.schema`, or `system`."""
        found = self.tables.table(name)
        if name not in _TIMED:
            return found
        import pyarrow.compute as pc  # which takes 60 ms, and most runs end without a slice

        if self.begin_ns is not None:
            found = found.filter(pc.field("start_ns") >= self.begin_ns)
        if self.end_ns is not None:
            found = found.filter(pc.field("start_ns") + pc.field(_TIMED[name]) <= self.end_ns)
        return found


_INTERVAL = (5.0, 95.0)  # percent
_EACH = 5.0 / len(PHASES)
_INTERVAL_OF_EACH = (_EACH, 100.0 - _EACH)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A setting of the main loader, or the number of ranks, that differs between two runs."""

    setting: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChange:
    """The time of one phase in both runs, milliseconds a step, and the interval of the difference.

    It covers 90 % for the whole step, and 90 % for all phases together, as one of many is soon
    outside its own.
    """

    phase: str  # "step" for all of them together
    before_ms: float
    after_ms: float
    low_ms: float  # of the difference, second less first
    high_ms: float

    @property
    def differ(self) -> bool:
        """Whether they differ beyond noise."""
        return not self.low_ms <= 0.0 <= self.high_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of one run's steps with another's; times are of a mean step."""

    before_ms: float
    after_ms: float
    before_samples_per_s: float | None  # of all ranks together; None if not counted
    after_samples_per_s: float | None
    before_data_wait_share: float  # of step time, by the accelerator's clock where it is known
    after_data_wait_share: float
    speedup: float  # of samples a second, or else steps a second: above 1 the second run is faster
    low: float  # of its 90 % interval
    high: float
    before_steps: int  # that count, over all ranks
    after_steps: int
    phases: tuple[PhaseChange, ...]  # those that take time in either run
    step: PhaseChange
    settings: tuple[SettingChange, ...] = ()  # those that differ

    @property
    def differ(self) -> bool:
        """Whether they differ beyond noise."""
        return not self.low <= 1.0 <= self.high

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON's own types."""
        found = {**asdict(self), "differ": self.differ}
        found["phases"] = [{**asdict(each), "differ": each.differ} for each in self.phases]
        found["step"]["differ"] = self.step.differ
        return found


def compare(
    before: Tables, after: Tables, *, made_with: Sequence[Mapping[str, str]] = ({}, {})
) -> Comparison:
    """Compare two runs.

    Args:
        before: Records of the first run.
        after: Records of the second run.
        made_with: Further settings of the first and the second run, by name.

    Raises:
        RecordsError: One of them has too few steps.
    """
    steps = read_steps(before), read_steps(after)
    for each, run in zip(steps, ("The first run", "The second run"), strict=True):
        check_steps(each, run)
    return compare_speeds(
        run_speed(before, steps[0], made_with=made_with[0]),
        run_speed(after, steps[1], made_with=made_with[1], seed=OTHER_SEED),
    )


def compare_speeds(one: RunSpeed, other: RunSpeed) -> Comparison:
    """Compare two measured runs, read with different seeds."""
    rates = one.samples_per_s, other.samples_per_s
    by_steps = one.step_ms / other.step_ms
    speedup = rates[1] / rates[0] if rates[0] and rates[1] else by_steps
    ratios = speedup / by_steps * one.step_means_ms / other.step_means_ms
    low, high = np.percentile(ratios, _INTERVAL)
    changes = [
        _change(phase, one.phases_ms[phase], other.phases_ms[phase],
                other.phase_means_ms[phase] - one.phase_means_ms[phase], _INTERVAL_OF_EACH)
        for phase in PHASES
    ]  # fmt: skip
    return Comparison(
        before_ms=one.step_ms,
        after_ms=other.step_ms,
        before_samples_per_s=one.samples_per_s,
        after_samples_per_s=other.samples_per_s,
        before_data_wait_share=one.data_wait_share,
        after_data_wait_share=other.data_wait_share,
        speedup=speedup,
        low=float(low),
        high=float(high),
        before_steps=one.steps,
        after_steps=other.steps,
        phases=tuple(each for each in changes if max(each.before_ms, each.after_ms) > 0),
        step=_change(
            "step", one.step_ms, other.step_ms, other.step_means_ms - one.step_means_ms, _INTERVAL
        ),
        settings=_changed_settings(one.settings, other.settings),
    )


def _change(
    phase: str, before_ms: float, after_ms: float, longer_ms: Floats, interval: tuple[float, float]
) -> PhaseChange:
    low, high = np.percentile(longer_ms, interval)
    return PhaseChange(
        phase=phase, before_ms=before_ms, after_ms=after_ms, low_ms=float(low), high_ms=float(high)
    )


def _changed_settings(
    before: Mapping[str, str], after: Mapping[str, str]
) -> tuple[SettingChange, ...]:
    return tuple(
        SettingChange(setting=name, before=before.get(name, "-"), after=after.get(name, "-"))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    )


PREDICTION_FILE = "prediction.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPrediction:
    """A prediction and the measurement that checked it, both speed-ups with 90 % intervals."""

    remedy: str  # its name
    change: str  # from what to what
    applied: tuple[str, ...]  # the overrides of the script's arguments in the checking run
    predicted: float
    low: float
    high: float
    measured: float
    measured_low: float
    measured_high: float

    @property
    def error(self) -> float:
        """The relative error: predicted / measured - 1."""
        return self.predicted / self.measured - 1.0

    @property
    def held(self) -> bool:
        """Whether the two intervals overlap."""
        return self.low <= self.measured_high and self.measured_low <= self.high


def write_checked_prediction(checked: CheckedPrediction, run: Path) -> None:
    """Write a checked prediction into the folder of the run that checked it."""
    write_text_atomically(run / PREDICTION_FILE, json.dumps(asdict(checked), indent=2) + "\n")


def read_checked_predictions(runs: Path) -> dict[Path, CheckedPrediction]:
    """Return all checked predictions below a folder, by the checking run; raises RecordsError."""
    return {
        path.parent: _read_checked_prediction(path) for path in sorted(runs.rglob(PREDICTION_FILE))
    }


def error_summary(checked: Sequence[CheckedPrediction]) -> Mapping[str, float]:
    """Return median and worst of the absolute errors, and the share that held; not for none."""
    absolute = [abs(prediction.error) for prediction in checked]
    return {
        "median": statistics.median(absolute),
        "worst": max(absolute),
        "held": sum(prediction.held for prediction in checked) / len(checked),
    }


def _read_checked_prediction(path: Path) -> CheckedPrediction:
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return CheckedPrediction(**{**values, "applied": tuple(values["applied"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordsError(f"{path} is no checked prediction: {error}. Remove it.") from error
