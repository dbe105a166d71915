"""Training steps by the accelerator's own clock, beside those by the host's.

The host only puts work into the device's queue. Where the host stands says when that was put there,
not when it is done: it may wait for data while the device still has work, and wait for the device
in whatever it does when the queue is full. By the device's clock the wait for data is what the
device felt of it, and each phase has the time in which the device was at it. Gaps between the
kernels of one phase belong to that phase, so what a phase takes is the most that the device is
busy with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.tables import Columns, Flags, Floats, Ints, Tables, columns, length
from headrace.records.device_rows import device_places
from headrace.records.schema import PHASES

_FEWEST_SHARE = 0.5
"""Where fewer of the steps have a row by the device's clock, it is not relied on."""
MODEL_PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSteps:
    """What the device's clock says of some steps, at least one of them.

    Attributes:
        rows: The table `device_steps`.
        places: For each step the place of its row there; -1 where it was lost.
    """

    rows: Columns
    places: Ints

    @property
    def known(self) -> Flags:
        """Which of the steps have a row."""
        return self.places >= 0

    @property
    def wall_ns(self) -> Floats:
        """How long each step took that has a row."""
        return self._column("device_wall_ns")

    def phase_ns(self, phase: str) -> Floats:
        """Return how long each step that has a row spent in a phase of `schema.PHASES`."""
        return self._column(f"device_{phase}_ns")

    def share(self, phase: str) -> float:
        """Return which share of the device's time a phase took, 0 to 1."""
        return float(self.phase_ns(phase).sum()) / max(float(self.wall_ns.sum()), 1.0)

    @property
    def shares(self) -> dict[str, float]:
        """The share of every phase."""
        return {phase: self.share(phase) for phase in PHASES}

    @property
    def model_share(self) -> float:
        """The share of its time in which the device was at the model, gaps included, 0 to 1."""
        return sum(self.share(phase) for phase in MODEL_PHASES)

    def of(self, where: Flags) -> DeviceSteps | None:
        """Return what it says of the steps that a mask chooses; None: nothing."""
        places = self.places[where]
        return DeviceSteps(rows=self.rows, places=places) if (places >= 0).any() else None

    def _column(self, name: str) -> Floats:
        values = self.rows[name][self.places[self.known]]
        return np.maximum(values.astype(np.float64), 0.0)


def read_device_steps(tables: Tables, steps: Columns) -> DeviceSteps | None:
    """Return what the device's clock says of some steps; None: nothing, or of too few of them.

    Args:
        tables: The run's records.
        steps: Rows of the table `steps`.
    """
    rows = columns(tables, "device_steps")
    if length(rows) == 0 or length(steps) == 0:
        return None
    device = DeviceSteps(rows=rows, places=device_places(steps, rows))
    return device if device.known.mean() >= _FEWEST_SHARE else None
