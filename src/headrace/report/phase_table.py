"""The table of phases, which is also their chart: `run.phases`, and `run.phases()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd


class PhaseTable(pd.DataFrame):
    """A data frame that returns its chart when called; frames derived from it are plain ones."""

    _metadata = ["_draw"]  # noqa: RUF012 - pandas' list of attributes that are no columns
    _draw: Callable[[], Any]

    @classmethod
    def of(cls, frame: pd.DataFrame, draw: Callable[[], Any]) -> PhaseTable:
        """Return the data frame with a function that draws it."""
        table = cls(frame)
        table._draw = draw
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        return pd.DataFrame, (pd.DataFrame(self),)

    def __call__(self) -> Any:
        """Return a figure: the mean training step of each rank, split into phases."""
        return self._draw()
