"""The evidence that rules evaluate, derived once: loader, steps, cores, stacks, transforms.

How many threads of the job want a core is estimated from its own processes: `/proc/loadavg` counts,
in a container, the threads of all jobs on the machine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.source_location import CodeFolders
from headrace.observe.doctor.closure_samples import with_closures_as_forward
from headrace.observe.doctor.findings import Cause, Fact, Finding, Remedy, Severity
from headrace.observe.doctor.other_time import OtherTime, gather_other_time
from headrace.observe.doctor.sampler_stacks import within_sampler
from headrace.observe.doctor.samples_in_rows import samples_in_rows
from headrace.observe.doctor.stack_samples import (
    UNKNOWN_FOLDERS,
    StackSample,
    awaits_own_work_at_times,
    awaits_own_work_mostly,
    end_ns_of,
    making_part,
    read_code_folders,
    read_stack_samples,
    recording_start_s,
    runs_same_code,
    waits_for_other_loader,
)
from headrace.observe.doctor.training_loader import TrainingLoader, training_loader
from headrace.observe.doctor.unfollowed_loaders import library_with_loader, unfollowed_loader
from headrace.observe.whatif.hosts import of_host, training_host
from headrace.observe.whatif.joint_loaders import (
    JointLoader,
    least_period_ns,
    read_joint_loaders,
)
from headrace.observe.whatif.loaders_in_turn import (
    fed_by,
    is_made_by_thread,
    main_loader,
    speedup_of_part,
)
from headrace.observe.whatif.measured_pipeline import (
    BatchWork,
    HostUsage,
    MeasuredPipeline,
    loader_rows,
    measure_from,
    read_batch_work,
    read_host_usage,
    with_child_cpu,
    with_children_as_others,
)
from headrace.observe.whatif.offload_stats import OffloadStats, read_offload_stats
from headrace.observe.whatif.prediction import Prediction, Simulator
from headrace.observe.whatif.sampler_time import sampler_ns_of_steps
from headrace.observe.whatif.tables import (
    Columns,
    Flags,
    Floats,
    Tables,
    columns,
)
from headrace.observe.whatif.train_steps import TrainSteps, read_steps
from headrace.observe.whatif.worker_shares import WorkerShares

_SAMPLE_CALLS = ("__getitem__", "__getitems__", "__iter__", "__next__")
"""Calls that contain the others, so that their share has no meaning of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformShare:
    """A transform and its share of the time of making batches."""

    name: str
    file: str  # empty if unknown
    line: int  # its first
    share: float
    cpu_share: float  # CPU time over wall time in it
    library: str = ""  # whose code it is; "": the user's

    def cause(self) -> Cause:
        """Return the transform as the cause of a finding."""
        name = self.name
        if self.library:
            name = f"{self.library} {name.rsplit(': ', 1)[-1]}"
        return Cause(
            file=self.file,
            line=self.line,
            transform=name,
            share=self.share,
            library=self.library,
        )


def transform_shares(
    transforms: Columns, loader: int, folders: CodeFolders = UNKNOWN_FOLDERS
) -> tuple[TransformShare, ...]:
    """Return a loader's transforms, the most expensive first, without those that contain others.

    Shares are of `__getitem__` if that was timed, too, and otherwise of all that was timed.
    """
    rows = transforms.having(loader=loader).summed(
        by=("name", "file", "line", "one_in"), sums=("wall_ns", "cpu_ns")
    )
    names = rows["name"]
    wall = rows["wall_ns"] * np.maximum(rows["one_in"], 1).astype(np.float64)
    contains_all = np.array([str(name).endswith(_SAMPLE_CALLS) for name in names], dtype=np.bool_)
    collates = np.array(["collate" in str(name) for name in names], dtype=np.bool_)
    total = float(wall[contains_all].sum() + wall[collates].sum())
    leaves = ~contains_all & ~_container_mask(names)
    if total <= 0 or not contains_all.any():
        total = float(wall[leaves].sum())
    shares = []
    for name in dict.fromkeys(str(name) for name in names[leaves]):
        same = names == name
        at = int(same.nonzero()[0][0])
        shares.append(
            TransformShare(
                name=name,
                file=str(rows["file"][at]),
                line=int(rows["line"][at]),
                share=min(float(wall[same].sum()) / max(total, 1.0), 1.0),
                cpu_share=float(rows["cpu_ns"][same].sum() / max(rows["wall_ns"][same].sum(), 1)),
                library=folders.module_file(str(rows["file"][at])).partition("/")[0],
            )
        )
    return tuple(sorted(shares, key=lambda transform: -transform.share))


def _container_mask(names: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which names are containers, whose path another name's path continues.

    A name is a path and what is found there: `Faces.transform.transforms[1]: RandomBlur`.
    """
    paths = [_path(str(name)) for name in names]
    known = set(paths)
    return np.array(
        [any(other.startswith((f"{path}.", f"{path}[")) for other in known) for path in paths],
        dtype=np.bool_,
    )


def _path(name: str) -> str:
    return name.split(": ", maxsplit=1)[0]


def worker_thread_demand(
    work: BatchWork, workers: int, host: HostUsage, most_threads: float
) -> float:
    """Return how many threads of the host's workers ran or waited for a core, on average.

    On full cores a working main thread that is not running waits for a core, and each other thread
    gets as much of a core as the main one; on free cores a thread that wants a core has one.
    """
    if not work.cpu_measured:
        return 0.0
    threads = min(work.threads, most_threads) * (1.0 if host.is_full else work.cpu_share)
    return host.ranks * workers * (1.0 - work.idle_share) * threads


def rank_thread_demand(
    seen: tuple[StackSample, ...], wait_share: float, host: HostUsage, most_threads: float
) -> float:
    """Return how many threads of the host's ranks ran or waited for a core; 0 if unknown.

    On full cores the main thread's share of a core is assumed for each of the others. It wants a
    core whenever the rank does not wait for data: for all but `wait_share` of its time.
    """
    if host.rank_cores is None:
        return 0.0
    wall_ns = sum(sample.wall_ns for sample in seen)
    main_share = sum(sample.cpu_ns for sample in seen) / max(wall_ns, 1.0)
    if not host.is_full or main_share <= 0:
        return host.rank_cores
    threads = min(host.rank_cores / host.ranks / main_share, most_threads)
    return max(host.rank_cores, host.ranks * threads * (1.0 - wait_share))


def mean_threads(usage: Columns, processes: Columns, role: str) -> float:
    """Return the mean number of threads of a role's processes; infinite if not recorded."""
    threads = usage["threads"][np.isin(usage["pid"], processes.having(role=role)["pid"])]
    return float(threads[threads > 0].mean()) if (threads > 0).any() else float("inf")


FEWEST_STEPS = 10
"""With fewer steps after the warm-up, no rule fires."""
WARNING, SERIOUS, CRITICAL = 0.05, 0.10, 0.20
"""Shares of step time lost: the thresholds of common live tools (5 and 10 % are warnings, 20 % is
critical)."""

_LEAST_PRESSURE = 0.05
"""Where threads wait for a core for less of the time, other programs take none away."""
_OTHERS_SHARE = 0.5
"""If other programs use this share of the host's cores, they are the reason that it is full."""
_SYSTEM_SHARE, _SYSTEM_CORES = 0.05, 0.5
"""Less than this share of the cores, or so many, is the system's own use, and not mentioned."""
MOSTLY_BUSY = 0.35
"""Workers of a starved rank that are idle for a larger share than this are not its bottleneck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a run."""

    steps: TrainSteps  # of one loader, if several feed them in turn: see `fed_by`
    all_steps: TrainSteps
    other_time: OtherTime
    loader: TrainingLoader | None
    joint: tuple[tuple[TrainingLoader, JointLoader], ...]  # others that feed the same steps
    unfollowed: str | None  # without a loader: where one is that may feed training unseen
    work: BatchWork | None  # the batches made for the loader; None if none were recorded
    shares: WorkerShares | None  # in the batches of an iterable dataset; None if not recorded
    sampler_ns: Floats  # time in the sampler in each of `steps`, part of its wait for data
    simulator: Simulator | None  # None if too little was recorded
    host: HostUsage  # its cores as the job notices them
    offload: OffloadStats | None  # work of auxiliary hosts; None if batches are not offloaded
    wanted_threads: float  # of the run, on average: they ran or waited for a core of the host
    making_samples: tuple[StackSample, ...]  # in workers, or in ranks without
    rank_samples: tuple[StackSample, ...]  # the ranks' main threads, in steps
    slow_samples: tuple[StackSample, ...]  # those of them in slow steps; none in older records
    transforms: tuple[TransformShare, ...]  # the most expensive first
    processes: Columns
    fetches: Columns
    copies: Columns  # the table `device_copies`; no rows without a device, and in older records
    batches: Columns  # of the loader that feeds training, each worker's first, too
    events: Columns
    system: Columns
    usage: Columns  # the table `process_usage`

    @property
    def enough(self) -> bool:
        """Whether enough steps were recorded for any rule to fire."""
        return len(self.steps) >= FEWEST_STEPS

    @property
    def script_data_wait(self) -> Mapping[str, float]:
        """The script's share of data wait as evidence, if the accelerator's differs from it."""
        known = self.steps.device is not None
        return {"script_data_wait_share": self.steps.share("data_wait")} if known else {}

    @property
    def steady_steps(self) -> TrainSteps:
        """The steps in which no loader's iteration began, if enough are left; otherwise all."""
        steady = self.steps.steady
        return steady if len(steady) >= FEWEST_STEPS else self.steps

    @property
    def flow_wait_seconds(self) -> float:
        """Seconds for which a rank's accelerator waited for batches to be made and handed over.

        Without those in which loaders started, and without the sampler's time in the rank.
        """
        return self.steady_steps.data_wait_seconds - self._steady_sampler_seconds

    @property
    def starved(self) -> bool:
        """Whether data wait is above the lowest threshold: the loader does not keep up."""
        total = max(self.steady_steps.total_seconds, 1e-9)
        return self.enough and self.flow_wait_seconds / total >= WARNING

    @property
    def _steady_sampler_seconds(self) -> float:
        steady = ~self.steps.starts_loader
        all_count = int(steady.sum()) < FEWEST_STEPS
        spent_ns = self.sampler_ns.sum() if all_count else self.sampler_ns[steady].sum()
        return float(spent_ns) / max(len(self.steps.ranks), 1) / 1e9

    def rank_samples_in(self, phases: Collection[str]) -> list[StackSample]:
        """Return the ranks' samples in some phases of their steps."""
        return [sample for sample in self.rank_samples if sample.phase in phases]

    @property
    def workers_busy(self) -> bool:
        """Whether workers make batches nearly all the time; without workers, always true."""
        if self.work is None or self.loader is None or self.iterates_other_loader:
            return False
        return self.loader.workers == 0 or self.work.idle_share <= MOSTLY_BUSY

    @property
    def iterates_other_loader(self) -> bool:
        """Whether making a batch is mostly waiting for another loader, which has the workers."""
        waits_ns = sum(s.wall_ns for s in self.making_samples if waits_for_other_loader(s))
        return waits_ns > 0.5 * sum(sample.wall_ns for sample in self.making_samples)

    @property
    def unequal_shares(self) -> bool:
        """Whether one worker makes more than its share of the batches, so that others idle."""
        return self.shares is not None and self.shares.unequal

    @property
    def cores_short(self) -> bool:
        """Whether the host has no core to spare, whoever uses them: workers wait for one, too."""
        return self.host.is_full

    @property
    def cores_full(self) -> bool:
        """Whether the host has no core to spare, and the run itself uses most of them."""
        return self.cores_short and self.host.foreign_cores < _OTHERS_SHARE * self.host.cores

    @property
    def others_fill_cores(self) -> bool:
        """Whether the host has no core to spare because of other programs.

        Where the kernel says that hardly any thread waited for a core, none is missing.
        """
        pressure = self.host.pressure
        lacks = pressure is None or pressure >= _LEAST_PRESSURE
        return self.cores_short and not self.cores_full and lacks

    @property
    def who_takes_cores(self) -> str:
        """Who keeps the host's cores busy beside ranks and workers, to be read before "take"."""
        if self.host.script_cores > 0.5 * self.host.foreign_cores:
            return "Processes that the script itself starts"
        return "Other jobs of the host"

    @property
    def core_pressure(self) -> dict[str, Fact]:
        """The share of time in which a thread lacked a core, as evidence; empty if unknown."""
        known = self.host.pressure
        return {} if known is None else {"share_of_time_short_of_cores": known}

    @property
    def others_crowd(self) -> bool:
        """Whether less than one core is idle on average, and other programs use more than that.

        A process that often sleeps and wakes then finds no core at times, and waits for a time
        slice.
        """
        idle = self.host.idle_cores
        least = min(_SYSTEM_SHARE * self.host.cores, _SYSTEM_CORES)
        return idle is not None and idle < 1.0 and self.host.foreign_cores > max(idle, least)

    @property
    def others_use(self) -> str:
        """How many cores of the host other programs use, in words."""
        used, cores = self.host.foreign_cores, self.host.cores
        whose = f"the host's {cores:g} cores"
        if cores < self.host.launched_cores:
            whose = f"the {cores:g} cores that it may use"
        return f"other processes use {used:.1f} of {whose}"

    def finding(
        self,
        title: str,
        seconds_lost: float,
        facts: Mapping[str, Fact],
        *,
        cause: Cause | None = None,
        remedies: tuple[Remedy, ...] = (),
        severity: Severity | None = None,
        forecast: bool = False,
    ) -> Finding:
        """Return a finding as severe as the seconds lost; `rule` names it."""
        return Finding(
            rule="",
            severity=severity or self.severity(seconds_lost),
            title=title,
            seconds_lost=seconds_lost,
            evidence=facts,
            cause=cause,
            remedies=remedies,
            forecast=forecast,
        )

    @property
    def steps_share(self) -> float:
        """The share of the run's time after start-up that `steps` take, 0 to 1."""
        wall = self.other_time.wall
        return self.steps.part * wall.seconds("steps") / max(wall.run_seconds, 1e-9)

    def severity(self, seconds_lost: float) -> Severity:
        """Return the severity of losing so many seconds of a rank's steps."""
        share = seconds_lost / max(self.steps.total_seconds, 1e-9)
        return severity_of(share * self.steps_share)

    def waits_solved(self, prediction: Prediction) -> float:
        """Return how many seconds of data wait a predicted change would remove."""
        now = self.simulator.before.wait_share if self.simulator is not None else 0.0
        # By time, not by share: the remaining share is of shorter steps.
        speedup = speedup_of_part(prediction.speedup, self.steps.part)
        left = prediction.wait_share / max(speedup, 1e-9)
        solved = 1.0 - left / now if now > 0 else 0.0
        return self.flow_wait_seconds * min(max(solved, 0.0), 1.0)

    @property
    def making_wait_seconds(self) -> float:
        """Seconds of data wait because making batches takes too long, by simulation."""
        simulated = self.simulator.before.wait_share if self.simulator is not None else 1.0
        return self.steady_steps.total_seconds * min(simulated, self.steady_steps.data_wait_share)


def severity_of(share: float) -> Severity:
    """Return the severity of losing a share of a run's time after start-up."""
    if share >= CRITICAL:
        return "critical"
    if share >= SERIOUS:
        return "serious"
    return "warning" if share >= WARNING else "info"


_MUCH_OF_A_CORE = 0.25


def _with_other_programs(
    host: HostUsage, work: BatchWork | None, making: tuple[StackSample, ...]
) -> HostUsage:
    """Return a host where programs that the script starts are others, if no batch awaits them."""
    is_little = host.child_cores < _MUCH_OF_A_CORE
    if is_little or work is None or awaits_own_work_at_times(making):
        return host
    return with_children_as_others(host)


def gather_evidence(tables: Tables) -> Evidence:
    """Return the evidence of a run."""
    all_steps = read_steps(tables, any_kind=True)
    number = main_loader(all_steps)
    steps = fed_by(all_steps, number)
    fetches = columns(tables, "fetches")
    stacks, slow_stacks = (
        _stacks_in_steps(columns(tables, name), steps) for name in ("stacks", "slow_step_stacks")
    )
    offload = read_offload_stats(tables, number, steps.span_ns)
    loader_columns = loader_rows(columns(tables, "loaders"), number, offload)
    work = read_batch_work(tables, number, steps.rows) if loader_columns is not None else None
    usage, processes = columns(tables, "process_usage"), columns(tables, "processes")
    folders = read_code_folders(columns(tables, "code_folders"))
    loader = _described(tables, loader_columns, folders)
    since_s = recording_start_s(columns(tables, "hosts"), processes)
    samples_of = functools.partial(_making_samples, stacks, steps, since_s, folders)
    making = samples_of(loader)
    host = _with_other_programs(read_host_usage(tables, steps.span_ns), work, making)
    joint = _joint_loaders(tables, steps, number, folders)
    measured = measure_from(
        steps=steps, loader=loader_columns, work=work, fetches=fetches, host=host, offload=offload
    )
    if measured is not None:
        made = {each: samples_of(other) for other, each in joint}
        measured = _with_other_limits(measured, host, making, made)
    rank_samples, slow_samples = (
        _rank_samples(rows, steps, since_s, folders) for rows in (stacks, slow_stacks)
    )
    workers = loader.workers if loader is not None else 0
    waits, threads = steps.share("data_wait"), mean_threads(usage, processes, "rank")
    wanted = rank_thread_demand(rank_samples, waits if workers else 0.0, host, threads)
    if work is not None and workers:
        threads = mean_threads(usage, processes, "worker")
        wanted += worker_thread_demand(work, workers, host, threads)
    return Evidence(
        steps=steps,
        all_steps=all_steps,
        other_time=gather_other_time(tables, steps, rank_samples, since_s, folders),
        loader=loader,
        joint=joint,
        unfollowed=_unfollowed(tables, rank_samples) if loader is None else None,
        work=work,
        shares=_worker_shares(work, loader_columns, fetches) if offload is None else None,
        sampler_ns=sampler_ns_of_steps(steps, fetches),
        simulator=Simulator(measured) if measured is not None else None,
        host=host,
        offload=offload,
        wanted_threads=wanted,
        making_samples=making,
        rank_samples=rank_samples,
        slow_samples=slow_samples,
        transforms=transform_shares(columns(tables, "transforms"), number, folders),
        processes=processes,
        fetches=fetches,
        copies=columns(tables, "device_copies"),
        batches=columns(tables, "batches").having(loader=number),
        events=columns(tables, "events"),
        system=of_host(columns(tables, "system"), training_host(tables)),
        usage=usage,
    )


def _worker_shares(
    work: BatchWork | None, loader: Columns | None, fetches: Columns
) -> WorkerShares | None:
    return None if work is None or loader is None else work.shares(loader, fetches)


def _with_other_limits(
    measured: MeasuredPipeline,
    host: HostUsage,
    making: tuple[StackSample, ...],
    joint: Mapping[JointLoader, tuple[StackSample, ...]],
) -> MeasuredPipeline:
    """Return a pipeline with the processes that it awaits, and with other loaders of its steps.

    Those that run the same code, by the samples of making batches, become faster with it.
    """
    if awaits_own_work_mostly(making):
        measured = with_child_cpu(measured, host)
    others = [each for each, seen in joint.items() if not runs_same_code(making, seen)]
    return replace(measured, least_period_ns=least_period_ns(others, measured.consume_ns))


def _described(
    tables: Tables, loader: Columns | None, folders: CodeFolders
) -> TrainingLoader | None:
    if loader is None:
        return None
    found = training_loader(loader, columns(tables, "library_loaders"), folders)
    by_thread = is_made_by_thread(columns(tables, "fetches"), found.number, found.workers)
    return replace(found, by_thread=by_thread)


def _rank_samples(
    stacks: Columns, steps: TrainSteps, since_s: float | None, folders: CodeFolders
) -> tuple[StackSample, ...]:
    """Return the samples of the ranks' main threads in their steps."""
    found = read_stack_samples(stacks, stacks["worker"] < 0, since_s, folders)
    return samples_in_rows(with_closures_as_forward(found), steps.rows)


def _making_samples(
    stacks: Columns,
    steps: TrainSteps,
    since_s: float | None,
    folders: CodeFolders,
    loader: TrainingLoader | None,
) -> tuple[StackSample, ...]:
    """Return the samples in which a loader's batches are made.

    In a rank without workers those of its steps count: an evaluation's are made there, too.
    """
    seen = making_part(
        sample
        for sample in read_stack_samples(stacks, _making_rows(stacks, loader), since_s, folders)
        if within_sampler(sample) is None  # in a rank without workers
    )
    is_in_rank = loader is not None and loader.workers == 0
    return samples_in_rows(seen, steps.rows) if is_in_rank else seen


def _joint_loaders(
    tables: Tables, steps: TrainSteps, number: int, folders: CodeFolders
) -> tuple[tuple[TrainingLoader, JointLoader], ...]:
    """Return the loaders that feed the same steps as the main one."""
    loaders, libraries = columns(tables, "loaders"), columns(tables, "library_loaders")
    batches, fetches = columns(tables, "batches"), columns(tables, "fetches")
    found = []
    for each in read_joint_loaders(steps, number, loaders, batches, fetches):
        rows = loader_rows(loaders, each.number)
        assert rows is not None  # or it were no loader
        found.append((training_loader(rows, libraries, folders), each))
    return tuple(found)


def _unfollowed(tables: Tables, samples: tuple[StackSample, ...]) -> str | None:
    names = ("loaders", "batches", "fetches")
    found = unfollowed_loader(*(columns(tables, name) for name in names))
    return found or library_with_loader(samples)


def _stacks_in_steps(stacks: Columns, steps: TrainSteps) -> Columns:
    """Return rows of stacks without samples before and after the steps that count."""
    span = steps.span_ns
    if span is None:
        return stacks
    return stacks.where((end_ns_of(stacks) >= span[0]) & (stacks["start_ns"] <= span[1]))


def _making_rows(stacks: Columns, loader: TrainingLoader | None) -> Flags:
    if loader is None or loader.by_thread:  # of that no stacks are recorded
        return np.zeros(stacks.count, dtype=np.bool_)
    phase = stacks["phase"]
    if loader.workers == 0:  # the rank makes its batches while it waits for them
        waits = np.isin(phase.astype(str), ("wait", "data_wait", "work"))
        return np.asarray((stacks["worker"] < 0) & waits)
    of_workers = (stacks["worker"] >= 0) & (stacks["loader"] == loader.number)
    return np.asarray(of_workers & (phase == "work"))


RuleCheck = Callable[[Evidence], Finding | None]
REGISTERED: dict[str, RuleCheck] = {}


def rule(check: RuleCheck) -> RuleCheck:
    """Register a check_data_wait as the rule data-wait, which its findings then name."""
    name = check.__name__.removeprefix("check_").replace("_", "-")

    @functools.wraps(check)
    def named(evidence: Evidence) -> Finding | None:
        finding = check(evidence)
        return None if finding is None else replace(finding, rule=name)

    REGISTERED[name] = named
    return named
