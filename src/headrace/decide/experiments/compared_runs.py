"""Recorded runs side by side, each compared with the first: speed, phases, settings, cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import HeadraceError
from headrace.decide.cost.run_use import Utilisation, utilisation_in
from headrace.decide.experiments.logged_params import logged_params
from headrace.observe.whatif.comparison import Comparison, compare_speeds
from headrace.observe.whatif.run_speed import (
    FIRST_SEED,
    OTHER_SEED,
    RunSpeed,
    check_steps,
    run_speed,
)
from headrace.observe.whatif.tables import FEW_CACHED_BYTES, CachedTables
from headrace.observe.whatif.train_steps import TrainSteps, read_steps
from headrace.records.reader import Records, open_records, run_provenance

if TYPE_CHECKING:
    from headrace.decide.cost.run_cost import RunCost


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A run among others.

    Attributes:
        step_ms: Of a mean step.
        samples_per_s: Of all ranks together; None if not counted.
        data_wait_share: Of step time, 0 to 1, by the accelerator's clock where it is known, as in
            the verdict.
        speedup: Over the first run, by samples a second, or else by steps a second; 1 for itself.
        low: Of its 90 % interval.
        high: Of the same.
        phases_ms: Of a mean step, by phase, by the script's clock.
        settings: Those in which any of the runs differs from the first, by name.
        utilisation: How busy its hosts were, by their role.
        cost: None where prices are not known.
        comparison: With the first run; None of the first itself.
        folder: The run's.
    """

    name: str
    step_ms: float
    samples_per_s: float | None
    data_wait_share: float
    speedup: float
    low: float
    high: float
    phases_ms: dict[str, float]
    settings: dict[str, str]
    utilisation: Mapping[str, Utilisation]
    cost: RunCost | None
    comparison: Comparison | None = field(repr=False)
    folder: Path = field(repr=False)

    @property
    def usd_per_1k_samples(self) -> float | None:
        """Dollars for a thousand samples; None where prices or samples are not known."""
        return None if self.cost is None else self.cost.usd_per_1k_samples

    @property
    def differs(self) -> bool:
        """Whether its speed differs from the first run's beyond noise."""
        return not self.low <= 1.0 <= self.high

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's own types."""
        shown = (
            "name", "step_ms", "samples_per_s", "data_wait_share", "speedup", "low", "high",
            "phases_ms",
        )  # fmt: skip
        derived = ("settings", "usd_per_1k_samples", "differs")
        use = {role: asdict(each) for role, each in self.utilisation.items()}
        return {**{name: getattr(self, name) for name in (*shown, *derived)}, "utilisation": use}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """What a comparison needs of a run, or of a part of one, whose records it then does without.

    Attributes:
        folder: The run's.
        speed: Of its steps.
        utilisation: How busy its hosts were meanwhile, by their role.
    """

    folder: Path
    speed: RunSpeed
    utilisation: Mapping[str, Utilisation]


def compared_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    """Return the runs of two or more folders, compared with the first of them.

    Raises RecordsError: one of them has no records, or too few steps.
    """
    names = _names(folders)
    locked: set[Path] = set()
    # One after the other: the records of a long run take hundreds of megabytes.
    return compare_measured([
        measured_run(folder, name, is_first=not place, locked=locked)
        for place, (folder, name) in enumerate(zip(folders, names, strict=True))
    ])  # fmt: skip


def measured_run(
    folder: Path, name: str, *, is_first: bool, locked: set[Path] | None = None
) -> MeasuredRun:
    """Measure all of a run; see `measured_part`, also for `locked`.

    Raises RecordsError: it has no records, or too few steps, as the message says by its name.
    """
    records = open_records(folder)
    tables = CachedTables(records, FEW_CACHED_BYTES)
    steps = read_steps(tables)
    check_steps(steps, name)
    return measured_part(folder, records, tables, steps, is_first=is_first, locked=locked)


def measured_part(
    folder: Path,
    records: Records,
    tables: CachedTables,
    steps: TrainSteps,
    *,
    is_first: bool,
    locked: set[Path] | None = None,
) -> MeasuredRun:
    """Measure a part of a run.

    Args:
        folder: The run's.
        records: Those of its attempt.
        tables: The part of them that counts.
        steps: Read from these, and enough of them: see `check_steps`.
        is_first: Whether others are compared with it.
        locked: The databases that could not be read for runs before; see `logged_params`.
    """
    seed = FIRST_SEED if is_first else OTHER_SEED
    return MeasuredRun(
        folder=folder,
        speed=run_speed(tables, steps, made_with=_made_with(records, locked), seed=seed),
        utilisation=utilisation_in(tables, steps),
    )


def compare_measured(
    runs: Sequence[MeasuredRun], costs: Sequence[RunCost | None] | None = None
) -> list[ComparedRun]:
    """Return measured runs, two or more, compared with the first of them.

    Args:
        runs: The runs.
        costs: What each has cost; None: all of each was measured, and its cost is to be read.
    """
    if costs is None:
        costs = [cost_if_known(run.folder, run.utilisation) for run in runs]
    comparisons = [compare_speeds(runs[0].speed, each.speed) for each in runs[1:]]
    settings, speeds = _settings(comparisons), _speeds(comparisons)
    with_first = (None, *comparisons)
    names = _names([run.folder for run in runs])
    return [
        ComparedRun(
            name=name, folder=run.folder, settings=next(settings), comparison=comparison,
            utilisation=run.utilisation, cost=cost, **speed,
        )
        for name, run, cost, speed, comparison in zip(
            names, runs, costs, speeds, with_first, strict=True
        )
    ]  # fmt: skip


def _made_with(records: Records, locked: set[Path] | None) -> dict[str, str]:
    """Return what a run was made with: settings, versions, and as `param.NAME` what it logged."""
    params = {f"param.{name}": each for name, each in logged_params(records.path, locked).items()}
    return {**run_provenance(records), **params}


def _names(folders: Sequence[Path]) -> list[str]:
    """Return a name of each run: its folder's, with the one above where that is not distinct."""
    found: list[str] = []
    for folder in folders:
        is_distinct = len({each for each in folders if each.name == folder.name}) == 1
        name = base = folder.name if is_distinct else f"{folder.parent.name}/{folder.name}"
        number = 1
        while name in found:  # the same run once more
            number += 1
            name = f"{base} ({number})"
        found.append(name)
    return found


def fastest_sentence(runs: Sequence[ComparedRun]) -> str:
    """Return which of compared runs is the fastest, and by how much."""
    best = max(runs, key=lambda run: run.speedup)
    if best is runs[0] or not best.differs:
        return f"None is faster than {runs[0].name} beyond noise."
    interval = f"({best.low:.2f} to {best.high:.2f})"
    return f"{best.name} is the fastest: {best.speedup:.2f}x {runs[0].name} {interval}."


def _speeds(comparisons: Sequence[Comparison]) -> Iterator[dict[str, Any]]:
    """Yield the speed and phases of the first run, and of each that was compared with it."""
    first = comparisons[0]
    yield {
        "step_ms": first.before_ms, "samples_per_s": first.before_samples_per_s,
        "data_wait_share": first.before_data_wait_share,
        "speedup": 1.0, "low": 1.0, "high": 1.0,
        "phases_ms": {each.phase: each.before_ms for each in first.phases},
    }  # fmt: skip
    for found in comparisons:
        yield {
            "step_ms": found.after_ms, "samples_per_s": found.after_samples_per_s,
            "data_wait_share": found.after_data_wait_share,
            "speedup": found.speedup, "low": found.low, "high": found.high,
            "phases_ms": {each.phase: each.after_ms for each in found.phases},
        }  # fmt: skip


def _settings(comparisons: Sequence[Comparison]) -> Iterator[dict[str, str]]:
    """Yield the settings of the first run and of each other in which any of them differs."""
    first = {each.setting: each.before for found in comparisons for each in found.settings}
    yield first
    for found in comparisons:
        yield {**first, **{each.setting: each.after for each in found.settings}}


def cost_if_known(folder: Path, busy: Mapping[str, Utilisation] | None = None) -> RunCost | None:
    """Return what a run has cost; None where that cannot be known.

    Args:
        folder: The run's.
        busy: How busy its hosts were in all of it; None: that is read.
    """
    from headrace.decide.cost.run_cost import known_cost

    try:
        return known_cost(folder, busy=busy)
    except HeadraceError:  # said by `headrace cost show`
        return None
