"""Simulation of the input pipeline: which worker makes which batch, and when it is delivered.

Batches are delivered in order. `workers * prefetch_factor` batches are in flight or ready: each
delivery lets the next one be issued. torch gives batch i to worker i mod W however busy that worker
is, or to the busiest one where the others' parts of a stream have ended; Headrace's workers take
the oldest batch that none has taken (`dispatch` of the loader's executors), which tests hold
against this. Many drawings are simulated at once, one a row.

Cores are shared. If the demand for CPU time exceeds them, the workers' CPU work is stretched by one
factor until it fits; of the consumer's CPU work, only what exceeds its fair share of the cores is,
because a scheduler runs processes at once that mostly wait. What the consumer had to wait for a
core when it was measured shrinks as the cores become free.

Ranks of one job may be coupled: then rows are ranks, as many for each drawing, and a rank asks for
its next batch once the slowest has used its own and gradients are synchronised.

Workers on auxiliary hosts have cores of their own. A batch goes to the worker that finishes it
first, or to a local one on a tie: so local cores are filled, and the others take the surplus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from headrace.observe.whatif.tables import Flags, Floats

FULL = 0.9
"""On cores that are busy for this share, processes wait for a core."""
FREE = 0.5
"""On cores that are busy for at most this share, no process waits."""
_MOST_ROUNDS = 12
_HALVINGS = 6
_FITS = 1.005
"""A demand for CPU time that exceeds the cores by no more than this fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How batches are made."""

    workers: int  # processes; 0: the consumer makes its batches itself
    prefetch_factor: int = 2  # batches in flight or ready, a worker
    takes_next: bool = False  # free workers take the next batch; otherwise round-robin, as in torch
    cores: float = float("inf")  # for the workers and the consumer of this pipeline together
    worker_cores: float = float("inf")  # of these, for the workers: they may be bound to fewer
    auxiliary: int = 0  # workers on other hosts, each with the cores it needs
    busiest_share: float = 0.0  # of the batches, made by one worker; 0: all make as many
    coupled_ranks: int = 1  # rows that wait for each other after every step
    batches_a_step: int = 1  # of each rank, where they are coupled

    @property
    def depth(self) -> int:
        """Batches in flight or ready."""
        return (self.workers + self.auxiliary) * max(self.prefetch_factor, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCosts:
    """The costs of each batch, in nanoseconds; all arrays are drawings x batches."""

    service_ns: Floats  # making a batch, from the worker taking it to being ready for the next
    service_cpu_ns: Floats  # of it, the CPU time of the worker's main thread
    demand_ns: Floats  # CPU time of all the worker's threads; at least `service_cpu_ns`
    consume_ns: Floats  # the consumer's time with a batch until it asks for the next
    consume_cpu_ns: Floats  # CPU time meanwhile, of the consumer and other processes here
    sync_ns: Floats | None = None  # gradient sync at the end of a step, where ranks are coupled
    queue_ns: Floats | None = None  # part of `consume_ns`: waits for a core, if cores were full
    auxiliary_factor: float = 1.0  # on `service_ns` on an auxiliary host
    receive_cpu_ns: float = 0.0  # CPU time of this host for receiving such a batch

    @property
    def threads(self) -> float:
        """CPU time of all the worker's threads over that of its main thread."""
        return float(self.demand_ns.sum() / max(self.service_cpu_ns.sum(), 1.0))

    @property
    def busy_cores(self) -> float:
        """Cores that a worker and all its threads keep busy while it makes batches."""
        return float(self.demand_ns.sum() / max(self.service_ns.sum(), 1.0))

    def repeated(self, times: int) -> BatchCosts:
        """Return the same batches, repeated."""
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
    """The result of a simulation; all arrays have one value a drawing."""

    period_ns: Floats  # mean time from one delivery to the next
    consume_ns: Floats  # part of it: the consumer's mean time with a batch
    local_share: Floats  # of the batches, made by local workers, 0 to 1
    joined_ns: Floats  # part of the period: the mean wait for other ranks, and sync with them

    @property
    def wait_share(self) -> float:
        """The share of time that the consumer waits for batches, 0 to 1."""
        own = self.consume_ns + self.joined_ns
        return float(np.clip(1.0 - own / self.period_ns, 0.0, 1.0).mean())


def simulate(pipeline: Pipeline, costs: BatchCosts) -> SimulationResult:
    """Simulate a pipeline, with the waits for cores that remain."""
    if costs.queue_ns is None:
        return _simulate_shared(pipeline, costs)
    # A shorter wait makes the cores busier, and so the wait longer: bisect.
    low, high = np.zeros((costs.service_ns.shape[0], 1)), np.ones((costs.service_ns.shape[0], 1))
    left, demand = high, BatchDemand.of(costs)
    for _ in range(_HALVINGS):
        result = _simulate_shared(pipeline, _with_queues(costs, left))
        busy = demand.on_this_host(result) / (result.period_ns * pipeline.cores)
        longer = np.clip((busy - FREE) / (FULL - FREE), 0.0, 1.0)[:, None] >= left
        low, high = np.where(longer, left, low), np.where(longer, high, left)
        if np.all(low == high):
            break
        left = (low + high) / 2
    return result


_MOST_ELEMENTS = 400_000
"""Drawings times batches that are simulated at once: more no longer fit the processor's caches."""


def simulate_each(pipeline: Pipeline, costs: Sequence[BatchCosts]) -> list[SimulationResult]:
    """Simulate a pipeline with each of several costs of one shape, without waits for cores.

    The results are those of `simulate` for each. All are computed at once, because for so few
    drawings most of the time goes into calling numpy.
    """
    drawings, batches = costs[0].service_ns.shape
    at_once = max(_MOST_ELEMENTS // (drawings * batches), 1)
    found: list[SimulationResult] = []
    for begin in range(0, len(costs), at_once):
        some = costs[begin : begin + at_once]
        result = _simulate_shared(pipeline, _stacked(some), groups=len(some))
        found += [_part(result, slice(i * drawings, (i + 1) * drawings)) for i in range(len(some))]
    return found


def _stacked(costs: Sequence[BatchCosts]) -> BatchCosts:
    """Return costs of the drawings of all, which differ in their arrays alone."""
    arrays: dict[str, Any] = {
        each.name: np.concatenate([getattr(some, each.name) for some in costs])
        for each in fields(BatchCosts)
        if isinstance(getattr(costs[0], each.name), np.ndarray)
    }
    return replace(costs[0], **arrays)


def _part(result: SimulationResult, drawings: slice) -> SimulationResult:
    """Return some drawings of a result."""
    names = [each.name for each in fields(SimulationResult)]
    return SimulationResult(**{name: getattr(result, name)[drawings] for name in names})


def _twice(result: SimulationResult) -> SimulationResult:
    """Return the drawings of a result, and after them the same once more."""
    names = [each.name for each in fields(SimulationResult)]
    return SimulationResult(**{name: np.tile(getattr(result, name), 2) for name in names})


def _in_all(flags: Flags, groups: int) -> Flags:
    """Return for each drawing whether the flag is true of all drawings of its group."""
    each = flags.reshape(groups, -1).all(axis=1)
    return np.repeat(each, len(flags) // groups)


def _with_queues(costs: BatchCosts, left: Floats) -> BatchCosts:
    """Return the costs with a share of the waits for cores left, and none marked as such."""
    assert costs.queue_ns is not None  # checked by the caller
    return replace(
        costs, consume_ns=costs.consume_ns - costs.queue_ns * (1.0 - left), queue_ns=None
    )


def _simulate_shared(pipeline: Pipeline, costs: BatchCosts, groups: int = 1) -> SimulationResult:
    """Simulate with the CPU work stretched until the cores suffice for all drawings of a group.

    Full cores slow everything down: to see who makes the batches and how fast, the workers' work
    alone is stretched; to see how long the consumer works, its contested part is stretched, too.
    """
    demand = BatchDemand.of(costs)
    result = _simulate_stretched(pipeline, costs, np.ones(costs.service_ns.shape[0]), 0.0)
    fits = _in_all(_excess(pipeline, demand, result) <= _FITS, groups)
    if fits.all():
        return result
    contested = _contested_share(pipeline, demand, result)
    if contested.any():  # both at once, as in `simulate_each`
        two, shares = (
            _stacked([costs, costs]),
            np.concatenate([np.zeros_like(contested), contested]),
        )
        both = _least_stretched(pipeline, two, _twice(result), shares, 2 * groups)
        drawings = len(contested)
        made, used = _part(both, slice(drawings)), _part(both, slice(drawings, None))
    else:
        made = used = _least_stretched(pipeline, costs, result, contested, groups)
    # However it is stretched, the work takes at least this long.
    bound = np.maximum(made.period_ns, _excess(pipeline, demand, made) * made.period_ns)
    stretched = replace(made, period_ns=bound, consume_ns=np.minimum(used.consume_ns, bound))
    return _chosen(fits, result, stretched)


def _least_stretched(
    pipeline: Pipeline,
    costs: BatchCosts,
    result: SimulationResult,
    contested: Floats,
    groups: int,
) -> SimulationResult:
    """Return the simulation with the least stretch for which the demand fits the cores.

    `result` is the simulation without a stretch, which does not fit; `contested` is the share of
    the consumer's CPU work stretched with the workers', 0 to 1.
    """
    demand = BatchDemand.of(costs)
    excess = _excess(pipeline, demand, result)
    low = high = np.ones_like(excess)
    fits = np.zeros_like(excess, dtype=np.bool_)
    for _ in range(_MOST_ROUNDS):  # until it fits, by at least the excess
        low = np.where(~fits & (excess > _FITS), high, low)
        high = np.where(fits, high, high * np.maximum(excess, 1.0))
        result = _simulate_stretched(pipeline, costs, high, contested)
        excess = _excess(pipeline, demand, result)
        fits = _in_all(excess <= _FITS, groups)
        if fits.all():
            break
    # The last round may have overshot: others take over what is stretched.
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        tried = _simulate_stretched(pipeline, costs, middle, contested)
        fits = _excess(pipeline, demand, tried) <= _FITS
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
        result = _chosen(fits, tried, result)
    return result


@dataclass(frozen=True, slots=True)
class BatchDemand:
    """Mean CPU times of a batch, one a drawing, however its work is stretched."""

    made_ns: Floats
    received_ns: float
    used_ns: Floats

    @classmethod
    def of(cls, costs: BatchCosts) -> BatchDemand:
        """Return the means of some costs."""
        return cls(
            costs.demand_ns.mean(axis=1), costs.receive_cpu_ns, costs.consume_cpu_ns.mean(axis=1)
        )

    def on_this_host(self, result: SimulationResult) -> Floats:
        """Return the mean CPU time of a batch on this host."""
        local, remote = result.local_share, 1.0 - result.local_share
        demand: Floats = self.made_ns * local + self.received_ns * remote + self.used_ns
        return demand


def _excess(pipeline: Pipeline, demand: BatchDemand, result: SimulationResult) -> Floats:
    """Return the demand for CPU time over what the cores offer in a period, one a drawing."""
    every = demand.on_this_host(result) / pipeline.cores
    of_workers = demand.made_ns * result.local_share / pipeline.worker_cores
    if pipeline.workers == 0:
        of_workers = np.zeros_like(every)
    return np.asarray(np.maximum(every, of_workers) / result.period_ns)


def _contested_share(pipeline: Pipeline, demand: BatchDemand, result: SimulationResult) -> Floats:
    """Return the share of the consumer's CPU work beyond its fair share of the cores, 0 to 1.

    It depends on the demand alone, not on how far the work is stretched already.
    """
    own = demand.used_ns
    fair = pipeline.cores / (pipeline.workers + 1) if pipeline.workers else 0.0
    least_ns = np.maximum(demand.on_this_host(result) / pipeline.cores, result.period_ns)
    return np.asarray(np.maximum(own - fair * least_ns, 0.0) / np.maximum(own, 1.0))


def _chosen(first: Flags, one: SimulationResult, other: SimulationResult) -> SimulationResult:
    """Return the drawings of `one` where `first` is true, and those of `other` elsewhere."""
    names = [each.name for each in fields(SimulationResult)]
    chosen = {name: np.where(first, getattr(one, name), getattr(other, name)) for name in names}
    return SimulationResult(**chosen)


def _simulate_stretched(
    pipeline: Pipeline, costs: BatchCosts, stretch: Floats, contested: Floats | float
) -> SimulationResult:
    """Simulate with the workers' CPU work, and the contested part of the consumer's, stretched."""
    cpu = np.minimum(costs.service_cpu_ns, costs.service_ns)
    service = costs.service_ns + cpu * (stretch[:, None] - 1.0)
    consume = costs.consume_ns
    if np.any(contested):
        own_stretch = (1.0 + (stretch - 1.0) * contested)[:, None]
        own_cpu = np.minimum(costs.consume_cpu_ns, costs.consume_ns)
        consume = costs.consume_ns + own_cpu * (own_stretch - 1.0)
    remote = costs.service_ns * costs.auxiliary_factor if pipeline.auxiliary else service
    delivered, local = delivery_times(pipeline, service, remote, consume, costs.sync_ns)
    # The first batches find an empty pipeline, which is not the steady state.
    batches = delivered.shape[1]
    begin = min(max(pipeline.depth, batches // 5), batches // 2)
    span = np.maximum(delivered[:, -1] - delivered[:, begin], 1.0)
    return SimulationResult(
        period_ns=span / (batches - 1 - begin),
        consume_ns=consume.mean(axis=1),
        local_share=local[:, begin:].mean(axis=1),
        joined_ns=_joined_ns(pipeline, delivered + consume, costs.sync_ns)[:, begin:].mean(axis=1),
    )


def _joined_ns(pipeline: Pipeline, used_ns: Floats, sync_ns: Floats | None) -> Floats:
    """Return how long each rank waits for the others after each batch, and syncs with them."""
    joined = np.zeros_like(used_ns)
    if pipeline.coupled_ranks > 1:
        for batch, used in enumerate(used_ns.T):
            joined[:, batch] = _together(pipeline, batch, used, sync_ns) - used
    return joined


def _together(pipeline: Pipeline, batch: int, used_ns: Floats, sync_ns: Floats | None) -> Floats:
    """Return when each rank goes on after a batch, which it has used at a time."""
    ranks, steps = pipeline.coupled_ranks, pipeline.batches_a_step
    if ranks == 1 or (batch + 1) % steps:
        return used_ns
    last = used_ns.reshape(-1, ranks).max(axis=1)
    if sync_ns is not None:
        last = last + sync_ns[::ranks, batch]
    return np.repeat(last, ranks)


def _turns(pipeline: Pipeline, batches: int) -> list[int]:
    """Return the worker that is asked for each batch."""
    if pipeline.busiest_share <= 0 or pipeline.workers < 2:
        return [batch % pipeline.workers for batch in range(batches)]
    of_busiest = np.floor(np.arange(batches + 1) * pipeline.busiest_share)
    is_busiest = np.diff(of_busiest) > 0
    others = (np.cumsum(~is_busiest) - 1) % (pipeline.workers - 1) + 1
    turns: list[int] = np.where(is_busiest, 0, others).tolist()
    return turns


def delivery_times(
    pipeline: Pipeline, service_ns: Floats, remote_ns: Floats, consume_ns: Floats,
    sync_ns: Floats | None = None,
) -> tuple[Floats, Flags]:  # fmt: skip
    """Return when each batch is delivered, ns from 0, and whether a local worker made it."""
    drawings, batches = service_ns.shape
    if pipeline.workers == 0 and pipeline.coupled_ranks == 1:
        delivered = np.cumsum(service_ns, axis=1)
        delivered[:, 1:] += np.cumsum(consume_ns, axis=1)[:, :-1]
        return delivered, np.ones((drawings, batches), dtype=np.bool_)
    # Batches come first here, as a row in one piece is read and written much faster.
    service, consume = np.ascontiguousarray(service_ns.T), np.ascontiguousarray(consume_ns.T)
    remote = np.ascontiguousarray(remote_ns.T) if pipeline.auxiliary else service
    delivered = np.zeros((batches, drawings))
    local = np.ones((batches, drawings), dtype=np.bool_)
    free = np.zeros((pipeline.workers, drawings))  # when each worker is free
    free_remote = np.zeros((pipeline.auxiliary, drawings))
    turns = _turns(pipeline, batches) if pipeline.workers else []
    if not (pipeline.takes_next or pipeline.auxiliary or pipeline.coupled_ranks > 1):
        _deliver_in_turn(delivered, turns, free, service, consume, pipeline.depth)
        return delivered.T, local.T
    rows, depth = np.arange(drawings), pipeline.depth
    ready = np.zeros(drawings)
    for batch in range(batches):
        if pipeline.workers == 0:
            delivered[batch] = ready + service[batch]
            ready = _together(pipeline, batch, delivered[batch] + consume[batch], sync_ns)
            continue
        taken_by = (free.argmin(axis=0), rows) if pipeline.takes_next else turns[batch]
        issued = delivered[batch - depth] if batch >= depth else 0.0
        finish = np.maximum(free[taken_by], issued) + service[batch]
        if pipeline.auxiliary:
            other = (free_remote.argmin(axis=0), rows)
            finish_remote = np.maximum(free_remote[other], issued) + remote[batch]
            is_local = local[batch] = finish <= finish_remote
            free[taken_by] = np.where(is_local, finish, free[taken_by])
            free_remote[other] = np.where(is_local, free_remote[other], finish_remote)
            finish = np.minimum(finish, finish_remote)
        else:
            free[taken_by] = finish
        delivered[batch] = np.maximum(finish, ready)
        ready = _together(pipeline, batch, delivered[batch] + consume[batch], sync_ns)
    return delivered.T, local.T


def _deliver_in_turn(
    delivered: Floats, turns: list[int], free: Floats, service: Floats, consume: Floats, depth: int
) -> None:
    """Write when each batch is delivered, where it is known which worker makes it.

    Nearly all simulations are of this kind, of a few drawings, for which calling numpy takes longer
    than what it computes: so everything is computed in place, in as few calls as can be.
    """
    maximum, add = np.maximum, np.add
    workers, rows, ready = list(free), list(delivered), np.zeros(delivered.shape[1])
    batches = zip(turns, service, consume, rows, strict=True)
    for batch, (turn, made, used, row) in enumerate(batches):
        worker = workers[turn]
        if batch >= depth:
            maximum(worker, rows[batch - depth], out=worker)
        add(worker, made, out=worker)
        maximum(worker, ready, out=row)
        add(row, used, out=ready)
