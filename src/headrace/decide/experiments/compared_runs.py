"""Recorded runs side by side, each compared with the first: speed, phases, settings, cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.observe.whatif.comparison import Comparison, compare
from headrace.records.reader import open_records, run_provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A run among others.

    Attributes:
        step_ms: Of a mean step.
        samples_per_s: Of all ranks together; None if not counted.
        speedup: Over the first run, by samples a second, or else by steps a second; 1 for itself.
        low: Of its 90 % interval.
        high: Of the same.
        phases_ms: Of a mean step, by phase.
        settings: Those in which any of the runs differs from the first, by name.
        usd_per_1k_samples: None where prices or samples are not known.
    """

    name: str
    step_ms: float
    samples_per_s: float | None
    speedup: float
    low: float
    high: float
    phases_ms: dict[str, float]
    settings: dict[str, str]
    usd_per_1k_samples: float | None

    @property
    def differs(self) -> bool:
        """Whether its speed differs from the first run's beyond noise."""
        return not self.low <= 1.0 <= self.high

    @property
    def data_wait_share(self) -> float:
        """The share of step time in data wait, 0 to 1."""
        return self.phases_ms.get("data_wait", 0.0) / self.step_ms if self.step_ms else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's own types."""
        return {
            **asdict(self), "differs": self.differs, "data_wait_share": self.data_wait_share,
        }  # fmt: skip


def compared_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    """Return runs, two or more, compared with the first of them.

    Raises RecordsError: one of them has no records, or too few steps.
    """
    records = [open_records(folder) for folder in folders]
    made_with = [run_provenance(each) for each in records]
    comparisons = [
        compare(records[0], each, made_with=(made_with[0], made))
        for each, made in zip(records[1:], made_with[1:], strict=True)
    ]
    names = [folder.name for folder in folders]
    costs = [_usd_per_1k_samples(folder) for folder in folders]
    first = comparisons[0]
    settings = _settings(comparisons)
    found = [
        ComparedRun(
            name=names[0], step_ms=first.before_ms, samples_per_s=first.before_samples_per_s,
            speedup=1.0, low=1.0, high=1.0, settings=next(settings),
            phases_ms={each.phase: each.before_ms for each in first.phases},
            usd_per_1k_samples=costs[0],
        )
    ]  # fmt: skip
    for name, each, cost in zip(names[1:], comparisons, costs[1:], strict=True):
        found.append(
            ComparedRun(
                name=name, step_ms=each.after_ms, samples_per_s=each.after_samples_per_s,
                speedup=each.speedup, low=each.low, high=each.high, settings=next(settings),
                phases_ms={change.phase: change.after_ms for change in each.phases},
                usd_per_1k_samples=cost,
            )
        )  # fmt: skip
    return found


def _settings(comparisons: Sequence[Comparison]) -> Iterator[dict[str, str]]:
    """Yield the settings of the first run and of each other in which any of them differs."""
    first = {each.setting: each.before for found in comparisons for each in found.settings}
    yield first
    for found in comparisons:
        yield {**first, **{each.setting: each.after for each in found.settings}}


def _usd_per_1k_samples(folder: Path) -> float | None:
    """Return what a thousand samples cost; None where that is not known."""
    from headrace.decide.cost.run_cost import known_cost

    try:
        cost = known_cost(folder)
    except HeadraceError:  # said by `headrace cost show`
        return None
    return None if cost is None else cost.usd_per_1k_samples
