"""What a recorded run predicts of added auxiliary hosts, and how right that was."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.observe.whatif.comparison import TimeSlice
from headrace.observe.whatif.measured_pipeline import measure
from headrace.observe.whatif.prediction import Prediction, Simulator, with_auxiliary
from headrace.observe.whatif.tables import CachedTables, columns
from headrace.records.reader import open_records


def forecast_from(run_folder: Path, cores: int) -> Prediction:
    """Return what so many cores for each rank are predicted to give, without the first epoch."""
    records = open_records(run_folder)
    fetches = columns(records, "fetches")
    begin_ns = int(fetches["start_ns"][fetches["epoch"] == 1].min())
    measured = measure(CachedTables(TimeSlice(records, begin_ns=begin_ns)))
    assert measured is not None  # it has enough steps
    return with_auxiliary(Simulator(measured), cores)


@dataclass(frozen=True, slots=True)
class Forecasts:
    """What runs without auxiliary hosts predicted of jobs with some, and what those did.

    Attributes:
        rates: Samples a second of jobs, in each round.
        predictions: Of jobs, in the same rounds.
        alone: Samples a second of the runs that predicted it.
    """

    rates: Mapping[Any, Sequence[float]]
    predictions: Mapping[Hashable, Sequence[Prediction]]
    alone: Sequence[float]

    def likely(self, job: Hashable) -> list[float]:
        """Return the samples a second that were predicted of a job."""
        pairs = zip(self.predictions[job], self.alone, strict=True)
        return [prediction.speedup * alone for prediction, alone in pairs]

    def mean_errors(self) -> list[float]:
        """Return for each round by what share of what was measured it was off, on average."""
        off = [
            [abs(one / other - 1) for one, other in zip(likely, self.rates[job], strict=True)]
            for job, likely in ((job, self.likely(job)) for job in self.predictions)
        ]
        return _means(off)

    def held(self) -> list[float]:
        """Return for each round the share of the intervals that hold what was measured."""
        held = []
        for job, predictions in self.predictions.items():
            rounds = zip(predictions, self.rates[job], self.alone, strict=True)
            held.append([float(each.low <= rate / alone <= each.high)
                         for each, rate, alone in rounds])  # fmt: skip
        return _means(held)


def _means(jobs: list[list[float]]) -> list[float]:
    return [sum(each) / len(each) for each in zip(*jobs, strict=True)]
