"""The training steps that count: not those in which the script warms up.

Their phases are the host's; `device` has them by the accelerator's clock, where that was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.device import DeviceSteps, read_device_steps
from headrace.observe.whatif.tables import (
    Columns,
    Flags,
    Floats,
    Ints,
    Tables,
    chosen,
    columns,
    length,
)
from headrace.records.schema import PHASES

WARM_UP_STEPS = 2
"""Always left out: the first step waits for the first batch and initialises the device."""
_WARM_UP_FACTOR = 3.0
"""Steps that go on being so many times slower than the median still belong to the warm-up."""
_LONGEST_WARM_UP_STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSteps:
    """Train steps of all ranks without the warm-up.

    Attributes:
        rows: The table `steps`, these rows.
        starts_loader: For each: whether a loader began to iterate in it.
        recorded: How many train steps were recorded, over all ranks, with the warm-up.
        device: The same steps by the accelerator's clock; None where that is not known.
    """

    rows: Columns
    starts_loader: Flags
    recorded: int
    device: DeviceSteps | None = None

    def __len__(self) -> int:
        """Return how many steps count, over all ranks."""
        return length(self.rows)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that took steps."""
        return tuple(int(rank) for rank in np.unique(self.rows["rank"]))

    @property
    def wall_ns(self) -> Floats:
        """How long each step took."""
        return self.rows["wall_ns"].astype(np.float64)

    def times_of(self, rank: int) -> tuple[Ints, Ints]:
        """When each step of a rank began and ended, in ns, ascending."""
        mine = self.rows["rank"] == rank
        begins: Ints = self.rows["start_ns"][mine]
        return begins, begins + self.rows["wall_ns"][mine]

    def phase_ns(self, phase: str) -> Floats:
        """Return how long each step spent in a phase of `schema.PHASES`."""
        return np.maximum(self.rows[f"{phase}_ns"].astype(np.float64), 0.0)

    def share(self, phase: str) -> float:
        """Return which share of all step time a phase took, 0 to 1."""
        total = float(self.wall_ns.sum())
        return float(self.phase_ns(phase).sum()) / total if total > 0 else 0.0

    def seconds(self, phase: str) -> float:
        """Return how many seconds a rank spent in a phase, as the mean over the ranks."""
        return float(self.phase_ns(phase).sum()) / max(len(self.ranks), 1) / 1e9

    @property
    def data_wait_ns(self) -> Floats:
        """How long the accelerator waited for data in each step.

        By its own clock where that is known: while it has work the script may wait for free. Of a
        step whose row was lost the same part counts as of the others. Elsewhere: all that the
        script waited.
        """
        waited = self.phase_ns("data_wait")
        if self.device is None:
            return waited
        known = self.device.known
        # It cannot wait for data when the script does not: more is the clocks' own inaccuracy.
        felt = np.minimum(self.device.phase_ns("data_wait"), waited[known])
        waited *= felt.sum() / max(float(waited[known].sum()), 1.0)
        waited[known] = felt
        return waited

    @property
    def data_wait_share(self) -> float:
        """Which share of step time the accelerator waited for data, 0 to 1."""
        total = float(self.wall_ns.sum())
        return float(self.data_wait_ns.sum()) / total if total > 0 else 0.0

    @property
    def data_wait_seconds(self) -> float:
        """How many seconds an accelerator waited for data, as the mean over the ranks."""
        return float(self.data_wait_ns.sum()) / max(len(self.ranks), 1) / 1e9

    @property
    def copy_ns(self) -> Floats:
        """How long each step copied to the device: by its own clock where that is known.

        The script may wait in a copy for what the device was given before. Of a step whose row was
        lost the mean of the others counts.
        """
        copied = self.phase_ns("copy")
        if self.device is not None:
            by_device = self.device.phase_ns("copy")
            copied[:] = by_device.mean()
            copied[self.device.known] = by_device
        return copied

    @property
    def total_seconds(self) -> float:
        """How many seconds a rank's steps took, as the mean over the ranks."""
        return float(self.wall_ns.sum()) / max(len(self.ranks), 1) / 1e9

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """From the start of the first step to the end of the last; None without steps."""
        if len(self) == 0:
            return None
        start = self.rows["start_ns"]
        return int(start.min()), int((start + self.rows["wall_ns"]).max())

    @property
    def shares(self) -> dict[str, float]:
        """The share of every phase."""
        return {phase: self.share(phase) for phase in PHASES}

    def of(self, where: Flags) -> TrainSteps:
        """Return the steps that a mask chooses."""
        return TrainSteps(
            rows=chosen(self.rows, where),
            starts_loader=self.starts_loader[where],
            recorded=self.recorded,
            device=self.device.of(where) if self.device is not None else None,
        )

    @property
    def steady(self) -> TrainSteps:
        """The steps in which no loader began."""
        return self.of(~self.starts_loader)


def read_steps(tables: Tables) -> TrainSteps:
    """Return the train steps of a run that count."""
    steps = columns(tables, "steps")
    if length(steps) == 0:
        return TrainSteps(rows=steps, starts_loader=np.zeros(0, dtype=np.bool_), recorded=0)
    steps = chosen(steps, steps["kind"] == "train")
    steps = chosen(steps, np.lexsort((steps["start_ns"], steps["rank"])))
    recorded = length(steps)
    steps = chosen(steps, _counted(steps))
    return TrainSteps(
        rows=steps,
        starts_loader=_starts_loader(steps, columns(tables, "fetches")),
        recorded=recorded,
        device=read_device_steps(tables, steps),
    )


def _counted(steps: Columns) -> Flags:
    counted = np.ones(length(steps), dtype=np.bool_)
    for rank in np.unique(steps["rank"]):
        places = np.flatnonzero(steps["rank"] == rank)
        wall = steps["wall_ns"][places].astype(np.float64)
        slow = wall > _WARM_UP_FACTOR * np.median(wall)
        skipped = min(WARM_UP_STEPS, len(places))
        while skipped < min(_LONGEST_WARM_UP_STEPS, len(places) // 4) and slow[skipped]:
            skipped += 1
        counted[places[:skipped]] = False
    return counted


def _starts_loader(steps: Columns, fetches: Columns) -> Flags:
    starts = np.zeros(length(steps), dtype=np.bool_)
    if length(fetches) == 0:
        return starts
    first = chosen(fetches, (fetches["batch"] == 0) & (fetches["ended"] == 0))
    for rank in np.unique(steps["rank"]):
        places = np.flatnonzero(steps["rank"] == rank)
        begins: Ints = np.sort(first["start_ns"][first["rank"] == rank])
        start = steps["start_ns"][places]
        end = start + steps["wall_ns"][places]
        starts[places] = np.searchsorted(begins, start) < np.searchsorted(begins, end)
    return starts
