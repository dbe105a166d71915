"""Training steps without the warm-up, by the host's and the device's clock; their fixed cost.

The host only puts work into the device's queue. The host's phase tells when work was put there, not
when it is done: the host may wait for data while the device still has work, and wait for the device
in any call once the queue is full. By the device's clock, data wait is the time for which the
device had no work, and each phase is the time in which the device ran it. Gaps between the kernels
of a phase count to that phase, so its time is an upper bound.

Gradient sync is measured in some steps alone: DDP times one iteration of so many. In the others it
is part of backward, and the same share of the two is taken to be sync there as in the measured
steps of the rank. So every share of sync is over all steps.

A step in which a rank waits for another one that evaluates or saves meanwhile is shorter by that:
see `rank_waits`. The time counts as what the other rank does.

The fixed cost is the part of a step that does not grow with the batch: if steps had different
numbers of samples, it is the intercept of a line fitted to their own time over the samples.
Otherwise it is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from headrace.observe.whatif.rank_waits import RankWaits, read_rank_waits, without_waits
from headrace.observe.whatif.tables import Columns, Flags, Floats, Ints, Tables, columns
from headrace.records.data_frames import device_row_numbers
from headrace.records.schema import PHASES

_LEAST_DEVICE_SHARE = 0.5
"""If fewer of the steps have a row by the device's clock, that clock is not used."""
MODEL_PHASES = ("forward", "backward", "optimizer")


def unmeasured_sync_ns(
    ranks: Ints, backward_ns: Floats, sync_ns: Floats, measured: Flags
) -> Floats:
    """Return the sync that backward is taken to hold in steps in which it was not measured."""
    within = np.zeros(len(backward_ns))
    if measured.all() or not measured.any():
        return within
    for rank in np.unique(ranks[measured]):
        mine = ranks == rank
        known, unknown = mine & measured, mine & ~measured
        both_ns = float(sync_ns[known].sum() + backward_ns[known].sum())
        share = float(sync_ns[known].sum()) / both_ns if both_ns > 0 else 0.0
        within[unknown] = share * backward_ns[unknown]
    return within


def phase_time_ns(steps: Columns, phase: str) -> Floats:
    """Return the time of each row of `steps` in a phase of `schema.PHASES`."""
    spent = np.maximum(steps[f"{phase}_ns"].astype(np.float64), 0.0)
    if phase not in ("backward", "sync"):
        return spent
    backward, sync = (np.maximum(steps[f"{name}_ns"], 0) for name in ("backward", "sync"))
    within = unmeasured_sync_ns(steps["rank"], backward, sync, steps["sync_measured"] > 0)
    return spent + within if phase == "sync" else spent - within


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSteps:
    """Some steps by the device's clock, at least one of them known."""

    rows: Columns  # the table `device_steps`
    places: Ints  # for each step the index of its row there; -1 if it was lost
    sync_measured: Flags  # for each step

    @property
    def known(self) -> Flags:
        """Which of the steps have a row."""
        return self.places >= 0

    @property
    def wall_ns(self) -> Floats:
        """The duration of each step that has a row."""
        return self._column("device_wall_ns")

    def phase_ns(self, phase: str) -> Floats:
        """Return the time in a phase of `schema.PHASES` for each step that has a row."""
        spent = self._column(f"device_{phase}_ns")
        if phase not in ("backward", "sync"):
            return spent
        within = unmeasured_sync_ns(
            self.rows["rank"][self.places[self.known]],
            self._column("device_backward_ns"),
            self._column("device_sync_ns"),
            self.sync_measured[self.known],
        )
        return spent + within if phase == "sync" else spent - within

    def share(self, phase: str) -> float:
        """Return the share of the device's time in a phase, 0 to 1."""
        return float(self.phase_ns(phase).sum()) / max(float(self.wall_ns.sum()), 1.0)

    @property
    def shares(self) -> dict[str, float]:
        """The share of every phase."""
        return {phase: self.share(phase) for phase in PHASES}

    @property
    def model_share(self) -> float:
        """The share of the device's time in the model, gaps included, 0 to 1."""
        return sum(self.share(phase) for phase in MODEL_PHASES)

    def of(self, where: Flags) -> DeviceSteps | None:
        """Return the steps selected by a mask; None if none of them is known."""
        places, measured = self.places[where], self.sync_measured[where]
        if not (places >= 0).any():
            return None
        return DeviceSteps(rows=self.rows, places=places, sync_measured=measured)

    def _column(self, name: str) -> Floats:
        return np.maximum(self.rows[name][self.places[self.known]].astype(np.float64), 0.0)


def read_device_steps(
    tables: Tables, steps: Columns, wait_ns: Ints | None = None
) -> DeviceSteps | None:
    """Return rows of `steps` by the device's clock; None if too few of them are known.

    Args:
        tables: The run's tables.
        steps: The rows.
        wait_ns: For how long of each the device waits for ranks that do not train; None: for none.
    """
    rows = columns(tables, "device_steps")
    if not rows.count or not steps.count:
        return None
    places = device_row_numbers(steps, rows)
    known = places >= 0
    if wait_ns is not None and wait_ns[known].any():
        of_rows = np.zeros(rows.count, dtype=np.int64)
        of_rows[places[known]] = wait_ns[known]
        rows = without_waits(rows, of_rows, "device_")
    device = DeviceSteps(rows=rows, places=places, sync_measured=steps["sync_measured"] > 0)
    return device if device.known.mean() >= _LEAST_DEVICE_SHARE else None


def rank_waits(tables: Tables, steps: Columns) -> RankWaits:
    """Return the waits for ranks that do not train, of all rows of `steps` in some order."""
    has_device = columns(tables, "device_steps").count > 0
    return read_rank_waits(steps, has_device=has_device)


def train_rows(tables: Tables, kind: str = "train") -> tuple[Columns, Ints]:
    """Return all rows of steps, by rank and time, without their waits for ranks that do not train.

    Args:
        tables: The run's tables.
        kind: Of the rows; "eval" for a run without an optimizer.

    Returns:
        The rows, and how much shorter each is, in ns.
    """
    every = columns(tables, "steps")
    waits = rank_waits(tables, every)
    wanted = np.flatnonzero(every["kind"] == kind)
    wanted = wanted[np.lexsort((every["start_ns"][wanted], every["rank"][wanted]))]
    wait_ns: Ints = waits.wait_ns[wanted]
    return without_waits(every.where(wanted), wait_ns), wait_ns


WARM_UP_STEPS = 2
"""Always left out: the first step waits for the first batch and initialises the device."""
_WARM_UP_FACTOR = 3.0
"""Further steps that are so many times slower than the median belong to the warm-up, too."""
_LONGEST_WARM_UP_STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSteps:
    """Training steps of all ranks without the warm-up."""

    rows: Columns  # of the table `steps`
    starts_loader: Flags  # for each: whether a loader's iteration began in it
    recorded: int  # training steps over all ranks, with the warm-up
    device: DeviceSteps | None = None  # the same steps by the accelerator's clock; None if unknown
    kind: str = "train"  # of the rows; "eval" for a run without an optimizer
    part: float = 1.0  # of the time of all steps, if these are of one loader of several in turn

    def __len__(self) -> int:
        return self.rows.count

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that took steps."""
        return tuple(int(rank) for rank in np.unique(self.rows["rank"]))

    @property
    def wall_ns(self) -> Floats:
        """The duration of each step."""
        return self.rows["wall_ns"].astype(np.float64)

    @property
    def batches(self) -> Floats:
        """How many batches each step took, at least one."""
        return np.maximum(self.rows["batches"].astype(np.float64), 1.0)

    @property
    def samples_per_s(self) -> float | None:
        """The samples a second of all ranks together; None where some were not counted."""
        samples = self.rows["samples"].astype(np.float64)
        if np.any(samples < 0) or not samples.any():
            return None
        return float(samples.sum() / self.wall_ns.sum() * 1e9 * len(self.ranks))

    def times_of(self, rank: int) -> tuple[Ints, Ints]:
        """Return when each step of a rank began and ended, in ns, ascending."""
        mine = self.rows["rank"] == rank
        begins: Ints = self.rows["start_ns"][mine]
        return begins, begins + self.rows["wall_ns"][mine]

    def phase_ns(self, phase: str) -> Floats:
        """Return the time of each step in a phase of `schema.PHASES`."""
        return phase_time_ns(self.rows, phase)

    def share(self, phase: str) -> float:
        """Return the share of all step time in a phase, 0 to 1."""
        return self._share(self.phase_ns(phase))

    def _share(self, spent_ns: Floats) -> float:
        total = float(self.wall_ns.sum())
        return float(spent_ns.sum()) / total if total > 0 else 0.0

    def _seconds(self, spent_ns: Floats) -> float:
        """Return seconds as the mean over the ranks."""
        return float(spent_ns.sum()) / max(len(self.ranks), 1) / 1e9

    @property
    def data_wait_ns(self) -> Floats:
        """The time for which the accelerator waited for data in each step.

        By its own clock if known: while it has work, the script's waits cost nothing. For steps
        whose row was lost, the same ratio to the script's wait is assumed as for the others.
        Without that clock, the script's wait.
        """
        waited = self.phase_ns("data_wait")
        if self.device is None:
            return waited
        known = self.device.known
        # It cannot wait longer for data than the script does: more is the clocks' inaccuracy.
        device_wait = np.minimum(self.device.phase_ns("data_wait"), waited[known])
        waited *= device_wait.sum() / max(float(waited[known].sum()), 1.0)
        waited[known] = device_wait
        return waited

    @property
    def data_wait_share(self) -> float:
        """The share of step time for which the accelerator waited for data, 0 to 1."""
        return self._share(self.data_wait_ns)

    @property
    def data_wait_seconds(self) -> float:
        """Seconds for which an accelerator waited for data, as the mean over the ranks."""
        return self._seconds(self.data_wait_ns)

    @property
    def copy_ns(self) -> Floats:
        """The time of copies to the device in each step: by its own clock if known.

        The script may wait in a copy for the device's earlier work. For steps whose row was lost,
        the mean of the others counts.
        """
        copied = self.phase_ns("copy")
        if self.device is not None:
            by_device = self.device.phase_ns("copy")
            copied[:] = by_device.mean()
            copied[self.device.known] = by_device
        return copied

    @property
    def total_seconds(self) -> float:
        """Seconds of a rank's steps, as the mean over the ranks."""
        return self._seconds(self.wall_ns)

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
        """Return the steps selected by a mask."""
        return TrainSteps(
            rows=self.rows.where(where),
            starts_loader=self.starts_loader[where],
            recorded=self.recorded,
            device=self.device.of(where) if self.device is not None else None,
            kind=self.kind,
            part=self.part,
        )

    @property
    def steady(self) -> TrainSteps:
        """The steps in which no loader's iteration began."""
        return self.of(~self.starts_loader)

    @property
    def after_begins(self) -> Flags:
        """Which steps begin an iteration, or come after one of their rank that does.

        The first iteration's begin is warm-up: with its other steps, begins would look rarer.
        """
        after: Flags = np.zeros(len(self), dtype=np.bool_)
        for rank in self.ranks:
            mine = self.rows["rank"] == rank
            after[mine] = np.cumsum(self.starts_loader[mine]) > 0
        return after


def read_steps(tables: Tables, *, any_kind: bool = False) -> TrainSteps:
    """Return the training steps of a run without the warm-up.

    Args:
        tables: The run's tables.
        any_kind: In a run without an optimizer, such as inference, return its batches instead.
    """
    every, kind = columns(tables, "steps"), "train"
    if any_kind and not (every["kind"] == kind).any():
        kind = "eval"
    steps, wait_ns = train_rows(tables, kind)
    recorded, counted = steps.count, _counted_rows(steps)
    steps, wait_ns = steps.where(counted), wait_ns[counted]
    return TrainSteps(
        rows=steps,
        starts_loader=_loader_start_mask(steps, wait_ns, columns(tables, "fetches")),
        recorded=recorded,
        device=read_device_steps(tables, steps, wait_ns),
        kind=kind,
    )


def _rank_slices(steps: Columns) -> Iterator[tuple[int, slice]]:
    """Yield each rank with where its rows are, of rows in the order of their ranks."""
    ranks = steps["rank"]
    bounds = [*np.flatnonzero(np.diff(ranks, prepend=ranks[:1] - 1)).tolist(), len(ranks)]
    for begin, end in pairwise(bounds):
        yield int(ranks[begin]), slice(begin, end)


def _counted_rows(steps: Columns) -> Flags:
    counted = np.ones(steps.count, dtype=np.bool_)
    wall_ns = steps["wall_ns"].astype(np.float64)
    for _, mine in _rank_slices(steps):
        slow = wall_ns[mine] > _WARM_UP_FACTOR * np.median(wall_ns[mine])
        skipped = min(WARM_UP_STEPS, len(slow))
        while skipped < min(_LONGEST_WARM_UP_STEPS, len(slow) // 4) and slow[skipped]:
            skipped += 1
        counted[mine.start : mine.start + skipped] = False
    return counted


def _loader_start_mask(steps: Columns, wait_ns: Ints, fetches: Columns) -> Flags:
    starts = np.zeros(steps.count, dtype=np.bool_)
    first = fetches.having(batch=0, ended=0)
    first_ranks, first_ns = first["rank"], first["start_ns"]
    start = steps["start_ns"]
    end = start + steps["wall_ns"] + wait_ns
    for rank, mine in _rank_slices(steps):
        begins: Ints = np.sort(first_ns[first_ranks == rank])
        starts[mine] = np.searchsorted(begins, start[mine]) < np.searchsorted(begins, end[mine])
    return starts


_FIT_FEWEST_STEPS = 20
_FIT_SPREAD = 0.1
"""Least standard deviation of the samples of a step, as a share of their mean, for a fit."""
_FIT_DRAWINGS, _FIT_SEED = 200, 23


def fixed_cost_ns(steps: TrainSteps) -> tuple[float, float] | None:
    """Return the fixed cost of a batch, lower and upper end; None if the steps do not show it."""
    samples = steps.rows["samples"].astype(np.float64) / steps.batches
    own = (steps.wall_ns - steps.data_wait_ns) / steps.batches
    known = samples > 0
    samples, own = samples[known], own[known]
    if len(samples) < _FIT_FEWEST_STEPS or samples.std() < _FIT_SPREAD * samples.mean():
        return None
    drawn = np.random.default_rng(_FIT_SEED).integers(len(own), size=(_FIT_DRAWINGS, len(own)))
    x, y = samples[drawn], own[drawn]
    deviation = x - x.mean(axis=1, keepdims=True)
    slope = (deviation * y).sum(axis=1) / np.maximum((deviation**2).sum(axis=1), 1e-9)
    fixed = np.clip(y.mean(axis=1) - slope * x.mean(axis=1), 0.0, y.mean(axis=1))
    low, high = np.percentile(fixed, (5, 95))
    return float(low), float(high)
