"""A run's pipeline as measured by its records: costs of batches and steps, and use of its hosts.

A container sees the whole machine: with a CPU quota every core is listed, busy with whatever runs
there. So the job's use is measured by its own processes, and the use of others counts by what they
leave of its cores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from headrace.observe.whatif.allowed_cores import AllowedCores, read_allowed_cores
from headrace.observe.whatif.hosts import of_host, processes_on, training_host
from headrace.observe.whatif.loaders_in_turn import fed_by, is_made_by_thread, main_loader
from headrace.observe.whatif.offload_stats import OffloadStats, read_offload_stats
from headrace.observe.whatif.sampler_time import sampler_ns_of_fetches, sampler_ns_of_steps
from headrace.observe.whatif.simulation import FULL, Pipeline
from headrace.observe.whatif.tables import (
    Columns,
    Flags,
    Floats,
    Tables,
    columns,
    covered_before,
)
from headrace.observe.whatif.train_steps import TrainSteps, read_steps
from headrace.observe.whatif.worker_shares import WorkerShares, read_worker_shares
from headrace.records.schema import LAUNCHER_HOST

_CORE = re.compile(r"core_(\d+)_percent")
_ACCELERATOR = re.compile(r"gpu_(\d+)_\w+")
_FEWEST_LOOKS = 3
"""With fewer samples of the processes an average says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUsage:
    """A host of the run: the one with the fewest cores, if there are several."""

    cores: float  # that its ranks and their workers may use
    ranks: int
    busy_cores: float | None  # mean while steps ran; None if not recorded
    rank_cores: float | None = None  # used by its ranks without their workers; None if not recorded
    foreign_cores: float = 0.0  # busy with other programs; 0 if unknown
    child_cores: float = 0.0  # used by processes that ranks and workers started
    accelerators: int = 0  # recorded; 0 if there are none, or none was sampled
    launched_cores: float = 0.0  # that the launcher may use: more where ranks are bound to fewer
    worker_cores: float = float("inf")  # that all workers are bound to, if fewer than `cores`
    pressure: float | None = None  # share of time in which a thread lacked a core; None: unknown
    script_cores: float = 0.0  # of `foreign_cores`, used by programs that the script started

    @property
    def idle_cores(self) -> float | None:
        """Mean number of idle cores; None if not recorded."""
        return None if self.busy_cores is None else max(self.cores - self.busy_cores, 0.0)

    @property
    def is_bound(self) -> bool:
        """Whether ranks and workers, or all workers, may use fewer cores than their launcher."""
        return min(self.cores, self.worker_cores) < self.launched_cores

    @property
    def is_full(self) -> bool:
        """Whether it had no core to spare, whoever used them."""
        return self.busy_cores is not None and self.busy_cores >= FULL * self.cores


def read_host_usage(tables: Tables, span_ns: tuple[int, int] | None = None) -> HostUsage:
    """Return the host's cores and how busy they were, in all of the run by default.

    Of several hosts it is the one with the most ranks.
    """
    number = training_host(tables)
    hosts = columns(tables, "hosts")
    here = np.maximum(hosts["number"], LAUNCHER_HOST) == number  # -1: of older records
    launched = float(hosts["cores"][here].min(initial=np.inf))
    processes, usage, process_cores = (
        processes_on(columns(tables, name), number)
        for name in ("processes", "process_usage", "process_cores")
    )
    allowed = read_allowed_cores(process_cores, processes)
    system = of_host(columns(tables, "system"), number)
    listed = _listed_cores(system, allowed)
    busy = _busy_cores(system, listed, span_ns)
    children = usage.where(~np.isin(usage["pid"], processes["pid"]))
    run = _used_cores(usage, processes, span_ns)  # with processes that ranks started
    host = HostUsage(
        cores=launched if allowed is None else allowed.count,
        ranks=max(len(np.unique(processes.having(role="rank")["rank"])), 1),
        busy_cores=busy,
        rank_cores=_used_cores(usage, processes, span_ns, "rank"),
        foreign_cores=max(busy - run, 0.0) if busy is not None and run is not None else 0.0,
        child_cores=_used_cores(children, processes, span_ns) or 0.0,
        accelerators=len({found[1] for name in system if (found := _ACCELERATOR.fullmatch(name))}),
        launched_cores=launched,
        worker_cores=allowed.workers if allowed is not None else float("inf"),
        pressure=_pressure(system, span_ns),
    )
    return _within_quota(host, listed=len(listed))


def _listed_cores(system: Columns, allowed: AllowedCores | None) -> list[str]:
    """Return the columns of the cores that the run's processes may use, as far as recorded."""
    names = {int(found[1]): name for name in system if (found := _CORE.fullmatch(name))}
    wanted = names.keys() & allowed.numbers if allowed is not None else set(names)
    return [names[number] for number in sorted(wanted or names)]


def _within_quota(host: HostUsage, *, listed: int) -> HostUsage:
    """Return a host with its busy cores as the job notices them; it may run on the `listed` cores.

    If a CPU quota gives the job fewer cores than it may run on, other programs take some of its
    share only once they leave less than the quota. If the job's own use was not recorded, its share
    is unknown.
    """
    if host.busy_cores is None or listed <= np.ceil(host.cores):
        return host
    if host.rank_cores is None:
        return replace(host, busy_cores=None, foreign_cores=0.0)
    own = host.busy_cores - host.foreign_cores
    taken = max(host.cores - (listed - host.foreign_cores), 0.0)
    return replace(host, busy_cores=min(own + taken, host.cores), foreign_cores=taken)


def _busy_cores(system: Columns, names: list[str], span_ns: tuple[int, int] | None) -> float | None:
    inside = _inside(system, span_ns)
    if not names or not inside.any():
        return None
    means = [_known_mean(system[name][inside]) for name in names]
    known = [mean for mean in means if mean is not None]
    return sum(known) / 100.0 if known else None


def _pressure(system: Columns, span_ns: tuple[int, int] | None) -> float | None:
    inside = _inside(system, span_ns)
    if "cpu_pressure_percent" not in system or not inside.any():
        return None
    percent = _known_mean(system["cpu_pressure_percent"][inside])
    return None if percent is None else percent / 100.0


def _known_mean(values: np.ndarray) -> float | None:
    """Return the mean of samples, of those that are known; None where none is."""
    numbers = values.astype(np.float64)
    known = numbers[np.isfinite(numbers)]
    return float(known.mean()) if len(known) else None


def _inside(samples: Columns, span_ns: tuple[int, int] | None) -> Flags:
    if span_ns is None:
        return np.ones(samples.count, dtype=np.bool_)
    return np.asarray((samples["t_ns"] >= span_ns[0]) & (samples["t_ns"] <= span_ns[1]))


def _used_cores(
    usage: Columns, processes: Columns, span_ns: tuple[int, int] | None, role: str = ""
) -> float | None:
    """Return the mean number of cores used by the processes of a role, or by all."""
    if usage.count == 0 or processes.count == 0:
        return None
    wanted = set((processes["pid"][processes["role"] == role] if role else usage["pid"]).tolist())
    samples = usage.where(_inside(usage, span_ns))
    # Each process is sampled at its own times, so the intervals are taken for each.
    by_process = [samples.where(places) for places in samples.group("pid")]
    if max((each.count for each in by_process), default=0) < _FEWEST_LOOKS:
        return None
    usual_ns = float(np.median(np.concatenate([np.diff(mine["t_ns"]) for mine in by_process])))
    used_ns, watched_ns = 0.0, 1.0
    for mine in by_process:
        if int(mine["pid"][0]) in wanted:
            # Includes the time before its first sample: workers restarted each epoch have few.
            since_ns = np.diff(mine["t_ns"], prepend=mine["t_ns"][0] - int(usual_ns))
            watched_ns = max(watched_ns, float(since_ns.sum()))
            used_ns += float((mine["cpu_percent"].astype(np.float64) / 100.0 * since_ns).sum())
    return used_ns / watched_ns


FEWEST_BATCHES = 5
"""With fewer batches or steps nothing is predicted."""
_ANSWER_FACTOR = 1.5
"""Reading a batch lasts so many times its CPU time in the rank, which asks workers for the memory
behind handles. Idle workers answer within a quarter of that CPU time. A worker that runs Python
code delays its answering thread by up to several times as long; that goes as it gets less to do.
(Two tensors a batch: 0.83 ms of CPU time, and 1.06, 1.7 and 4.7 ms of wall time, with a worker that
was idle, busy most of the time, or always busy.)"""
_FEWEST_OF_RANK, _CALM_PERCENT = 40, 5
"""From so many batches of a rank on, its calmest ones count: the first percentage of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWork:
    """The batches made for one loader of every rank, without each worker's first."""

    rows: Columns  # of the table `batches`
    cpu_measured: bool
    idle_ns: Floats | None = None  # that counts of the workers' wait for work; None: all of it
    made: Columns | None = None  # the same with each worker's first; None: `rows`

    def __len__(self) -> int:
        return self.rows.count

    def column(self, name: str) -> Floats:
        """Return a column as floats, with 0 for unknown values."""
        return np.maximum(self.rows[name].astype(np.float64), 0.0)

    @property
    def service_ns(self) -> Floats:
        """The time for which each batch kept its worker busy.

        A thread of its own sends batches while the next one is made: the slower of the two sets the
        pace.
        """
        return np.maximum(self.column("wall_ns"), self.column("send_ns"))

    @property
    def cpu_share(self) -> float:
        """CPU time of the workers' main threads over the wall time of making batches."""
        return float(self.column("cpu_ns").sum() / max(self.column("wall_ns").sum(), 1.0))

    @property
    def threads(self) -> float:
        """CPU time of all threads of the workers over that of their main threads."""
        return float(
            max(self.column("process_cpu_ns").sum(), 1.0) / max(self.column("cpu_ns").sum(), 1.0)
        )

    @property
    def calm_share(self) -> float:
        """CPU time a sample in a rank's calmest batches over its mean, 0 to 1; 1 if unknown.

        Samples need similar CPU time, so batches do, too; threads that spin while they wait for
        each other take many times as much in one batch as in another.
        """
        each_ns = self.column("process_cpu_ns") / np.maximum(self.column("samples"), 1.0)
        by_rank = [each_ns[self.rows["rank"] == rank] for rank in np.unique(self.rows["rank"])]
        if min(len(each) for each in by_rank) < _FEWEST_OF_RANK:
            return 1.0
        calm = [np.percentile(each, _CALM_PERCENT) / max(each.mean(), 1.0) for each in by_rank]
        return min(float(np.mean(calm)), 1.0)

    @property
    def idle_share(self) -> float:
        """The share of the workers' time in which they waited for work."""
        counted = self.column("idle_ns") if self.idle_ns is None else self.idle_ns
        idle = float(counted.sum())
        return idle / max(idle + float(self.service_ns.sum()), 1.0)

    def shares(self, loader: Columns, fetches: Columns) -> WorkerShares | None:
        """Return the workers' shares in the batches of an iterable dataset; None if not recorded.

        The batches of a map-style dataset are dealt out by the loader, and so are shared equally.
        """
        if str(loader["style"][0]) != "iterable":
            return None
        fetches = fetches.having(loader=loader["loader"][0])
        made = self.rows if self.made is None else self.made
        return read_worker_shares(made, fetches, int(loader["workers"][0]))


@dataclass(frozen=True, slots=True)
class EpochBegins:
    """What steps in which an iteration begins wait beyond the others, ns, a batch of all."""

    making_ns: float = 0.0  # for the first batch to be made: as long as any other
    starting_ns: float = 0.0  # beyond that, such as for workers to start
    count: float = 0.0  # of such steps, a batch of all


def _epoch_begins(steps: TrainSteps, service_ns: float) -> EpochBegins:
    """Return the waits of steps in which an iteration begins, with the mean time of a batch."""
    wait_ns, begin = steps.data_wait_ns, steps.starts_loader
    if not begin.any():
        return EpochBegins()
    beyond = np.maximum(wait_ns[begin] - wait_ns[~begin].mean(), 0.0)
    making, batches = np.minimum(beyond, service_ns), float(steps.batches[steps.after_begins].sum())
    added = np.array([making.sum(), (beyond - making).sum(), begin.sum()]) / batches
    return EpochBegins(*map(float, added))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPipeline:
    """A pipeline and its measured costs; times of batches as in `simulation.BatchCosts`."""

    pipeline: Pipeline  # as it ran; its cores are a rank's share of the host's
    service_ns: Floats
    service_cpu_ns: Floats
    demand_ns: Floats
    consume_ns: Floats  # of each step without data wait, a batch
    taking_ns: float = 0.0  # part of it, besides the sampler's time: reading a batch from workers
    taking_cpu_ns: float = 0.0  # CPU time of that in the rank; 0 where unknown
    consume_cpu_ns: float  # mean CPU time of the consumer, a batch
    period_ns: Floats  # of each step, a batch: its mean is what the simulation must reproduce
    ranks: int  # on the host
    persistent: bool  # whether workers outlive an epoch
    auxiliary_factor: float = 1.0  # time to make a batch on an auxiliary host over that here
    begins: EpochBegins = EpochBegins()
    least_period_ns: float = 0.0  # of a batch, as long as other loaders of the steps do not change
    part: float = 1.0  # of the time of all steps, if loaders feed them in turn: see `fed_by`
    by_thread: bool = False  # the pipeline's one worker is a thread of the script's own


def read_batch_work(tables: Tables, loader: int, during: Columns | None = None) -> BatchWork | None:
    """Return the batches made for a loader; None if none were recorded.

    Args:
        tables: Of the run.
        loader: Its number.
        during: Rows of `steps` in which waits of the workers for work count: in what lies between
            them, such as a first step that compiles, or an evaluation, workers are idle because
            nobody wants batches. None: all of the time.
    """
    batches = made = columns(tables, "batches").having(loader=loader)
    later: Flags = batches["batch"] > 0
    if later.sum() >= FEWEST_BATCHES:  # a worker's first batch includes imports and cold caches
        batches = batches.where(later)
    if batches.count == 0:
        return None
    return BatchWork(
        rows=batches,
        made=made,
        cpu_measured=bool(batches["cpu_ns"].sum() > 0),
        idle_ns=None if during is None else _idle_during_ns(batches, during),
    )


def _idle_during_ns(batches: Columns, steps: Columns) -> Floats:
    """Return how much of each batch's `idle_ns` lies in steps of its rank."""
    until = batches["start_ns"].astype(np.float64)
    since = until - np.maximum(batches["idle_ns"], 0)
    idle_ns = np.zeros(batches.count)
    for rank in np.unique(batches["rank"]):
        mine, own = batches["rank"] == rank, steps["rank"] == rank
        begins = steps["start_ns"][own].astype(np.float64)
        spans = begins, begins + steps["wall_ns"][own]
        idle_ns[mine] = covered_before(*spans, until[mine]) - covered_before(*spans, since[mine])
    return idle_ns


def measure(tables: Tables) -> MeasuredPipeline | None:
    """Return the measured costs of a run's pipeline; None if there are too few records."""
    steps = read_steps(tables)
    if steps.recorded == 0:
        return None
    loader = main_loader(steps)
    steps = fed_by(steps, loader)
    offloaded = read_offload_stats(tables, loader, steps.span_ns)
    return measure_from(
        steps=steps,
        loader=loader_rows(columns(tables, "loaders"), loader, offloaded),
        work=read_batch_work(tables, loader, steps.rows),
        fetches=columns(tables, "fetches"),
        host=read_host_usage(tables, steps.span_ns),
        offload=offloaded,
    )


def measure_from(
    *,
    steps: TrainSteps,
    loader: Columns | None,
    work: BatchWork | None,
    fetches: Columns,
    host: HostUsage,
    offload: OffloadStats | None = None,
) -> MeasuredPipeline | None:
    """Return the pipeline's costs from records already read; None if there are too few."""
    steady = steps.steady
    if loader is None or work is None or min(len(steady), len(work)) < FEWEST_BATCHES:
        return None
    batches, workers = steady.batches, int(loader["workers"][0])
    in_rank, by_thread = not workers, is_made_by_thread(fetches, int(loader["loader"][0]), workers)
    workers = max(workers, int(by_thread))
    sharing, busiest = _sharing(work.shares(loader, fetches) if offload is None else None, workers)
    taking = handoff_ns(fetches, int(loader["loader"][0]), workers)
    # Both are part of the data wait; what a device does not wait for is in its steps already.
    waited = float((steady.data_wait_ns / batches).mean())
    sampling = float((sampler_ns_of_steps(steady, fetches) / batches).mean())
    taking = min(taking, waited - sampling)
    received = _received(fetches, int(loader["loader"][0]))
    taking_cpu = float(received["receive_cpu_ns"].mean()) if received.count else 0.0
    consume = (steady.wall_ns - steady.data_wait_ns) / batches + taking + sampling
    period = steady.wall_ns / batches
    service = work.service_ns
    cpu = np.minimum(work.column("cpu_ns"), service)
    demand = np.maximum(work.column("process_cpu_ns"), cpu)
    ranks, remote = host.ranks, offload or OffloadStats()
    other_cpu = _other_cpu_ns(host, float(period.mean()), float(demand.mean()), inline=in_rank)
    used_ns = float(demand.mean()) + other_cpu
    return MeasuredPipeline(
        pipeline=Pipeline(
            workers=sharing,
            # Batches are asked for ahead of the workers that make them.
            prefetch_factor=max(int(loader["prefetch_factor"][0]) * workers // max(sharing, 1), 1),
            takes_next=offload is not None
            or str(loader["kind"][0]) == "headrace"
            or int(loader["in_order"][0]) == 0,
            cores=_cores_left(host, used_ns / float(period.mean()) if offload is None else 0.0),
            worker_cores=host.worker_cores / ranks,
            auxiliary=remote.workers,
            busiest_share=busiest,
        ),
        service_ns=service,
        service_cpu_ns=cpu,
        demand_ns=demand,
        consume_ns=consume,
        taking_ns=taking,
        taking_cpu_ns=min(taking_cpu, taking),
        consume_cpu_ns=other_cpu,
        period_ns=period,
        ranks=ranks,
        persistent=bool(loader["persistent"][0]),
        auxiliary_factor=remote.making_ns / float(service.mean()) if remote.workers else 1.0,
        begins=_epoch_begins(steps, float(service.mean())),
        part=steps.part,
        by_thread=by_thread,
    )


def loader_rows(
    loaders: Columns, number: int, offload: OffloadStats | None = None
) -> Columns | None:
    """Return the rows of a loader in one of its ranks, one for each construction, if any.

    If batches are offloaded, a loader without workers counts as one with a single worker.
    """
    rows = loaders.having(loader=number)
    if not rows.count:
        return None
    rows = rows.having(rank=rows["rank"][0])
    if offload is None:
        return rows
    prefetch = np.where(rows["workers"] == 0, 2, rows["prefetch_factor"])
    return Columns({**rows, "workers": np.maximum(rows["workers"], 1), "prefetch_factor": prefetch})


def _sharing(shares: WorkerShares | None, workers: int) -> tuple[int, float]:
    """Return how many workers make batches, and the busiest one's share; 0: equal shares."""
    if shares is None or not shares.unequal:
        return workers, 0.0
    sharing = max(workers - shares.idle, 1)
    return sharing, shares.largest if sharing > 1 else 0.0


def _cores_left(host: HostUsage, used: float) -> float:
    """Return a rank's share of the host's cores, without what other programs use.

    These never take all, nor what a rank's own batches are known to have `used`: their use is
    sampled over a longer time than the steps, and not always the same.
    """
    left = max(host.cores - host.foreign_cores, host.cores / 2) / host.ranks
    return max(left, min(used, host.cores / host.ranks))


def _other_cpu_ns(host: HostUsage, period: float, demand: float, *, inline: bool) -> float:
    """Return the CPU time a batch of the rank and of everything else but its loader's workers."""
    if host.rank_cores is not None:
        used = host.rank_cores / host.ranks * period
        # Without workers, the rank's CPU time includes making batches.
        return max(used - demand, 0.0) if inline else used
    if host.busy_cores is None:
        return 0.0
    # Use beyond the workers' own CPU time belongs to the rank and other processes.
    return max(host.busy_cores / host.ranks * period - demand, 0.0)


def handoff_ns(fetches: Columns, loader: int, workers: int) -> float:
    """Return what reading a batch costs its rank however early it was made, in ns.

    It was timed if the rank's own thread reads what workers send: then it is the CPU time with an
    idle worker's time to answer, plus the rest of the waits for ready batches. Otherwise it is
    known only from waits for ready batches.
    """
    received = _received(fetches, loader)
    if received.count < FEWEST_BATCHES:
        return wait_for_ready_ns(fetches, loader, workers)
    # If workers need not answer, all of it is CPU time.
    answered_ns = float(received["receive_cpu_ns"].mean()) * _ANSWER_FACTOR
    own = min(answered_ns, float(received["receive_ns"].mean()))
    rest = received["wait_ns"] - received["receive_ns"] - sampler_ns_of_fetches(received)
    return own + _calm_ns(rest[received["ready"] > 0], workers)


def _received(fetches: Columns, loader: int) -> Columns:
    """Return the batches of a loader whose reading was timed, without each epoch's first."""
    timed = (fetches["loader"] == loader) & (fetches["ended"] == 0)
    timed &= (fetches["receive_ns"] >= 0) & (fetches["receive_cpu_ns"] >= 0)
    return fetches.where(timed & (fetches["batch"] > 0))


def wait_for_ready_ns(fetches: Columns, loader: int, workers: int) -> float:
    """Return the wait for a batch that is ready, in ns; 0 if none was seen."""
    at_hand = (fetches["loader"] == loader) & (fetches["ready"] > 0) & (fetches["ended"] == 0)
    ready = fetches.where(at_hand & (fetches["batch"] > 0))
    return _calm_ns(ready["wait_ns"] - sampler_ns_of_fetches(ready), workers)


def _calm_ns(waits_ns: Floats, workers: int) -> float:
    """Return the wait for a ready batch alone; 0 if too few were seen.

    With several workers a ready batch need not be the next one, so some of these waits are for the
    pipeline: the shortest count.
    """
    if len(waits_ns) < FEWEST_BATCHES:
        return 0.0
    return float(np.percentile(waits_ns, 50 if workers == 1 else 10))


def with_children_as_others(host: HostUsage) -> HostUsage:
    """Return a host on which the processes that ranks and workers started are other programs."""
    foreign = host.foreign_cores + host.child_cores
    return replace(host, foreign_cores=foreign, script_cores=host.child_cores, child_cores=0.0)


def with_child_cpu(measured: MeasuredPipeline, host: HostUsage) -> MeasuredPipeline:
    """Return a pipeline in which making batches needs the CPU time of processes that it awaits."""
    child_ns = host.child_cores / host.ranks * float(measured.period_ns.mean())
    demand_ns = measured.demand_ns + child_ns
    cpu_ns = np.minimum(measured.service_cpu_ns + child_ns, measured.service_ns)
    return replace(measured, demand_ns=demand_ns, service_cpu_ns=cpu_ns)


_FASTEST_PERCENT = 10
_DISK_BYTES_PER_S, _MEMORY_BYTES_PER_S = 200e6, 5e9
"""A network disk or old SSD, read sequentially; and the page cache."""
_DISK_OPEN_NS, _MEMORY_OPEN_NS = 100e3, 10e3
"""Opening a sample there: an SSD's latency, and a few system calls."""


def shard_reading_ns(work: BatchWork, share: float) -> tuple[float, float]:
    """Return what reading shards would take a batch, at most and at least, in nanoseconds.

    `share` is that of the time of making batches that waits for reads, 0 to 1.
    """
    wall = work.column("wall_ns")
    waiting = np.maximum(wall - work.column("cpu_ns"), 0.0)
    of_waiting = min(share * float(wall.sum()) / max(float(waiting.sum()), 1.0), 1.0)
    fastest = float(np.percentile(waiting, _FASTEST_PERCENT)) * of_waiting
    read_bytes = float(work.column("read_bytes").mean())
    samples = float(np.maximum(work.column("samples"), 1.0).mean())
    disk = read_bytes / _DISK_BYTES_PER_S * 1e9 + samples * _DISK_OPEN_NS
    memory = read_bytes / _MEMORY_BYTES_PER_S * 1e9 + samples * _MEMORY_OPEN_NS
    most = min(fastest, disk)
    return most, min(memory, most)
