"""What the rules look at: derived from the tables once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.core.overrides import Override
from headrace.observe.doctor.cores import (
    is_full,
    most_threads,
    wanted_by_ranks,
    wanted_by_workers,
)
from headrace.observe.doctor.model import Severity
from headrace.observe.doctor.sources import ran_since
from headrace.observe.doctor.stacks import Sighting, end_ns_of, read_sightings
from headrace.observe.doctor.transforms import TransformShare, rank_transforms
from headrace.observe.whatif.away import Away, read_away
from headrace.observe.whatif.host import Host, read_host
from headrace.observe.whatif.measured import (
    Work,
    loader_rows,
    main_loader,
    measured_from,
    read_work,
)
from headrace.observe.whatif.prediction import Prediction, Simulator
from headrace.observe.whatif.steps import TrainSteps, read_steps
from headrace.observe.whatif.tables import Columns, Flags, Tables, chosen, columns, length

FEWEST_STEPS = 10
"""With fewer steps than this after the warm-up nothing is said."""
WARNING, SERIOUS, CRITICAL = 0.05, 0.10, 0.20
"""Shares of step time lost: the thresholds of the field's live tools (5 and 10 % warn, 20 % is
critical)."""

_OWN_LOADER_HAS = frozenset({"num_workers", "prefetch_factor"})
"""Arguments of Headrace's loader that mean what they do in torch's."""
_OTHERS = 0.5
"""Where others of the host use this share of its cores, they are what fills them."""
_SOME, _MOST_OF_SYSTEM = 0.05, 0.5
"""Less than this share of the cores, or so many, is what the system takes, and is not spoken of."""
MOSTLY_BUSY = 0.35
"""Workers of a starved rank that are idle for longer than this are not what it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """The loader that feeds training, as in the table `loaders`.

    Attributes:
        number: Its number in its rank.
        kind: torch, headrace, or what else hands over batches.
        style: map or iterable.
        workers: Worker processes.
        prefetch_factor: Batches a worker prepares ahead.
        batch_size: Samples a batch; -1 where unknown.
        pinned: Whether batches are copied to page-locked memory.
        persistent: Whether workers live on after an epoch.
        file: Source file that constructed it.
        line: Line there.
        constructed: How often each rank constructed it.
    """

    number: int
    kind: str
    style: str
    workers: int
    prefetch_factor: int
    batch_size: int
    pinned: bool
    persistent: bool
    file: str
    line: int
    constructed: int

    @property
    def place(self) -> str:
        """Where it is constructed: " at train.py:40", or nothing where unknown."""
        return f" at {Path(self.file).name}:{self.line}" if self.file and self.line else ""

    def overridden(self, name: str, value: float) -> tuple[Override, ...]:
        """Return what gives it another argument without editing the script; empty: nothing can."""
        # A stream of torch's is iterated by each worker; Headrace's loader shares it out itself.
        known = {
            "torch": self.style == "map" or name != "num_workers",
            "headrace": name in _OWN_LOADER_HAS,
        }
        if not known.get(self.kind, False) or not self.place:
            return ()
        return (Override(name, int(value), f"{Path(self.file).name}:{self.line}"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a run.

    Attributes:
        steps: The train steps that count.
        loader: The loader that feeds them; None where there is none.
        work: The batches made for it; None where none were recorded.
        simulator: Predicts changes; None where too little was recorded.
        host: The host's cores, as the job feels them.
        away: What workers on auxiliary hosts did; None where they were not to do anything.
        wanted_threads: Threads of the run that ran or waited for a core of the host at a time.
        making: Where the making of batches was seen: in workers, or in ranks without workers.
        rank_seen: Where the ranks' main threads were seen.
        transforms: The loader's transforms, the most expensive first.
        processes: The table.
        fetches: The table.
        events: The table.
        system: The table.
        usage: The table `process_usage`.
    """

    steps: TrainSteps
    loader: Loader | None
    work: Work | None
    simulator: Simulator | None
    host: Host
    away: Away | None
    wanted_threads: float
    making: tuple[Sighting, ...]
    rank_seen: tuple[Sighting, ...]
    transforms: tuple[TransformShare, ...]
    processes: Columns
    fetches: Columns
    events: Columns
    system: Columns
    usage: Columns

    @property
    def enough(self) -> bool:
        """Whether enough steps were recorded to say anything."""
        return len(self.steps) >= FEWEST_STEPS

    @property
    def data_wait_share(self) -> float:
        """Data wait over step time, loader starts included, 0 to 1.

        What the accelerator waited by its own clock, where that is known; else the script.
        """
        return self.steps.data_wait_share

    @property
    def script_data_wait(self) -> Mapping[str, float]:
        """As evidence: the share that the script waited, where the accelerator's is told apart."""
        known = self.steps.device is not None
        return {"script_data_wait_share": self.steps.share("data_wait")} if known else {}

    @property
    def flowing(self) -> TrainSteps:
        """The steps that say how the loader keeps up: without its starts, if enough are left."""
        steady = self.steps.steady
        return steady if len(steady) >= FEWEST_STEPS else self.steps

    @property
    def flow_wait_seconds(self) -> float:
        """Seconds that a rank's accelerator waited for data, other than for loaders to start."""
        return self.flowing.data_wait_seconds

    @property
    def starved(self) -> bool:
        """Whether the loader does not keep up: data wait is above the lowest threshold."""
        return self.enough and self.flowing.data_wait_share >= WARNING

    @property
    def workers_busy(self) -> bool:
        """Whether batches are made all the time; without workers they are made on demand."""
        if self.work is None or self.loader is None:
            return False
        return self.loader.workers == 0 or self.work.idle_share <= MOSTLY_BUSY

    @property
    def cores_short(self) -> bool:
        """Whether the host has no core to spare, whoever uses them: workers wait for one too."""
        return is_full(self.host)

    @property
    def cores_full(self) -> bool:
        """Whether the host has no core to spare, and the run itself uses most of them."""
        return self.cores_short and self.host.foreign_cores < _OTHERS * self.host.cores

    @property
    def others_fill_cores(self) -> bool:
        """Whether it is others' work that leaves the host no core to spare."""
        return self.cores_short and not self.cores_full

    @property
    def others_crowd(self) -> bool:
        """Whether less than one core is idle on average, and others use more than that, and some.

        Whoever sleeps and wakes often then finds no core at times, and waits for a time slice.
        """
        idle = self.host.idle_cores
        least = min(_SOME * self.host.cores, _MOST_OF_SYSTEM)
        return idle is not None and idle < 1.0 and self.host.foreign_cores > max(idle, least)

    @property
    def others_use(self) -> str:
        """How much of the host others use, in words."""
        return (
            f"other processes use {self.host.foreign_cores:.1f} of the host's "
            f"{self.host.cores:g} cores"
        )

    def severity(self, seconds_lost: float) -> Severity:
        """Return how bad it is to lose so many seconds of a rank's steps."""
        return severity_of(seconds_lost / max(self.steps.total_seconds, 1e-9))

    def waits_solved(self, prediction: Prediction) -> float:
        """Return how many seconds of data wait go where the run becomes what is predicted."""
        now = self.simulator.wait_share() if self.simulator is not None else 0.0
        # Time for time, not share for share: what is left is a share of steps that are shorter.
        left = prediction.wait_share / max(prediction.speedup, 1e-9)
        solved = 1.0 - left / now if now > 0 else 0.0
        return self.flow_wait_seconds * min(max(solved, 0.0), 1.0)

    @property
    def making_wait_seconds(self) -> float:
        """Seconds that a rank waited for data because making it takes so long, by simulation."""
        simulated = self.simulator.wait_share() if self.simulator is not None else 1.0
        return self.flowing.total_seconds * min(simulated, self.flowing.data_wait_share)


def severity_of(share: float) -> Severity:
    """Return how bad it is to lose a share of step time."""
    if share >= CRITICAL:
        return "critical"
    if share >= SERIOUS:
        return "serious"
    return "warning" if share >= WARNING else "info"


def gather(tables: Tables) -> Evidence:
    """Return what is known of a run.

    Args:
        tables: The run's records.
    """
    steps = read_steps(tables)
    number = main_loader(steps)
    fetches, stacks = columns(tables, "fetches"), _while_stepping(tables, steps)
    away = read_away(tables, number, steps.span_ns)
    made = loader_rows(columns(tables, "loaders"), number, away)
    work = read_work(tables, number) if made is not None else None
    system, usage = columns(tables, "system"), columns(tables, "process_usage")
    processes = columns(tables, "processes")
    host = read_host(tables, steps.span_ns)
    measured = measured_from(
        steps=steps, loader=made, work=work, fetches=fetches, host=host, away=away
    )
    loader = _loader(made) if made is not None else None
    since_s = ran_since(columns(tables, "hosts"), processes)
    in_ranks = stacks["worker"] < 0 if length(stacks) else np.zeros(0, dtype=np.bool_)
    rank_seen = read_sightings(stacks, in_ranks, since_s)
    workers = loader.workers if loader is not None else 0
    waits = steps.share("data_wait") if workers else 0.0
    wanted = wanted_by_ranks(rank_seen, waits, host, most_threads(usage, processes, "rank"))
    if work is not None and workers:
        most = most_threads(usage, processes, "worker")
        wanted += wanted_by_workers(work, workers, host, most)
    return Evidence(
        steps=steps,
        loader=loader,
        work=work,
        simulator=Simulator(measured) if measured is not None else None,
        host=host,
        away=away,
        wanted_threads=wanted,
        making=read_sightings(stacks, _making(stacks, loader), since_s),
        rank_seen=rank_seen,
        transforms=rank_transforms(columns(tables, "transforms"), number),
        processes=processes,
        fetches=fetches,
        events=columns(tables, "events"),
        system=system,
        usage=usage,
    )


def _while_stepping(tables: Tables, steps: TrainSteps) -> Columns:
    """Return the table `stacks` without what was seen before and after the steps that count."""
    stacks, span = columns(tables, "stacks"), steps.span_ns
    if span is None or length(stacks) == 0:
        return stacks
    return chosen(stacks, (end_ns_of(stacks) >= span[0]) & (stacks["start_ns"] <= span[1]))


def _making(stacks: Columns, loader: Loader | None) -> Flags:
    if loader is None or length(stacks) == 0:
        return np.zeros(length(stacks), dtype=np.bool_)
    if loader.workers == 0:  # the rank makes its batches while it waits for them
        inline: Flags = (stacks["worker"] < 0) & np.isin(
            stacks["phase"].astype(str), ("wait", "data_wait", "work")
        )
        return inline
    busy: Flags = (
        (stacks["worker"] >= 0) & (stacks["loader"] == loader.number) & (stacks["phase"] == "work")
    )
    return busy


def _loader(rows: Columns) -> Loader:
    return Loader(
        number=int(rows["loader"][0]),
        kind=str(rows["kind"][0]),
        style=str(rows["style"][0]),
        workers=int(rows["workers"][0]),
        prefetch_factor=int(rows["prefetch_factor"][0]),
        batch_size=int(rows["batch_size"][0]),
        pinned=bool(rows["pinned"][0] > 0),
        persistent=bool(rows["persistent"][0] > 0),
        file=str(rows["file"][0]),
        line=int(rows["line"][0]),
        constructed=length(rows),
    )
