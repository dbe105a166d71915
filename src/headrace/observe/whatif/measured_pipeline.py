"""A run's pipeline as its records measure it: costs of batches and steps to simulate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.host_usage import (
    HostUsage,
    OffloadStats,
    read_host_usage,
    read_offload_stats,
)
from headrace.observe.whatif.simulation import Pipeline
from headrace.observe.whatif.tables import (
    Columns,
    Flags,
    Floats,
    Ints,
    Tables,
    columns,
    row_count,
    select_rows,
)
from headrace.observe.whatif.train_steps import TrainSteps, read_steps

_USUAL_PREFETCH = 2
FEWEST_BATCHES = 5
"""Fewer batches or steps carry no prediction."""
_ANSWER_FACTOR = 1.5
"""Taking a batch lasts so many times the CPU time that it takes the rank, which asks workers for
what is behind handles. Those with nothing else to do answer in a quarter of that CPU time. One that
runs Python code lets its thread that answers wait, for up to several times as long; that goes as it
gets less to do. (Two tensors a batch: 0.83 ms of CPU, and 1.06, 1.7 and 4.7 ms by the clock, where
the worker was idle, had to do for most of the time, or always.)"""
_FEWEST_OF_RANK, _CALM_PERCENT = 40, 5
"""From so many batches of a rank on, the calmest are told apart: so many of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWork:
    """The batches that were made for one loader of every rank, each worker's first left out.

    Attributes:
        rows: The table `batches`, these rows.
        cpu_measured: Whether CPU time was recorded with them.
    """

    rows: Columns
    cpu_measured: bool

    def __len__(self) -> int:
        """Return how many batches."""
        return row_count(self.rows)

    def column(self, name: str) -> Floats:
        """Return a column as floats, what is unknown as 0."""
        return np.maximum(self.rows[name].astype(np.float64), 0.0)

    @property
    def service_ns(self) -> Floats:
        """What each batch kept its worker busy for.

        Batches are handed over by a thread of their own, beside the making of the next one: the
        slower of the two sets the pace.
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
        """CPU time a sample in a rank's calmest batches over its mean, 0 to 1; 1 where unknown.

        Samples mostly need alike, so that batches do; threads that wait for each other, spinning,
        take many times as much in one batch as in another.
        """
        each_ns = self.column("process_cpu_ns") / np.maximum(self.column("samples"), 1.0)
        of_ranks = [each_ns[self.rows["rank"] == rank] for rank in np.unique(self.rows["rank"])]
        if min(len(each) for each in of_ranks) < _FEWEST_OF_RANK:
            return 1.0
        calm = [np.percentile(each, _CALM_PERCENT) / max(each.mean(), 1.0) for each in of_ranks]
        return min(float(np.mean(calm)), 1.0)

    @property
    def has_slow_handoff(self) -> bool:
        """Whether handing a batch over takes longer than making one."""
        return float(self.column("send_ns").sum()) > float(self.column("wall_ns").sum())

    @property
    def idle_share(self) -> float:
        """The share of the workers' time in which they waited for work."""
        idle = float(self.column("idle_ns").sum())
        return idle / max(idle + float(self.service_ns.sum()), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPipeline:
    """A pipeline and its measured costs.

    Attributes:
        pipeline: As it ran; its cores are those that each rank of the host gets.
        service_ns: Of each batch that was made, as in `simulation.Load`.
        service_cpu_ns: Likewise.
        demand_ns: Likewise.
        consume_ns: Of each step, a batch.
        taking_ns: Of it: taking a batch from the workers.
        consume_cpu_ns: A batch, on average.
        period_ns: A batch, on average, of each step: what the simulation must reproduce.
        ranks: Ranks on the host.
        persistent: Whether workers live on after an epoch.
        auxiliary_factor: How many times as long a batch took that an auxiliary host made.
    """

    pipeline: Pipeline
    service_ns: Floats
    service_cpu_ns: Floats
    demand_ns: Floats
    consume_ns: Floats
    taking_ns: float = 0.0
    consume_cpu_ns: float
    period_ns: Floats
    ranks: int
    persistent: bool
    auxiliary_factor: float = 1.0


def main_loader(steps: TrainSteps) -> int:
    """Return the number of the loader that feeds most training steps; -1 where there is none."""
    loaders = steps.rows.get("loader", np.zeros(0, dtype=np.int64))
    loaders = loaders[loaders >= 0]
    if len(loaders) == 0:
        return -1
    numbers, counts = np.unique(loaders, return_counts=True)
    return int(numbers[counts.argmax()])


def read_batch_work(tables: Tables, loader: int) -> BatchWork | None:
    """Return the batches made for a loader; None where none were recorded."""
    batches = columns(tables, "batches")
    if row_count(batches) == 0:
        return None
    batches = select_rows(batches, batches["loader"] == loader)
    later: Flags = batches["batch"] > 0
    if later.sum() >= FEWEST_BATCHES:  # a worker's first batch pays for imports and cold caches
        batches = select_rows(batches, later)
    if row_count(batches) == 0:
        return None
    return BatchWork(rows=batches, cpu_measured=bool(batches["cpu_ns"].sum() > 0))


def measure(tables: Tables) -> MeasuredPipeline | None:
    """Return what the records say of the pipeline; None where they are too few."""
    steps = read_steps(tables)
    if steps.recorded == 0:
        return None
    loader = main_loader(steps)
    away = read_offload_stats(tables, loader, steps.span_ns)
    return measure_from(
        steps=steps,
        loader=loader_rows(columns(tables, "loaders"), loader, away),
        work=read_batch_work(tables, loader),
        fetches=columns(tables, "fetches"),
        host=read_host_usage(tables, steps.span_ns),
        away=away,
    )


def measure_from(
    *,
    steps: TrainSteps,
    loader: Columns | None,
    work: BatchWork | None,
    fetches: Columns,
    host: HostUsage,
    away: OffloadStats | None = None,
) -> MeasuredPipeline | None:
    """Return the pipeline's costs, from records that are already read; None where too few.

    Args:
        steps: The train steps that count.
        loader: The loader that feeds them: see `loader_rows`.
        work: The batches made for it.
        fetches: The table `fetches`.
        host: The host they share.
        away: What auxiliary hosts did, where they were to do something.
    """
    steady = steps.steady
    if loader is None or work is None or min(len(steady), len(work)) < FEWEST_BATCHES:
        return None
    batches = np.maximum(steady.rows["batches"].astype(np.float64), 1.0)
    workers = int(loader["workers"][0])
    taking = handoff_ns(fetches, int(loader["loader"][0]), workers)
    # It is in the waits; what of it a device does not feel is in the device's steps already.
    taking = min(taking, float((steady.data_wait_ns / batches).mean()))
    consume = (steady.wall_ns - steady.data_wait_ns) / batches + taking
    period = steady.wall_ns / batches
    service = work.service_ns
    cpu = np.minimum(work.column("cpu_ns"), service)
    demand = np.maximum(work.column("process_cpu_ns"), cpu)
    ranks = host.ranks
    other_cpu = _other_cpu_ns(host, float(period.mean()), float(demand.mean()), inline=not workers)
    return MeasuredPipeline(
        pipeline=Pipeline(
            workers=workers,
            prefetch_factor=max(int(loader["prefetch_factor"][0]), 1),
            takes_next=_takes_next(loader) or away is not None,
            # What others of the host use is not to be had; but they never take all of it.
            cores=max(host.cores - host.foreign_cores, host.cores / 2) / ranks,
            auxiliary=away.workers if away is not None else 0,
        ),
        service_ns=service,
        service_cpu_ns=cpu,
        demand_ns=demand,
        consume_ns=consume,
        taking_ns=taking,
        consume_cpu_ns=other_cpu,
        period_ns=period,
        ranks=ranks,
        persistent=bool(loader["persistent"][0]),
        auxiliary_factor=away.making_ns / float(service.mean()) if away and away.workers else 1.0,
    )


def _takes_next(loader: Columns) -> bool:
    return str(loader["kind"][0]) == "headrace" or int(loader["in_order"][0]) == 0


def loader_rows(loaders: Columns, number: int, away: OffloadStats | None = None) -> Columns | None:
    """Return the rows of a loader in one of its ranks, one for each time it was constructed.

    Args:
        loaders: The table.
        number: Its number.
        away: What auxiliary hosts did, where they were to do something: with them a loader without
            workers has one.
    """
    rows = select_rows(loaders, loaders["loader"] == number) if row_count(loaders) else loaders
    if not row_count(rows):
        return None
    rows = select_rows(rows, rows["rank"] == rows["rank"][0])
    if away is None:
        return rows
    without = rows["workers"] == 0
    return {
        **{name: rows[name] for name in rows},
        "workers": np.maximum(rows["workers"], 1),
        "prefetch_factor": np.where(without, _USUAL_PREFETCH, rows["prefetch_factor"]),
    }


def _other_cpu_ns(host: HostUsage, period: float, demand: float, *, inline: bool) -> float:
    """Return the CPU time a batch of the rank and of all that is not its loader."""
    if host.rank_cores is not None:
        used = host.rank_cores / host.ranks * period
        # Without workers the rank's CPU time holds the making of batches too.
        return max(used - demand, 0.0) if inline else used
    if host.busy_cores is None:
        return 0.0
    # What is busy beyond the workers' own CPU time belongs to the rank and to all else.
    return max(host.busy_cores / host.ranks * period - demand, 0.0)


def handoff_ns(fetches: Columns, loader: int, workers: int) -> float:
    """Return what taking a batch costs its rank however early it was made, in ns.

    It was timed where the rank's own thread takes what workers send: its CPU time tells, with what
    an idle worker takes to answer, and what waits for ready batches took besides. Elsewhere it is
    seen only where a batch lay ready.

    Args:
        fetches: The table.
        loader: The loader's number.
        workers: Its workers.
    """
    if row_count(fetches) == 0:
        return 0.0
    timed = (fetches["loader"] == loader) & (fetches["ended"] == 0)
    timed &= (fetches["receive_ns"] >= 0) & (fetches["receive_cpu_ns"] >= 0)
    received = select_rows(fetches, timed & (fetches["batch"] > 0))
    if row_count(received) < FEWEST_BATCHES:
        return wait_for_ready_ns(fetches, loader, workers)
    # Where workers are not asked for anything, all of it is CPU time, and there is no answer.
    answered_ns = float(received["receive_cpu_ns"].mean()) * _ANSWER_FACTOR
    own = min(answered_ns, float(received["receive_ns"].mean()))
    besides = received["wait_ns"] - received["receive_ns"]
    return own + _calm_ns(besides[received["ready"] > 0], workers)


def wait_for_ready_ns(fetches: Columns, loader: int, workers: int) -> float:
    """Return what taking a batch costs that lies ready, in ns; 0 where none was seen.

    Args:
        fetches: The table.
        loader: The loader's number.
        workers: Its workers.
    """
    if row_count(fetches) == 0:
        return 0.0
    at_hand = (fetches["loader"] == loader) & (fetches["ready"] > 0) & (fetches["ended"] == 0)
    return _calm_ns(fetches["wait_ns"][at_hand & (fetches["batch"] > 0)], workers)


def _calm_ns(waits_ns: Ints, workers: int) -> float:
    """Return how long a wait is that is for a ready batch alone; 0 where too few were seen.

    With several workers a batch that waits need not be the next one, so some of these waits are
    for the pipeline: the shortest are taken.
    """
    if len(waits_ns) < FEWEST_BATCHES:
        return 0.0
    return float(np.percentile(waits_ns, 50 if workers == 1 else 10))


_FASTEST_PERCENT = 10
_DISK_BYTES_PER_S, _MEMORY_BYTES_PER_S = 200e6, 5e9
"""A network disk or an old SSD, read in order; and the page cache."""
_DISK_OPEN_NS, _MEMORY_OPEN_NS = 100e3, 10e3
"""Finding a sample there: an SSD's latency, and a few system calls."""


def shard_reading_ns(work: BatchWork, share: float) -> tuple[float, float]:
    """Return what reading would take a batch, at most and at least, in nanoseconds.

    Args:
        work: The batches that were made.
        share: The share of their making that waits for reads, 0 to 1.
    """
    wall = work.column("wall_ns")
    waiting = np.maximum(wall - work.column("cpu_ns"), 0.0)
    of_waiting = min(share * float(wall.sum()) / max(float(waiting.sum()), 1.0), 1.0)
    fastest = float(np.percentile(waiting, _FASTEST_PERCENT)) * of_waiting
    read_bytes, samples = (
        float(work.column("read_bytes").mean()),
        float(np.maximum(work.column("samples"), 1.0).mean()),
    )
    disk = read_bytes / _DISK_BYTES_PER_S * 1e9 + samples * _DISK_OPEN_NS
    memory = read_bytes / _MEMORY_BYTES_PER_S * 1e9 + samples * _MEMORY_OPEN_NS
    most = min(fastest, disk)
    return most, min(memory, most)
