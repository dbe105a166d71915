"""The table of phases, which is also their chart: `run.phases`, and `run.phases()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd


class PhaseTable(pd.DataFrame):
    """A data frame that draws itself when it is called; what is made of it is a plain one."""

    _metadata = ["_draw"]  # noqa: RUF012 - as pandas has it: attributes that are no columns
    _draw: Callable[[], Any]

    @classmethod
    def of(cls, frame: pd.DataFrame, draw: Callable[[], Any]) -> PhaseTable:
        """Return the data frame, with how to draw it."""
        table = cls(frame)
        table._draw = draw
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        return pd.DataFrame, (pd.DataFrame(self),)

    def __call__(self) -> Any:
        """Return a figure: the mean training step of each rank, cut into phases."""
        return self._draw()
