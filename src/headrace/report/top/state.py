"""The state that a frame shows, without text: rates of steps and processes, the host, the run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from headrace.core.source_location import CodeFolders
from headrace.observe.doctor.stack_samples import (
    find_hotspot,
    making_part,
    read_code_folders,
    read_stack_samples,
)
from headrace.observe.whatif.hosts import of_host, processes_on, training_host
from headrace.observe.whatif.tables import Columns, Flags, Floats, Tables, columns
from headrace.observe.whatif.train_steps import phase_time_ns
from headrace.observe.whatif.wall_time import OpenTime, read_open_times
from headrace.records.host_place import pid_host
from headrace.records.run_folder import Outcome
from headrace.records.schema import LAUNCHER_HOST, PHASES

_LATE_FACTOR, _LATE_NS = 3.0, 2e9
_FEWEST_SPANS = 3


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A span of time, by the host's monotonic clock in nanoseconds."""

    since_ns: int
    until_ns: int


def quiet_s(start: Floats, end: Floats, window: TimeWindow) -> float:
    """Return the time since the last of consecutive events if the next one is late, otherwise 0.

    It is late after three times the longest duration, and two seconds.
    """
    if len(end) == 0:
        return 0.0
    since_ns = float(window.until_ns - end.max())
    late = since_ns > max(_LATE_FACTOR * float((end - start).max()), _LATE_NS)
    return since_ns / 1e9 if late else 0.0


def per_second(start: Floats, end: Floats, counts: Floats, window: TimeWindow) -> float:
    """Return the rate of consecutive events, weighted by their counts, such as of samples.

    Of events that began before the window, the part within it counts. If events are longer than the
    window, the last few of them count instead. An unfinished event is unknown, so time counts up to
    the last end, or to the window's end if the next one is late.
    """
    if len(end) == 0:
        return 0.0
    began, ended = float(window.since_ns), float(end.max())
    if quiet_s(start, end, window):
        ended = float(window.until_ns)
    else:
        began = min(began, float(np.sort(start)[-_FEWEST_SPANS:][0]))
    began = max(began, float(start.min()))
    inside = np.maximum(np.minimum(end, ended) - np.maximum(start, began), 0.0)
    done = float((inside / np.maximum(end - start, 1.0) * counts).sum())
    return done / max(ended - began, 1.0) * 1e9


_FEWEST_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRate:
    """The rates of one rank."""

    rank: int
    steps_per_s: float
    samples_per_s: float | None  # None if not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The durations of steps, in nanoseconds."""

    count: int
    median_ns: float
    p90_ns: float
    p99_ns: float
    longest_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRates:
    """The rates of all ranks' steps."""

    ranks: tuple[RankRate, ...] = ()
    times: StepTimes | None = None  # of training steps; None if there are none
    shares: Mapping[str, float] = field(default_factory=dict)  # of step time, by phase
    evaluates: bool = False  # whether the shares are of evaluation, for lack of training steps
    evaluated_per_s: float = 0.0  # batches a second, over all ranks
    quiet_s: float = 0.0  # since the last training step of any rank if the next one is late

    @property
    def steps_per_s(self) -> float:
        """Mean steps a second of a rank: ranks make a step together."""
        return float(np.mean([each.steps_per_s for each in self.ranks])) if self.ranks else 0.0

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second of all ranks together; None if unknown for one of them."""
        known = [each.samples_per_s for each in self.ranks if each.samples_per_s is not None]
        return sum(known) if known and len(known) == len(self.ranks) else None


def read_step_rates(tables: Tables, window: TimeWindow) -> StepRates:
    """Return the rates of the steps in the window, and of the last few of each rank."""
    rows = columns(tables, "steps")
    rows = rows.where(rows["start_ns"] + rows["wall_ns"] <= window.until_ns)
    train, evaluation = (rows.having(kind=kind) for kind in ("train", "eval"))
    current = _current(train, window)
    evaluated = _current(evaluation, window) if current.count == 0 else current
    open_ns = _open_ns(read_open_times(tables), window)
    start, end = row_times(train)
    return StepRates(
        ranks=tuple(_rate(train, int(rank), window) for rank in np.unique(train["rank"])),
        times=_step_times(current),
        shares=phase_shares(evaluated, open_ns),
        evaluates=current.count == 0 and evaluated.count > 0,
        evaluated_per_s=_evaluated_per_s(evaluation, window),
        quiet_s=quiet_s(start, end, window),
    )


def row_times(rows: Columns) -> tuple[Floats, Floats]:
    """Return starts and ends of rows of `steps` or `batches`, in ns."""
    start = rows["start_ns"].astype(np.float64)
    return start, start + rows["wall_ns"]


def _open_ns(open_times: Iterable[OpenTime], window: TimeWindow) -> dict[str, float]:
    """Return the time in the window of what has not ended, and so is in no row, by phase."""
    spent: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    for each in open_times:
        if each.phase == "start":  # no step has begun
            continue
        since_ns = max(each.since_ns, window.since_ns)
        spent[each.phase] = spent.get(each.phase, 0.0) + max(window.until_ns - since_ns, 0)
    return spent


def phase_shares(rows: Columns, open_ns: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each phase in steps and open time, 0 to 1; empty if there are none."""
    total = float(rows["wall_ns"].sum()) + sum(open_ns.values())
    if total <= 0:
        return {}
    return {
        phase: (float(phase_time_ns(rows, phase).sum()) + open_ns.get(phase, 0.0)) / total
        for phase in PHASES
    }


def _current(rows: Columns, window: TimeWindow) -> Columns:
    """Return the steps that ended in the window, and the last few of each rank."""
    wanted: Flags = rows["start_ns"] + rows["wall_ns"] > window.since_ns
    for rank in np.unique(rows["rank"]):
        places = np.flatnonzero(rows["rank"] == rank)
        wanted[places[np.argsort(rows["start_ns"][places])][-_FEWEST_STEPS:]] = True
    return rows.where(wanted)


def _rate(rows: Columns, rank: int, window: TimeWindow) -> RankRate:
    own = rows.having(rank=rank)
    start, end = row_times(own)
    known = bool((own["samples"] >= 0).all())
    return RankRate(
        rank=rank,
        steps_per_s=per_second(start, end, np.ones(len(start)), window),
        samples_per_s=per_second(start, end, own["samples"], window) if known else None,
    )


def _step_times(rows: Columns) -> StepTimes | None:
    if rows.count == 0:
        return None
    wall = rows["wall_ns"].astype(np.float64)
    median, p90, p99, longest = map(float, np.percentile(wall, (50, 90, 99, 100)))
    return StepTimes(count=len(wall), median_ns=median, p90_ns=p90, p99_ns=p99, longest_ns=longest)


def _evaluated_per_s(rows: Columns, window: TimeWindow) -> float:
    total = 0.0
    for rank in np.unique(rows["rank"]):
        start, end = row_times(rows.having(rank=rank))
        if end.max() > window.since_ns:
            total += per_second(start, end, np.ones(len(start)), window)
    return total


_STACKS_NS = 5_000_000_000
"""Time over which the hottest line is determined, plus the second of a row of `stacks`."""
_ONE_TICK_NS = 200_000_000
"""All processes of a host are sampled within this time of a tick."""
Key: TypeAlias = tuple[int, int, int]
"""Rank, loader, worker; the last two are -1 for a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRates:
    """The rates of a rank, a worker, or several merged workers; None if unknown."""

    rank: int
    loader: int | None = None  # None for a rank
    worker: int | None = None  # None for a rank, and for merged workers
    count: int = 1  # number of processes
    batches_per_s: float = 0.0  # made, or taken by a rank, over all of them
    busy: float | None = None  # share of time making batches; of a rank, without data wait
    cpu: float | None = None  # CPU time over time: 1 is one core
    doing: str = ""  # the line sampled most: "augment.py:31 RandomBlur"; empty if there is none
    doing_share: float = 0.0  # of the process's time, 0 to 1

    @property
    def role(self) -> str:
        """The kind of process: rank, worker or workers."""
        if self.loader is None:
            return "rank"
        return "worker" if self.count == 1 else "workers"


def read_processes(tables: Tables, window: TimeWindow) -> tuple[ProcessRates, ...]:
    """Return the ranks and workers that ran at the window's end, ranks before their workers."""
    processes, usage = columns(tables, "processes"), columns(tables, "process_usage")
    usage = usage.where(usage["t_ns"] <= window.until_ns)
    stacks = columns(tables, "stacks")
    stacks = stacks.where(stacks["start_ns"] > window.until_ns - _STACKS_NS - 1_000_000_000)
    folders = read_code_folders(columns(tables, "code_folders"))
    steps, batches = columns(tables, "steps"), columns(tables, "batches")
    keys = _keys(processes, stacks)
    alive = {keys[pid] for pid in _alive(processes, usage, stacks, window) if pid in keys}
    if not alive:  # no process was sampled yet
        alive = {(int(rank), -1, -1) for rank in np.unique(steps["rank"])}
    open_times = {each.rank: each for each in read_open_times(tables)}
    found = []
    for key in sorted(alive):
        pids = [pid for pid, its_key in keys.items() if its_key == key]
        if key[2] < 0:
            known = _rank_rates(steps, key, window, open_times.get(key[0]))
        else:
            known = _worker_rates(batches, key, window)
        own = _rows_of(stacks, key)
        cpu = _cpu(usage.where(np.isin(usage["pid"], pids)), window)
        found.append(_with_code(known, own, cpu, folders))
    starts = columns(tables, "startup_stacks")
    starts = starts.where(starts["end_ns"] > window.since_ns)
    for open_time in open_times.values():
        if open_time.phase == "start" and (open_time.rank, -1, -1) not in alive:
            own = starts.having(pid=open_time.pid)
            cpu = float(own["cpu_ns"].sum()) / max(float(own["wall_ns"].sum()), 1.0)
            found.append(_with_code(ProcessRates(rank=open_time.rank), own, cpu, folders))
    return tuple(sorted(found, key=lambda each: (each.rank, each.loader is not None)))


def merge_workers(processes: Iterable[ProcessRates]) -> tuple[ProcessRates, ...]:
    """Return the workers of each loader merged into one, for lack of space."""
    merged: list[ProcessRates] = []
    for process in processes:
        last = merged[-1] if merged else None
        same = last is not None and (last.rank, last.loader) == (process.rank, process.loader)
        if last is None or not same or process.loader is None:
            merged.append(process)
            continue
        count = last.count + 1
        hotter = process if process.doing_share > last.doing_share else last
        merged[-1] = replace(
            last,
            worker=None,
            count=count,
            batches_per_s=last.batches_per_s + process.batches_per_s,
            busy=_mean_of_both(last.busy, process.busy, last.count),
            cpu=_mean_of_both(last.cpu, process.cpu, last.count),
            doing=hotter.doing,
            doing_share=hotter.doing_share,
        )
    return tuple(merged)


def _mean_of_both(mean: float | None, value: float | None, count: int) -> float | None:
    if mean is None or value is None:
        return value if mean is None else mean
    return (mean * count + value) / (count + 1)


def _keys(processes: Columns, stacks: Columns) -> dict[int, Key]:
    """Return the key of each process by pid; a reused pid belongs to the later process."""
    found: dict[int, Key] = {}
    for rows in (processes, stacks):
        names = ("pid", "rank", "loader", "worker")
        for pid, rank, loader, worker in zip(*(rows[name] for name in names), strict=True):
            of_worker = (int(loader), int(worker)) if worker >= 0 else (-1, -1)
            found[int(pid)] = (int(rank), *of_worker)
    return found


def _alive(
    processes: Columns, usage: Columns, stacks: Columns, window: TimeWindow
) -> Iterator[int]:
    """Yield the pids sampled in each host's last tick, and those too new for it.

    Hosts are not sampled at the same moments, and the rows of others arrive later than this one's.
    """
    pids = np.concatenate((processes["pid"], usage["pid"], stacks["pid"]))
    for host in np.unique(pid_host(pids)).tolist():
        here = (processes_on(rows, host) for rows in (processes, usage, stacks))
        yield from _alive_on_host(window, *here)


def _alive_on_host(
    window: TimeWindow, processes: Columns, usage: Columns, stacks: Columns
) -> Iterator[int]:
    seen = [(processes["pid"], processes["started_ns"]), (stacks["pid"], stacks["start_ns"])]
    if usage.count == 0:
        new_ns = window.since_ns
    else:
        last = int(usage["t_ns"].max())
        before = usage["t_ns"][usage["t_ns"] < last - _ONE_TICK_NS]
        at_last = (usage["t_ns"] >= last - _ONE_TICK_NS) & (usage["threads"] > 0)  # 0: it has ended
        yield from map(int, np.unique(usage["pid"][at_last]))
        # A process gets a row at its second sample; a stack, when its second is over.
        new_ns = min(int(before.max()) if len(before) else last, window.until_ns - 1_000_000_000)
        seen = seen[:1]
    for pids, at_ns in seen:
        yield from map(int, pids[(at_ns >= new_ns) & (at_ns <= window.until_ns)])


def _rows_of(rows: Columns, key: Key) -> Columns:
    rank, loader, worker = key
    if worker < 0:
        return rows.where((rows["rank"] == rank) & (rows["worker"] < 0))
    return rows.having(rank=rank, loader=loader, worker=worker)


def _rank_rates(
    steps: Columns, key: Key, window: TimeWindow, open_time: OpenTime | None
) -> ProcessRates:
    own = steps.having(rank=key[0])
    if own.count == 0:
        waits = open_time is not None and open_time.phase == "data_wait"
        return ProcessRates(rank=key[0], busy=0.0 if waits else None)
    start, end = row_times(own)
    latest = own.where(end > min(window.since_ns, float(end.max()) - 1.0))
    wall, wait = float(latest["wall_ns"].sum()), float(latest["data_wait_ns"].sum())
    if open_time is not None:
        open_ns = _open_ns([open_time], window)
        wall, wait = wall + sum(open_ns.values()), wait + open_ns["data_wait"]
    return ProcessRates(
        rank=key[0],
        batches_per_s=per_second(start, end, own["batches"], window),
        busy=1.0 - min(max(wait, 0.0) / wall, 1.0) if wall > 0 else None,
    )


def _worker_rates(batches: Columns, key: Key, window: TimeWindow) -> ProcessRates:
    own = _rows_of(batches, key)
    known = ProcessRates(rank=key[0], loader=key[1], worker=key[2])
    if own.count == 0:
        return known
    start, end = row_times(own)
    idle_start = start - np.maximum(own["idle_ns"], 0)  # includes idle time since the batch before
    made = per_second(idle_start, end, np.ones(len(end)), window)
    share = float((end - start).sum()) / max(float((end - idle_start).sum()), 1.0)
    return replace(known, batches_per_s=made, busy=share)


def _with_code(
    known: ProcessRates, stacks: Columns, cpu: float | None, folders: CodeFolders
) -> ProcessRates:
    total = float(stacks["wall_ns"].sum())
    at_work: Flags = np.ones(stacks.count, dtype=np.bool_)
    if known.loader is not None:
        at_work = stacks["phase"] == "work"
    seen = read_stack_samples(stacks, at_work, folders=folders)
    place = find_hotspot(seen if known.loader is None else making_part(seen), total)
    if known.loader is not None and total > 0:
        # A batch is recorded when it is made, these every second.
        known = replace(known, busy=float(stacks["wall_ns"][at_work].sum()) / total)
    if place is None:
        return replace(known, cpu=cpu)
    words = filter(None, (place.cause().place, place.cause().name))
    return replace(known, cpu=cpu, doing=" ".join(words), doing_share=place.share)


def _cpu(usage: Columns, window: TimeWindow) -> float | None:
    percent = usage["cpu_percent"]
    latest = percent[usage["t_ns"] > window.since_ns]
    latest = latest if len(latest) else percent[-1:]
    return float(latest.mean()) / 100.0 if len(latest) else None


_NOW_NS = 2_000_000_000
_CORE = re.compile(r"core_(\d+)_percent")
_GPU = re.compile(r"gpu_(\d+)_utilisation_percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMetrics:
    """One GPU by its number on the host; unknown values are None."""

    number: int
    utilisation: float | None  # share of the time in which any kernel ran, 0 to 1
    memory_bytes: float | None  # in use
    power_w: float | None
    received_bytes_per_s: float | None  # over PCIe: copies to the device
    sent_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMetrics:
    """A host of the run; unknown values are None."""

    cores: tuple[tuple[int, float | None], ...] = ()  # number and busy share, 0 to 1
    io_wait: float | None = None  # share of the cores' time idle during disk access
    throttled: float | None = None  # share of time stopped by the CPU quota
    memory_used_bytes: float | None = None  # of the container if limited, or the host
    memory_bytes: float | None = None  # that the job may use
    disk_read_bytes_per_s: float | None = None
    received_bytes_per_s: float | None = None
    sent_bytes_per_s: float | None = None
    gpus: tuple[GpuMetrics, ...] = ()


def read_host_metrics(tables: Tables, window: TimeWindow) -> HostMetrics:
    """Return the metrics of the host from the window's last two seconds, or its last sample."""
    number = training_host(tables)
    rows, hosts = of_host(columns(tables, "system"), number), columns(tables, "hosts")
    here = hosts.where(np.maximum(hosts["number"], LAUNCHER_HOST) == number)
    rows = rows.where(rows["t_ns"] <= window.until_ns)
    if rows.count == 0:
        return HostMetrics()
    rows = rows.where(rows["t_ns"] > min(window.until_ns - _NOW_NS, rows["t_ns"].max() - 1))
    used = _mean(rows, "job_memory_bytes")
    return HostMetrics(
        cores=tuple((number, _share(rows, name)) for number, name in _numbered(rows, _CORE)),
        io_wait=_share(rows, "io_wait_percent"),
        throttled=_share(rows, "cpu_throttled_percent"),
        memory_used_bytes=_mean(rows, "memory_used_bytes") if used is None else used,
        memory_bytes=float(here["memory_bytes"][-1]) if here.count else None,
        disk_read_bytes_per_s=_mean(rows, "disk_read_bytes_per_s"),
        received_bytes_per_s=_mean(rows, "net_received_bytes_per_s"),
        sent_bytes_per_s=_mean(rows, "net_sent_bytes_per_s"),
        gpus=tuple(_gpu(rows, number) for number, _ in _numbered(rows, _GPU)),
    )


def _gpu(rows: Columns, number: int) -> GpuMetrics:
    return GpuMetrics(
        number=number,
        utilisation=_share(rows, f"gpu_{number}_utilisation_percent"),
        memory_bytes=_mean(rows, f"gpu_{number}_memory_bytes"),
        power_w=_mean(rows, f"gpu_{number}_power_w"),
        received_bytes_per_s=_mean(rows, f"gpu_{number}_pcie_received_bytes_per_s"),
        sent_bytes_per_s=_mean(rows, f"gpu_{number}_pcie_sent_bytes_per_s"),
    )


def _numbered(rows: Columns, pattern: re.Pattern[str]) -> list[tuple[int, str]]:
    return sorted((int(match[1]), name) for name in rows if (match := pattern.fullmatch(name)))


def _share(rows: Columns, name: str) -> float | None:
    percent = _mean(rows, name)
    return None if percent is None else min(max(percent / 100.0, 0.0), 1.0)


def _mean(rows: Columns, name: str) -> float | None:
    if name not in rows:
        return None
    values = rows[name].astype(np.float64)
    known = values[np.isfinite(values) & (values >= 0)]  # unknown whole numbers are -1
    return float(known.mean()) if len(known) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The status of a run."""

    name: str
    attempt: int  # that is shown
    world_size: int | None = None  # recorded ranks, at first those asked for; None if unknown
    live: bool = True  # whether it is being recorded at this moment
    outcome: Outcome = "going on"  # how the attempt is doing; also while it only uploads
    recording: bool = True  # whether the live switch is on; True for an ended run
    elapsed_s: float | None = None  # from its start until now or its end; None if unknown
    exit_code: int | None = None  # None while it runs, or if none was recorded
    silent_s: float = 0.0  # the age of the newest record if that is overdue; otherwise 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveVerdict:
    """The doctor's verdict on a run."""

    sentence: str  # the verdict, or why there is none
    span_s: float | None = None  # the last seconds that it is about; None: the whole run
    data_wait_share: float | None = None  # over step time in the whole run, 0 to 1; None if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class TopState:
    """The numbers of a run in a window of time."""

    status: RunStatus
    window: TimeWindow
    steps: StepRates
    host: HostMetrics
    processes: tuple[ProcessRates, ...]
    verdict: LiveVerdict | None = None


def read_state(tables: Tables, window: TimeWindow, status: RunStatus) -> TopState:
    """Return the numbers of the last seconds."""
    return TopState(
        status=status,
        window=window,
        steps=read_step_rates(tables, window),
        host=read_host_metrics(tables, window),
        processes=read_processes(tables, window),
    )
