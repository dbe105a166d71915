"""Backtest of predictions: what was predicted, what was measured, and the error."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import RecordsError
from headrace.core.files import write_text_atomically

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
    text = json.dumps(asdict(checked), indent=2) + "\n"
    write_text_atomically(run / PREDICTION_FILE, text)


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
