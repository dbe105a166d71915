"""What a recorded run would be with many ranks: speed, efficiency, cost, demand on storage.

All of it is simulated (observe/whatif/rank_simulation.py); nothing of it was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.core.errors import RecordsError, UsageError
from headrace.decide.cost.price_catalogue import UnknownPriceError
from headrace.decide.cost.run_cost import GroupCost, Pricing, last_groups
from headrace.observe.whatif.loaders_in_turn import main_loader
from headrace.observe.whatif.measured_pipeline import (
    MeasuredPipeline,
    measure,
    read_batch_work,
)
from headrace.observe.whatif.prediction import Estimate, PipelineChange, Simulator
from headrace.observe.whatif.rank_simulation import MOST_RANKS, RankSimulator, SimulatedRanks
from headrace.observe.whatif.rank_times import RankTimes, rank_times
from headrace.observe.whatif.tables import CachedTables
from headrace.observe.whatif.train_steps import read_steps
from headrace.platforms.instance_groups import TRAINING
from headrace.records.reader import open_records

S3_REQUESTS_PER_S = 5500.0
"""GET requests a second that S3 answers for one prefix at least.
Source: docs.aws.amazon.com/AmazonS3, "Best practices design patterns"."""
_NO_CORES = 1e-6
"""So few auxiliary cores that no batch is made on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPerSample:
    """What a sample asks of storage; None: it was not recorded."""

    read_bytes: float | None
    reads: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledJob:
    """A number of ranks, with what is simulated of it.

    Attributes:
        ranks: Of the job.
        hosts: Like that of the run.
        samples_per_s: Of all ranks together.
        efficiency: Speed a rank over that of one alone.
        data_ready_samples_per_s: Where no rank waits for data.
        data_ready_efficiency: The same, of that speed of one alone.
        wait_share: Of step time, waiting for data.
        straggler_share: Waiting for slower ranks.
        sync_share: Sending gradients.
        read_bytes_per_s: Of all ranks; None: not recorded.
        reads_per_s: Read calls of all ranks; None: not recorded.
        is_limited_by_storage: Whether storage gives no more bytes a second.
        usd_per_1k_samples: None: no price is known.
    """

    ranks: int
    hosts: int
    samples_per_s: Estimate
    efficiency: Estimate
    data_ready_samples_per_s: float
    data_ready_efficiency: float
    wait_share: float
    straggler_share: float
    sync_share: float
    read_bytes_per_s: float | None
    reads_per_s: float | None
    is_limited_by_storage: bool
    usd_per_1k_samples: float | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's own types."""
        return {
            "ranks": self.ranks, "hosts": self.hosts,
            "samples_per_s": _json(self.samples_per_s), "efficiency": _json(self.efficiency),
            "data_ready": {
                "samples_per_s": self.data_ready_samples_per_s,
                "efficiency": self.data_ready_efficiency,
            },
            "wait_share": self.wait_share, "straggler_share": self.straggler_share,
            "sync_share": self.sync_share, "read_bytes_per_s": self.read_bytes_per_s,
            "reads_per_s": self.reads_per_s, "is_limited_by_storage": self.is_limited_by_storage,
            "usd_per_1k_samples": self.usd_per_1k_samples,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RankScaling:
    """Numbers of ranks, from few to many, with what is simulated of each.

    Attributes:
        run: Its name.
        measured_ranks: Of the run.
        jobs: From one rank on.
        assumptions: What was not measured, a sentence each.
        unpriced: Why no price is known; "": it is.
    """

    run: str
    measured_ranks: int
    jobs: tuple[ScaledJob, ...]
    assumptions: tuple[str, ...]
    unpriced: str

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's own types."""
        return {
            "run": self.run, "simulated": True, "measured_ranks": self.measured_ranks,
            "jobs": [job.to_json() for job in self.jobs], "assumptions": list(self.assumptions),
            "unpriced": self.unpriced,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRequest:
    """What is to be simulated.

    Attributes:
        ranks: The most.
        hosts: For that many ranks; None: with as many ranks on each as in the run.
        workers: Of each rank's loader; None: as in the run.
        auxiliary_cores: For each rank, in place of those of the run; 0: as in the run.
        storage_bytes_per_s: That storage gives at most; None: any.
    """

    ranks: int
    hosts: int | None = None
    workers: int | None = None
    auxiliary_cores: float = 0.0
    storage_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MOST_RANKS:
            raise UsageError(f"--ranks {self.ranks}: it is 1 to {MOST_RANKS}.")
        if not math.isfinite(self.auxiliary_cores):
            raise UsageError(f"--auxiliary-cores {self.auxiliary_cores}: give a number of cores.")
        if self.storage_bytes_per_s is not None and self.storage_bytes_per_s <= 0:
            raise UsageError("--storage-limit 0: storage that gives nothing feeds no rank.")
        if self.hosts is not None and self.ranks % self.hosts:
            raise UsageError(
                f"--hosts {self.hosts}: {self.ranks} ranks are not shared among them evenly."
            )

    def ranks_a_host(self, measured: int) -> int:
        """Return the ranks on each host; `measured`: on those of the run."""
        return measured if self.hosts is None else self.ranks // self.hosts


def simulate_ranks(run: Path, request: ScalingRequest, pricing: Pricing) -> RankScaling:
    """Return what is simulated of a recorded run with one rank, two, four and so on.

    Raises:
        RecordsError: Too little of the run was recorded, or it counted no samples.
        UsageError: The host has no such number of ranks, or the run no such group or type as a
            flag names.
    """
    tables = CachedTables(open_records(run))
    steps = read_steps(tables)
    measured, times, rate = measure(tables), rank_times(steps), steps.samples_per_s
    if measured is None or times is None or rate is None:
        few = measured is None or times is None
        why = "too few steps were recorded" if few else "it counted no samples"
        raise RecordsError(f"Nothing can be simulated of {run.name}: {why}.")
    work = read_batch_work(tables, main_loader(steps))
    load = _load(work.rows) if work is not None else LoadPerSample(read_bytes=None, reads=None)
    usd_per_hour, unpriced = _host_price(run, pricing, request, measured.ranks)
    model = _ScalingModel(
        measured=measured, times=times, request=request, load=load,
        samples_a_step=rate * times.period_ns / 1e9 / times.ranks,
        usd_per_hour=usd_per_hour,
    )  # fmt: skip
    jobs = tuple(model.jobs())
    return RankScaling(
        run=run.name, measured_ranks=times.ranks, jobs=jobs,
        assumptions=tuple(model.assumptions(jobs[-1])), unpriced=unpriced,
    )  # fmt: skip


def _load(batches: Any) -> LoadPerSample:
    """Return what a sample's reads are, of the batches of a loader."""
    samples = float(batches["samples"].astype(float).clip(min=0).sum())
    found = {}
    for name in ("read_bytes", "reads"):
        values = batches[name].astype(float)
        known = values >= 0
        found[name] = float(values[known].sum()) / samples if known.any() and samples else None
    return LoadPerSample(**found)


def _host_price(
    run: Path, pricing: Pricing, request: ScalingRequest, measured_ranks: int
) -> tuple[float | None, str]:
    """Return the dollars an hour of a host that trains, with its part of the auxiliary hosts.

    `measured_ranks` are those of a host of the run. None, and why: no price is known.
    """
    try:
        groups = last_groups(run, pricing)
    except UnknownPriceError as error:
        return None, str(error).rstrip(".")
    training = [group for role, group in groups if role == TRAINING]
    ranks = request.ranks_a_host(measured_ranks)
    if len(training) != 1:
        return None, "the run has several groups of hosts that train"
    if why := _unpriced(training[0], request, pricing, ranks):
        return None, why
    host = training[0]
    auxiliary = sum(group.hosts * group.usd_per_hour for role, group in groups if role != TRAINING)
    return host.usd_per_hour + auxiliary * ranks / (host.hosts * measured_ranks), ""


def _unpriced(host: GroupCost, request: ScalingRequest, pricing: Pricing, ranks: int) -> str:
    """Return why a host of the simulation has no price though one of the run has; "": it has."""
    if request.auxiliary_cores:
        return "the hosts of --auxiliary-cores have no price here"
    accelerators = pricing.catalogue.hardware(host.instance_type).accelerators or 0.0
    if 0 < accelerators < ranks:
        return (
            f"{host.instance_type} has {accelerators:g} accelerators, and a host is to have "
            f"{ranks} ranks"
        )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScalingModel:
    """A measured run, and what is asked of it."""

    measured: MeasuredPipeline
    times: RankTimes
    request: ScalingRequest
    load: LoadPerSample
    samples_a_step: float  # of a rank
    usd_per_hour: float | None  # of a host

    @property
    def ranks_a_host(self) -> int:
        return self.request.ranks_a_host(self.measured.ranks)

    def jobs(self) -> Iterator[ScaledJob]:
        """Yield one rank, two, four and so on, up to the number that is asked for.

        Workers make whole batches: between two numbers of them on auxiliary cores, as where ranks
        share a core, a rank has that part of what the next one gives.
        """
        simulator, cores = Simulator(self.measured), self.request.auxiliary_cores
        each = max(simulator.costs.busy_cores, 1.0)
        workers, part = divmod(cores / each, 1.0)
        if not part:
            yield from self._jobs(simulator, cores)
            return
        fewer = self._jobs(simulator, workers * each or _NO_CORES)
        more = self._jobs(simulator, (workers + 1) * each)
        for pair in zip(fewer, more, strict=True):
            yield _between(*pair, part)

    def _jobs(self, simulator: Simulator, auxiliary_cores: float) -> Iterator[ScaledJob]:
        """Yield the same with whole workers on auxiliary cores, if any.

        Ranks fill hosts one after another, so few of them may have a host to themselves.
        """
        alone = self._changed(simulator, 1, auxiliary_cores)
        of_hosts: dict[int, tuple[RankSimulator, RankSimulator]] = {}
        first: tuple[SimulatedRanks, SimulatedRanks] | None = None
        for ranks in _counts(self.request.ranks):
            on_host = min(ranks, self.ranks_a_host)
            if on_host not in of_hosts:
                changed = self._changed(simulator, on_host, auxiliary_cores)
                of_hosts[on_host] = (
                    RankSimulator(simulator, self.times, changed=changed, alone=alone),
                    RankSimulator(
                        simulator, self.times, changed=changed, alone=alone, data_is_ready=True
                    ),
                )
            as_it_is, ready = (each.predict(ranks) for each in of_hosts[on_host])
            first = first or (as_it_is, ready)
            yield self._job(as_it_is, ready, first)

    def _changed(
        self, simulator: Simulator, ranks_on_host: int, auxiliary_cores: float
    ) -> Simulator:
        """Return the simulator of what the ranks of a host have."""
        # Auxiliary cores are as fast as those that were measured, or as the run's own.
        factor = simulator.costs.auxiliary_factor if auxiliary_cores else 1.0
        change = PipelineChange(
            workers=self.request.workers, auxiliary_cores=auxiliary_cores, auxiliary_factor=factor,
            ranks=None if ranks_on_host == self.measured.ranks else ranks_on_host,
        )  # fmt: skip
        return simulator if change == PipelineChange() else simulator.changed(change)

    def _job(
        self, found: SimulatedRanks, ready: SimulatedRanks,
        first: tuple[SimulatedRanks, SimulatedRanks],
    ) -> ScaledJob:  # fmt: skip
        """Return a row; `first` is that of one rank, as it is and where data is ready."""
        samples, share = self._limited(found)
        ready_samples, ready_share = self._limited(ready)
        of_one, of_one_ready = (self._limited(each)[1] for each in first)
        reads = self.load.read_bytes
        waits = found.wait_share if share == 1.0 else 1.0 - share * (1.0 - found.wait_share)
        hosts = -(-found.ranks // self.ranks_a_host)
        usd = None
        if self.usd_per_hour is not None:
            usd = hosts * self.usd_per_hour / 3.6 / samples.value
        return ScaledJob(
            ranks=found.ranks, hosts=hosts, samples_per_s=samples,
            efficiency=found.efficiency.times(share / of_one).within(0.0, 1.0),
            data_ready_samples_per_s=ready_samples.value,
            data_ready_efficiency=min(ready.efficiency.value * ready_share / of_one_ready, 1.0),
            wait_share=waits, straggler_share=found.straggler_share * share,
            sync_share=found.sync_share * share,
            read_bytes_per_s=None if reads is None else reads * samples.value,
            reads_per_s=None if self.load.reads is None else self.load.reads * samples.value,
            is_limited_by_storage=share < 1.0, usd_per_1k_samples=usd,
        )  # fmt: skip

    def _limited(self, found: SimulatedRanks) -> tuple[Estimate, float]:
        """Return samples a second as far as storage goes, and which part of the others that is."""
        samples = found.steps_per_s.times(self.samples_a_step * found.ranks)
        limit, reads = self.request.storage_bytes_per_s, self.load.read_bytes
        if limit is None or not reads or samples.value <= limit / reads:
            return samples, 1.0
        return samples.within(0.0, limit / reads), limit / reads / samples.value

    def assumptions(self, largest: ScaledJob) -> Iterator[str]:
        """Yield what was not measured."""
        if self.request.auxiliary_cores:
            whose = (
                "those that the run had" if self.measured.pipeline.auxiliary else "the run's own"
            )
            yield f"auxiliary cores are as fast as {whose}, and the network to them keeps up"
        if self.times.ranks == 1:
            yield "gradient sync, not measured, takes up to a fifth of a rank's own time"
            yield "ranks differ by nothing to all that the steps of one differ by"
        elif self.times.sync_ns is None:
            yield "gradient sync was not timed in the run, and is left out"
        elif largest.hosts > 1 and self.times.ranks <= self.measured.ranks:
            yield "hosts exchange gradients as fast as the ranks of the run's one host do"
        if self.request.storage_bytes_per_s is None:
            yield "storage keeps up"
        elif not self.load.read_bytes:
            yield "storage keeps up: what the run read was not recorded, so no limit applies"
        else:
            yield "storage gives what it is said to give, however many requests there are"


def _between(fewer: ScaledJob, more: ScaledJob, part: float) -> ScaledJob:
    """Return the job that lies between two of as many ranks, that part of the way to the second."""

    def number(one: float, other: float) -> float:
        return (1.0 - part) * one + part * other

    def known(one: float | None, other: float | None) -> float | None:
        return None if one is None or other is None else number(one, other)

    def estimate(one: Estimate, other: Estimate) -> Estimate:
        ends = number(one.low, other.low), number(one.high, other.high)
        return Estimate(number(one.value, other.value), *ends)

    return replace(
        more,
        samples_per_s=estimate(fewer.samples_per_s, more.samples_per_s),
        efficiency=estimate(fewer.efficiency, more.efficiency),
        data_ready_samples_per_s=number(
            fewer.data_ready_samples_per_s, more.data_ready_samples_per_s
        ),
        data_ready_efficiency=number(fewer.data_ready_efficiency, more.data_ready_efficiency),
        wait_share=number(fewer.wait_share, more.wait_share),
        straggler_share=number(fewer.straggler_share, more.straggler_share),
        sync_share=number(fewer.sync_share, more.sync_share),
        read_bytes_per_s=known(fewer.read_bytes_per_s, more.read_bytes_per_s),
        reads_per_s=known(fewer.reads_per_s, more.reads_per_s),
        is_limited_by_storage=fewer.is_limited_by_storage and more.is_limited_by_storage,
        usd_per_1k_samples=known(fewer.usd_per_1k_samples, more.usd_per_1k_samples),
    )


def _counts(most: int) -> Sequence[int]:
    """Return 1, 2, 4 and so on, and the most."""
    found = [1]
    while found[-1] * 2 < most:
        found.append(found[-1] * 2)
    return [*found, most] if most > 1 else found


def _json(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}
