"""The input pipeline again, as arithmetic: who makes which batch when, and when it is delivered.

Batches are delivered in order. `workers * prefetch_factor` batches are under way or made ahead: a
delivered batch lets the next one be issued. torch gives batch i to worker i mod W whatever that
worker has to do; headrace's workers take the oldest batch that nobody took (`plan.dispatch`), which
tests hold against this. Many drawings are simulated at once: a row each.

Cores are shared. Where the demand for CPU exceeds them, all CPU work is stretched by the same
factor until it fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.observe.whatif.tables import Floats

_MOST_ROUNDS = 12
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
    """

    workers: int
    prefetch_factor: int = 2
    takes_next: bool = False
    cores: float = float("inf")

    @property
    def depth(self) -> int:
        """Batches under way or made ahead."""
        return self.workers * max(self.prefetch_factor, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What each batch costs; all arrays are drawings x batches, nanoseconds.

    Attributes:
        service_ns: Making a batch, from the worker taking it to its being ready for the next.
        service_cpu_ns: Of it: the worker's main thread on a core; at most `service_ns`.
        demand_ns: CPU time of all the worker's threads; at least `service_cpu_ns`.
        consume_ns: What the consumer does with a batch until it asks for the next.
        consume_cpu_ns: CPU time meanwhile, of the consumer and all else on the host.
    """

    service_ns: Floats
    service_cpu_ns: Floats
    demand_ns: Floats
    consume_ns: Floats
    consume_cpu_ns: Floats


def delivery_times(pipeline: Pipeline, service_ns: Floats, consume_ns: Floats) -> Floats:
    """Return when each batch is delivered, from 0: drawings x batches, nanoseconds.

    Args:
        pipeline: How batches are made; cores are taken as unlimited.
        service_ns: What making each batch takes: drawings x batches.
        consume_ns: What each batch keeps the consumer busy for: drawings x batches.
    """
    drawings, batches = service_ns.shape
    delivered = np.zeros((drawings, batches))
    if pipeline.workers == 0:
        delivered[:] = np.cumsum(service_ns, axis=1)
        delivered[:, 1:] += np.cumsum(consume_ns, axis=1)[:, :-1]
        return delivered
    free = np.zeros((drawings, pipeline.workers))
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
        free[rows, taken_by] = finish
        delivered[:, batch] = np.maximum(finish, ready)
        ready = delivered[:, batch] + consume_ns[:, batch]
    return delivered


def batch_period_ns(pipeline: Pipeline, load: Load) -> Floats:
    """Return how long a batch takes from one delivery to the next, on average: one a drawing."""
    stretch = np.ones((load.service_ns.shape[0], 1))
    period = _period(pipeline, load, stretch)
    demand = (load.demand_ns + load.consume_cpu_ns).mean(axis=1)
    for _ in range(_MOST_ROUNDS):
        excess = demand / (period * pipeline.cores)
        if np.all(excess <= _FITS):
            break
        stretch = stretch * np.maximum(excess, 1.0)[:, None]
        period = _period(pipeline, load, stretch)
    # Whatever is stretched: the work cannot be done in less than this.
    bound: Floats = np.maximum(period, demand / pipeline.cores)
    return bound


def wait_share(pipeline: Pipeline, load: Load) -> float:
    """Return the share of time that the consumer waits for batches, 0 to 1."""
    period = batch_period_ns(pipeline, load)
    return float(np.clip(1.0 - load.consume_ns.mean(axis=1) / period, 0.0, 1.0).mean())


def _period(pipeline: Pipeline, load: Load, stretch: Floats) -> Floats:
    cpu = np.minimum(load.service_cpu_ns, load.service_ns)
    own_cpu = np.minimum(load.consume_cpu_ns, load.consume_ns)
    service = load.service_ns + cpu * (stretch - 1.0)
    consume = load.consume_ns + own_cpu * (stretch - 1.0)
    delivered = delivery_times(pipeline, service, consume)
    # The first batches find an empty pipeline, so they say nothing about the steady state.
    batches = delivered.shape[1]
    begin = min(max(pipeline.depth, batches // 5), batches // 2)
    span = np.maximum(delivered[:, -1] - delivered[:, begin], 1.0)
    period: Floats = span / (batches - 1 - begin)
    return period
