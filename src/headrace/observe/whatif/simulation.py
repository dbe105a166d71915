"""Simulation of the input pipeline: which worker makes which batch, and when it is delivered.

Batches are delivered in order. `workers * prefetch_factor` batches are under way or made ahead: a
delivered batch lets the next one be issued. torch gives batch i to worker i mod W whatever that
worker has to do; headrace's workers take the oldest batch that nobody took (`dispatch` of the
loader's executors), which tests hold against this. Many drawings are simulated at once: a row each.

Cores are shared. Where the demand for CPU exceeds them, the workers' CPU work is stretched by the
same factor until it fits; of the consumer's, what it wants beyond its fair share of the cores: a
scheduler lets those run at once that mostly wait. What the consumer had to wait for a core when it
was measured goes as the cores become free.

Workers on auxiliary hosts have cores of their own. A batch goes to whoever will be done with it
first, a local worker where both are: so local cores are filled, and the others take the surplus.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from headrace.observe.whatif.tables import Flags, Floats

FULL = 0.9
"""Cores that are busy for this share leave processes waiting for them."""
FREE = 0.5
"""Cores that are busy for this share let nobody wait."""
_MOST_ROUNDS = 12
_HALVINGS = 6
_FITS = 1.005
"""A demand for CPU that exceeds the cores by no more than this fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How batches are made.

    Attributes:
        workers: Worker processes; 0: the consumer makes its batches itself.
        prefetch_factor: Batches under way or made ahead, a worker.
        takes_next: Workers take the next batch when they are free; else round-robin, as in torch.
        cores: Cores that the workers and the consumer of this pipeline may use together.
        auxiliary: Workers on auxiliary hosts, beside local ones, each with the cores it needs.
    """

    workers: int
    prefetch_factor: int = 2
    takes_next: bool = False
    cores: float = float("inf")
    auxiliary: int = 0

    @property
    def depth(self) -> int:
        """Batches under way or made ahead."""
        return (self.workers + self.auxiliary) * max(self.prefetch_factor, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCosts:
    """What each batch costs, in nanoseconds; all arrays are drawings x batches.

    Attributes:
        service_ns: Making a batch, from the worker taking it to its being ready for the next.
        service_cpu_ns: Of it: the worker's main thread on a core; at most `service_ns`.
        demand_ns: CPU time of all the worker's threads; at least `service_cpu_ns`.
        consume_ns: What the consumer does with a batch until it asks for the next.
        consume_cpu_ns: CPU time meanwhile, of the consumer and all else on the host.
        queue_ns: Of `consume_ns`: the wait for a core, where cores were full when it was measured.
        auxiliary_factor: How many times `service_ns` a batch takes on an auxiliary host.
        receive_cpu_ns: CPU time of this host in receiving such a batch.
    """

    service_ns: Floats
    service_cpu_ns: Floats
    demand_ns: Floats
    consume_ns: Floats
    consume_cpu_ns: Floats
    queue_ns: Floats | None = None
    auxiliary_factor: float = 1.0
    receive_cpu_ns: float = 0.0

    @property
    def threads(self) -> float:
        """CPU time of all the worker's threads over that of its main thread."""
        return float(self.demand_ns.sum() / max(self.service_cpu_ns.sum(), 1.0))

    @property
    def busy_cores(self) -> float:
        """Cores that a worker keeps busy while it makes batches, with all its threads."""
        return float(self.demand_ns.sum() / max(self.service_ns.sum(), 1.0))

    def repeated(self, times: int) -> BatchCosts:
        """Return the same batches so many times in a row."""
        if times <= 1:
            return self
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        longer: dict[str, Any] = {
            name: np.tile(value, times)
            for name, value in values.items()
            if isinstance(value, np.ndarray)
        }
        return replace(self, **longer)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """A pipeline played through; all arrays have a value a drawing.

    Attributes:
        period_ns: From one delivery to the next, on average.
        consume_ns: Of it: what the consumer does, on average.
        local_share: The share of the batches that local workers made, 0 to 1.
    """

    period_ns: Floats
    consume_ns: Floats
    local_share: Floats

    @property
    def wait_share(self) -> float:
        """The share of time that the consumer waits for batches, 0 to 1."""
        return float(np.clip(1.0 - self.consume_ns / self.period_ns, 0.0, 1.0).mean())


def delivery_times(pipeline: Pipeline, service_ns: Floats, consume_ns: Floats) -> Floats:
    """Return when each batch is delivered, from 0: drawings x batches, nanoseconds.

    Args:
        pipeline: How batches are made; cores are taken as unlimited.
        service_ns: What making each batch takes: drawings x batches, on auxiliary hosts too.
        consume_ns: What each batch keeps the consumer busy for: drawings x batches.
    """
    return _deliver(pipeline, service_ns, service_ns, consume_ns)[0]


def simulate(pipeline: Pipeline, load: BatchCosts) -> SimulationResult:
    """Play a pipeline through, with as much of the waits for cores as there still are.

    Args:
        pipeline: How batches are made.
        load: What they cost.
    """
    if load.queue_ns is None:
        return _simulate_shared(pipeline, load)
    # The shorter the wait, the busier the cores, and the longer the wait: halve the way between.
    low, high = np.zeros((load.service_ns.shape[0], 1)), np.ones((load.service_ns.shape[0], 1))
    left = high
    for _ in range(_HALVINGS):
        played = _simulate_shared(pipeline, _with_queues(load, left))
        busy = _demand_ns(load, played) / (played.period_ns * pipeline.cores)
        longer = np.clip((busy - FREE) / (FULL - FREE), 0.0, 1.0)[:, None] >= left
        low, high = np.where(longer, left, low), np.where(longer, high, left)
        if np.all(low == high):
            break
        left = (low + high) / 2
    return played


def _with_queues(load: BatchCosts, left: Floats) -> BatchCosts:
    """Return the load with a share of the waits for cores left, and none marked as such."""
    assert load.queue_ns is not None  # asked before
    return replace(load, consume_ns=load.consume_ns - load.queue_ns * (1.0 - left), queue_ns=None)


def _simulate_shared(pipeline: Pipeline, load: BatchCosts) -> SimulationResult:
    """Play it through, the CPU work stretched until the cores suffice.

    Cores that are full are full, whoever is kept waiting: the workers' work alone is stretched to
    see who makes the batches and how fast, and the contested part of the consumer's with it to see
    how long the consumer is at work.
    """
    played = _simulate_stretched(pipeline, load, np.ones(load.service_ns.shape[0]), 0.0)
    if np.all(_excess(pipeline, load, played) <= _FITS):
        return played
    contested = _contested_share(pipeline, load, played)
    made = _least_stretched(pipeline, load, played, 0.0)
    used = _least_stretched(pipeline, load, played, contested)
    # Whatever is stretched: the work cannot be done in less than this.
    bound = np.maximum(made.period_ns, _demand_ns(load, made) / pipeline.cores)
    return replace(made, period_ns=bound, consume_ns=np.minimum(used.consume_ns, bound))


def _least_stretched(
    pipeline: Pipeline, load: BatchCosts, played: SimulationResult, contested: Floats | float
) -> SimulationResult:
    """Return what the least stretch gives with which the demand for CPU fits the cores.

    Args:
        pipeline: How batches are made.
        load: What they cost.
        played: What it gives without a stretch; there it does not fit.
        contested: Which share of the consumer's CPU work is stretched with the workers', 0 to 1.
    """
    excess = _excess(pipeline, load, played)
    low = high = np.ones_like(excess)
    for _ in range(_MOST_ROUNDS):  # until it fits: by no less than the excess
        low, high = np.where(excess > _FITS, high, low), high * np.maximum(excess, 1.0)
        played = _simulate_stretched(pipeline, load, high, contested)
        excess = _excess(pipeline, load, played)
        if np.all(excess <= _FITS):
            break
    # The last step may have gone too far: the more is stretched, the more others take over.
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        tried = _simulate_stretched(pipeline, load, middle, contested)
        fits = _excess(pipeline, load, tried) <= _FITS
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
        played = _chosen(fits, tried, played)
    return played


def _excess(pipeline: Pipeline, load: BatchCosts, played: SimulationResult) -> Floats:
    """Return the demand for CPU over what the cores give in a period: one a drawing."""
    excess: Floats = _demand_ns(load, played) / (played.period_ns * pipeline.cores)
    return excess


def _contested_share(pipeline: Pipeline, load: BatchCosts, played: SimulationResult) -> Floats:
    """Return which share of the consumer's CPU work is beyond its fair share of the cores, 0 to 1.

    It depends on what is asked of the cores alone, not on how far the work was stretched already.
    """
    own = load.consume_cpu_ns.mean(axis=1)
    fair = pipeline.cores / (pipeline.workers + 1) if pipeline.workers else 0.0
    least_ns = np.maximum(_demand_ns(load, played) / pipeline.cores, played.period_ns)
    share: Floats = np.maximum(own - fair * least_ns, 0.0) / np.maximum(own, 1.0)
    return share


def _chosen(first: Flags, one: SimulationResult, other: SimulationResult) -> SimulationResult:
    """Return the drawings of `one` where `first` is true, else those of `other`."""
    names = [each.name for each in fields(SimulationResult)]
    chosen = {name: np.where(first, getattr(one, name), getattr(other, name)) for name in names}
    return SimulationResult(**chosen)


def _demand_ns(load: BatchCosts, played: SimulationResult) -> Floats:
    """Return the CPU time that a batch costs this host, on average: one a drawing."""
    here, away = played.local_share, 1.0 - played.local_share
    demand: Floats = (
        load.demand_ns.mean(axis=1) * here
        + load.receive_cpu_ns * away
        + load.consume_cpu_ns.mean(axis=1)
    )
    return demand


def _simulate_stretched(
    pipeline: Pipeline, load: BatchCosts, stretch: Floats, contested: Floats | float
) -> SimulationResult:
    """Play it through with the workers' CPU work, and the contested part of the consumer's, longer.

    Args:
        pipeline: How batches are made.
        load: What they cost.
        stretch: How many times as long the work takes: one a drawing.
        contested: Which share of the consumer's CPU work takes that much longer, 0 to 1.
    """
    own_stretch = (1.0 + (stretch - 1.0) * contested)[:, None]
    stretch = stretch[:, None]
    cpu = np.minimum(load.service_cpu_ns, load.service_ns)
    own_cpu = np.minimum(load.consume_cpu_ns, load.consume_ns)
    service = load.service_ns + cpu * (stretch - 1.0)
    consume = load.consume_ns + own_cpu * (own_stretch - 1.0)
    away = load.service_ns * load.auxiliary_factor
    delivered, here = _deliver(pipeline, service, away, consume)
    # The first batches find an empty pipeline, so they say nothing about the steady state.
    batches = delivered.shape[1]
    begin = min(max(pipeline.depth, batches // 5), batches // 2)
    span = np.maximum(delivered[:, -1] - delivered[:, begin], 1.0)
    return SimulationResult(
        period_ns=span / (batches - 1 - begin),
        consume_ns=consume.mean(axis=1),
        local_share=here[:, begin:].mean(axis=1),
    )


def _deliver(
    pipeline: Pipeline, service_ns: Floats, away_ns: Floats, consume_ns: Floats
) -> tuple[Floats, Flags]:
    """Return when each batch is delivered, and whether a local worker made it."""
    drawings, batches = service_ns.shape
    delivered = np.zeros((drawings, batches))
    here = np.ones((drawings, batches), dtype=np.bool_)
    if pipeline.workers == 0:
        delivered[:] = np.cumsum(service_ns, axis=1)
        delivered[:, 1:] += np.cumsum(consume_ns, axis=1)[:, :-1]
        return delivered, here
    free = np.zeros((drawings, pipeline.workers))
    free_away = np.zeros((drawings, pipeline.auxiliary))
    rows = np.arange(drawings)
    ready = np.zeros(drawings)
    for batch in range(batches):
        taken_by = (
            free.argmin(axis=1)
            if pipeline.takes_next
            else np.full(drawings, batch % pipeline.workers)
        )
        issued = delivered[:, batch - pipeline.depth] if batch >= pipeline.depth else 0.0
        finish = np.maximum(free[rows, taken_by], issued) + service_ns[:, batch]
        if pipeline.auxiliary:
            other = free_away.argmin(axis=1)
            finish_away = np.maximum(free_away[rows, other], issued) + away_ns[:, batch]
            at_home = finish <= finish_away
            here[:, batch] = at_home
            free[rows, taken_by] = np.where(at_home, finish, free[rows, taken_by])
            free_away[rows, other] = np.where(at_home, free_away[rows, other], finish_away)
            finish = np.minimum(finish, finish_away)
        else:
            free[rows, taken_by] = finish
        delivered[:, batch] = np.maximum(finish, ready)
        ready = delivered[:, batch] + consume_ns[:, batch]
    return delivered, here
