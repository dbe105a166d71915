"""The evidence that rules look at, derived once: loader, steps, cores, GPUs, stacks.

How many threads of the job want a core is estimated from its own processes: `/proc/loadavg` counts,
in a container, the threads of all jobs on the machine.

Which GPU of a host is whose is not recorded. Where no more of them are in use than the run has
ranks on the host, the busiest are the run's, one for each rank; else it is not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.core.overrides import Override
from headrace.observe.doctor.findings import Severity
from headrace.observe.doctor.stack_activity import recording_start_s
from headrace.observe.doctor.stack_samples import StackSample, end_ns_of, read_stack_samples
from headrace.observe.doctor.transform_shares import TransformShare, transform_shares
from headrace.observe.whatif.host_usage import (
    HostUsage,
    OffloadStats,
    read_host_usage,
    read_offload_stats,
)
from headrace.observe.whatif.measured_pipeline import (
    BatchWork,
    loader_rows,
    main_loader,
    measure_from,
    read_batch_work,
)
from headrace.observe.whatif.prediction import Prediction, Simulator
from headrace.observe.whatif.simulation import FULL
from headrace.observe.whatif.tables import Columns, Flags, Tables, columns, row_count, select_rows
from headrace.observe.whatif.train_steps import TrainSteps, read_steps


def are_cores_full(host: HostUsage) -> bool:
    """Whether a host has no core to spare, whoever uses them."""
    return host.busy_share is not None and host.busy_share >= FULL


def worker_thread_demand(
    work: BatchWork, workers: int, host: HostUsage, most_threads: float
) -> float:
    """Return how many threads of the host's workers ran or waited for a core, on average.

    At work the main thread of a worker waits for a core where they are full, and each of its
    threads gets as much of one as it does; where some are free, who wants one has it.

    Args:
        work: The batches made.
        workers: Workers of a rank.
        host: Their host.
        most_threads: Threads that a worker has.
    """
    if not work.cpu_measured:
        return 0.0
    threads = min(work.threads, most_threads) * (1.0 if are_cores_full(host) else work.cpu_share)
    return host.ranks * workers * (1.0 - work.idle_share) * threads


def rank_thread_demand(
    seen: tuple[StackSample, ...], wait_share: float, host: HostUsage, most_threads: float
) -> float:
    """Return how many threads of the host's ranks ran or waited for a core; 0 where not known.

    As with workers: on full cores the main thread's share of one tells what each of them gets. It
    wants one whenever the rank does not wait for data.

    Args:
        seen: Where the ranks' main threads were seen.
        wait_share: The share of their time in which they wait for workers, 0 to 1.
        host: Their host.
        most_threads: Threads that a rank has.
    """
    if host.rank_cores is None:
        return 0.0
    wall_ns = sum(sighting.wall_ns for sighting in seen)
    main_share = sum(sighting.cpu_ns for sighting in seen) / max(wall_ns, 1.0)
    if not are_cores_full(host) or main_share <= 0:
        return host.rank_cores
    threads = min(host.rank_cores / host.ranks / main_share, most_threads)
    return max(host.rank_cores, host.ranks * threads * (1.0 - wait_share))


def mean_threads(usage: Columns, processes: Columns, role: str) -> float:
    """Return how many threads a process of a role has, on average; infinite where not recorded."""
    if row_count(usage) == 0 or row_count(processes) == 0:
        return float("inf")
    pids = processes["pid"][processes["role"].astype(str) == role]
    threads = usage["threads"][np.isin(usage["pid"], pids)]
    return float(threads[threads > 0].mean()) if (threads > 0).any() else float("inf")


FEWEST_STEPS = 10
"""With fewer steps than this after the warm-up nothing is said."""
WARNING, SERIOUS, CRITICAL = 0.05, 0.10, 0.20
"""Shares of step time lost: the thresholds of the field's live tools (5 and 10 % warn, 20 % is
critical)."""

_HEADRACE_LOADER_ARGUMENTS = frozenset({"num_workers", "prefetch_factor"})
"""Arguments of Headrace's loader that mean what they do in torch's."""
_OTHERS_SHARE = 0.5
"""Where others of the host use this share of its cores, they are what fills them."""
_SYSTEM_SHARE, _SYSTEM_CORES = 0.05, 0.5
"""Less than this share of the cores, or so many, is what the system takes, and is not spoken of."""
MOSTLY_BUSY = 0.35
"""Workers of a starved rank that are idle for longer than this are not what it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoader:
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
            "headrace": name in _HEADRACE_LOADER_ARGUMENTS,
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
    loader: TrainingLoader | None
    work: BatchWork | None
    simulator: Simulator | None
    host: HostUsage
    away: OffloadStats | None
    wanted_threads: float
    making: tuple[StackSample, ...]
    rank_seen: tuple[StackSample, ...]
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
    def steady_steps(self) -> TrainSteps:
        """The steps that say how the loader keeps up: without its starts, if enough are left."""
        steady = self.steps.steady
        return steady if len(steady) >= FEWEST_STEPS else self.steps

    @property
    def flow_wait_seconds(self) -> float:
        """Seconds that a rank's accelerator waited for data, other than for loaders to start."""
        return self.steady_steps.data_wait_seconds

    @property
    def starved(self) -> bool:
        """Whether the loader does not keep up: data wait is above the lowest threshold."""
        return self.enough and self.steady_steps.data_wait_share >= WARNING

    @property
    def workers_busy(self) -> bool:
        """Whether batches are made all the time; without workers they are made on demand."""
        if self.work is None or self.loader is None:
            return False
        return self.loader.workers == 0 or self.work.idle_share <= MOSTLY_BUSY

    @property
    def cores_short(self) -> bool:
        """Whether the host has no core to spare, whoever uses them: workers wait for one too."""
        return are_cores_full(self.host)

    @property
    def cores_full(self) -> bool:
        """Whether the host has no core to spare, and the run itself uses most of them."""
        return self.cores_short and self.host.foreign_cores < _OTHERS_SHARE * self.host.cores

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
        least = min(_SYSTEM_SHARE * self.host.cores, _SYSTEM_CORES)
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
        return self.steady_steps.total_seconds * min(simulated, self.steady_steps.data_wait_share)


def severity_of(share: float) -> Severity:
    """Return how bad it is to lose a share of step time."""
    if share >= CRITICAL:
        return "critical"
    if share >= SERIOUS:
        return "serious"
    return "warning" if share >= WARNING else "info"


def gather_evidence(tables: Tables) -> Evidence:
    """Return what is known of a run.

    Args:
        tables: The run's records.
    """
    steps = read_steps(tables)
    number = main_loader(steps)
    fetches, stacks = columns(tables, "fetches"), _stacks_in_steps(tables, steps)
    away = read_offload_stats(tables, number, steps.span_ns)
    made = loader_rows(columns(tables, "loaders"), number, away)
    work = read_batch_work(tables, number) if made is not None else None
    system, usage = columns(tables, "system"), columns(tables, "process_usage")
    processes = columns(tables, "processes")
    host = read_host_usage(tables, steps.span_ns)
    measured = measure_from(
        steps=steps, loader=made, work=work, fetches=fetches, host=host, away=away
    )
    loader = _training_loader(made) if made is not None else None
    since_s = recording_start_s(columns(tables, "hosts"), processes)
    in_ranks = stacks["worker"] < 0 if row_count(stacks) else np.zeros(0, dtype=np.bool_)
    rank_seen = read_stack_samples(stacks, in_ranks, since_s)
    workers = loader.workers if loader is not None else 0
    waits = steps.share("data_wait") if workers else 0.0
    wanted = rank_thread_demand(rank_seen, waits, host, mean_threads(usage, processes, "rank"))
    if work is not None and workers:
        most = mean_threads(usage, processes, "worker")
        wanted += worker_thread_demand(work, workers, host, most)
    return Evidence(
        steps=steps,
        loader=loader,
        work=work,
        simulator=Simulator(measured) if measured is not None else None,
        host=host,
        away=away,
        wanted_threads=wanted,
        making=read_stack_samples(stacks, _making_rows(stacks, loader), since_s),
        rank_seen=rank_seen,
        transforms=transform_shares(columns(tables, "transforms"), number),
        processes=processes,
        fetches=fetches,
        events=columns(tables, "events"),
        system=system,
        usage=usage,
    )


def _stacks_in_steps(tables: Tables, steps: TrainSteps) -> Columns:
    """Return the table `stacks` without what was seen before and after the steps that count."""
    stacks, span = columns(tables, "stacks"), steps.span_ns
    if span is None or row_count(stacks) == 0:
        return stacks
    return select_rows(stacks, (end_ns_of(stacks) >= span[0]) & (stacks["start_ns"] <= span[1]))


def _making_rows(stacks: Columns, loader: TrainingLoader | None) -> Flags:
    if loader is None or row_count(stacks) == 0:
        return np.zeros(row_count(stacks), dtype=np.bool_)
    if loader.workers == 0:  # the rank makes its batches while it waits for them
        inline: Flags = (stacks["worker"] < 0) & np.isin(
            stacks["phase"].astype(str), ("wait", "data_wait", "work")
        )
        return inline
    busy: Flags = (
        (stacks["worker"] >= 0) & (stacks["loader"] == loader.number) & (stacks["phase"] == "work")
    )
    return busy


def _training_loader(rows: Columns) -> TrainingLoader:
    return TrainingLoader(
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
        constructed=row_count(rows),
    )


_UTILISATION = re.compile(r"gpu_(\d+)_utilisation_percent")
_IN_USE = 0.05


def gpu_utilisation(evidence: Evidence) -> float | None:
    """Return the mean utilisation of the run's GPUs while steps ran, 0 to 1; None: not known."""
    means = _mean_utilisation(evidence)
    ours = gpus_of_run(evidence)
    used = [means[gpu] for gpu in ours or () if gpu in means]
    return float(np.mean(used)) if used else None


def gpus_of_run(evidence: Evidence) -> tuple[int, ...] | None:
    """Return the numbers of the run's GPUs, as in the table `system`; None: that is not known."""
    means, ranks = _mean_utilisation(evidence), evidence.host.ranks
    if sum(mean >= _IN_USE for mean in means.values()) > ranks:
        return None
    return tuple(sorted(means, key=lambda gpu: -means[gpu])[:ranks])


def _mean_utilisation(evidence: Evidence) -> dict[int, float]:
    """Return the mean utilisation of each GPU of the host while steps ran, where recorded."""
    system, span = evidence.system, evidence.steps.span_ns
    if row_count(system) == 0 or span is None:
        return {}
    inside = (system["t_ns"] >= span[0]) & (system["t_ns"] <= span[1])
    found = {}
    for name in system:
        match = _UTILISATION.fullmatch(name)
        if match:
            values = system[name][inside].astype(np.float64)
            known = values[np.isfinite(values) & (values >= 0)]
            if len(known):
                found[int(match[1])] = float(known.mean()) / 100.0
    return found
