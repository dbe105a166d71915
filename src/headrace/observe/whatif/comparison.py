"""Comparison of two runs, or of parts of one, and the check of predictions against measurements.

Runs are compared by samples a second of all ranks, because steps may be larger, or made by more
ranks; if samples were not counted, by steps a second. Consecutive steps are alike, so they are
resampled in blocks, together with the steps that other ranks take at the same time. The same script
run twice differs by 2 %, however many steps there are. A difference counts if the 90 % interval of
the ratio excludes 1.
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
from headrace.observe.whatif.joint_loaders import read_joint_loaders
from headrace.observe.whatif.loaders_in_turn import main_loader
from headrace.observe.whatif.tables import Floats, Tables, columns
from headrace.observe.whatif.train_steps import TrainSteps, read_steps
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


FEWEST_STEPS = 10
_BLOCK_STEPS = 8
_MOST_BLOCKS = 2000
_RESAMPLES = 2000
_INTERVAL = (5.0, 95.0)  # percent
_RUN_DEVIATION = 0.02 / 1.645 / 2**0.5
"""Standard deviation of a run's speed such that 90 % of pairs of runs differ by less than 2 %."""
_EACH = 5.0 / len(PHASES)
_INTERVAL_OF_EACH = (_EACH, 100.0 - _EACH)
_SETTINGS = {
    "workers": "num_workers",
    "prefetch_factor": "prefetch_factor",
    "batch_size": "batch_size",
    "pinned": "pin_memory",
    "persistent": "persistent_workers",
    "in_order": "in_order",
    "start_method": "start method",
    "kind": "loader",
    "dataset": "dataset",
}
"""Columns of the table `loaders` in which runs may differ, and their names for users."""


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
    one, other = _steps(before, "The first run"), _steps(after, "The second run")
    rates = [steps.samples_per_s for steps in (one, other)]
    by_steps = float(one.wall_ns.mean() / other.wall_ns.mean())
    speedup = rates[1] / rates[0] if rates[0] and rates[1] else by_steps
    walls = _resampled(one, one.wall_ns, seed=1), _resampled(other, other.wall_ns, seed=2)
    ratios = speedup / by_steps * walls[0] / walls[1]
    low, high = np.percentile(ratios, _INTERVAL)
    changes = (
        _change(phase, one, other, [each.phase_ns(phase) for each in (one, other)])
        for phase in PHASES
    )
    return Comparison(
        before_ms=float(one.wall_ns.mean() / 1e6),
        after_ms=float(other.wall_ns.mean() / 1e6),
        before_samples_per_s=rates[0],
        after_samples_per_s=rates[1],
        before_data_wait_share=one.data_wait_share,
        after_data_wait_share=other.data_wait_share,
        speedup=speedup,
        low=float(low),
        high=float(high),
        before_steps=len(one),
        after_steps=len(other),
        phases=tuple(each for each in changes if max(each.before_ms, each.after_ms) > 0),
        step=_change("step", one, other, [one.wall_ns, other.wall_ns], _INTERVAL),
        settings=_changed_settings(
            {**_settings(before, one), **made_with[0]}, {**_settings(after, other), **made_with[1]}
        ),
    )


def _change(
    phase: str,
    one: TrainSteps,
    other: TrainSteps,
    spent_ns: Sequence[Floats],
    interval: tuple[float, float] = _INTERVAL_OF_EACH,
) -> PhaseChange:
    before_ns, after_ns = spent_ns
    longer_ns = _resampled(other, after_ns, seed=2) - _resampled(one, before_ns, seed=1)
    low, high = np.percentile(longer_ns, interval)
    return PhaseChange(
        phase=phase,
        before_ms=float(before_ns.mean() / 1e6),
        after_ms=float(after_ns.mean() / 1e6),
        low_ms=float(low / 1e6),
        high_ms=float(high / 1e6),
    )


def _settings(tables: Tables, steps: TrainSteps) -> dict[str, str]:
    """Return a run's settings, as far as runs may differ in them."""
    settings = {"ranks": str(len(steps.ranks))}
    loaders, main = columns(tables, "loaders"), main_loader(steps)
    batches, fetches = columns(tables, "batches"), columns(tables, "fetches")
    joint = read_joint_loaders(steps, main, loaders, batches, fetches)
    # By their numbers: which of those that a step takes batches of is waited for may change.
    for place, number in enumerate(sorted({main, *(each.number for each in joint)}), start=1):
        rows, which = loaders.having(loader=number), f" of loader {place}" if place > 1 else ""
        if rows.count:
            settings |= {f"{label}{which}": str(rows[name][0]) for name, label in _SETTINGS.items()}
    return settings


def _changed_settings(before: dict[str, str], after: dict[str, str]) -> tuple[SettingChange, ...]:
    return tuple(
        SettingChange(setting=name, before=before.get(name, "-"), after=after.get(name, "-"))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    )


def check_steps(steps: TrainSteps, run: str) -> None:
    """Raise RecordsError where a run, as its message names it, has too few steps to be compared."""
    if len(steps) < FEWEST_STEPS:
        raise RecordsError(
            f"{run} has {len(steps)} training steps after its warm-up; to compare runs takes "
            f"{FEWEST_STEPS}. Let it train longer."
        )


def _steps(tables: Tables, run: str) -> TrainSteps:
    steps = read_steps(tables)
    check_steps(steps, run)
    return steps


def _resampled(steps: TrainSteps, spent_ns: Floats, seed: int) -> Floats:
    """Return means of resampled series as long as the original, drawn in blocks of neighbours.

    Steps of several ranks with the same number count as one.
    """
    _, number, together = np.unique(steps.rows["step"], return_inverse=True, return_counts=True)
    spent_ns = np.bincount(number, weights=spent_ns) / together
    count = len(spent_ns)
    # Long runs have longer blocks, which limits their number.
    length = max(min(_BLOCK_STEPS, count), -(-count // _MOST_BLOCKS))
    blocks = -(-count // length)
    random = np.random.default_rng(seed)
    begins = random.integers(0, count, size=(_RESAMPLES, blocks))
    sums_before = np.append(0.0, np.cumsum(np.append(spent_ns, spent_ns[:length])))
    sums = sums_before[begins + length] - sums_before[begins]
    means: Floats = sums.sum(axis=1) / (blocks * length)
    return means * random.normal(1.0, _RUN_DEVIATION, size=_RESAMPLES)


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
