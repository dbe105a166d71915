"""What a change would give, with a 90 % interval.

The measured batches are drawn again, with replacement, and the pipeline is simulated as it was and
as it would be, with the same drawings. First the simulation must reproduce what was measured: the
waiting part of the service times is scaled until it does, and how far that was off widens the
interval. So does what no drawing shows: the model knows nothing of caches, memory bandwidth and
clock speeds, which change with the load, so a gain may be a tenth more or less than foretold; and
the same script run twice differs by 2 %.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.observe.whatif.measured import Measured
from headrace.observe.whatif.simulation import Load, Pipeline, batch_period_ns, wait_share
from headrace.observe.whatif.tables import Floats

_DRAWINGS = 40
_FEWEST_BATCHES = 160
_SEED = 20
_LOWEST_PERCENT, _HIGHEST_PERCENT = 5, 95
_HANDING_OVER_NS = (2e6, 0.2e6)
"""What taking a batch of tensors from a worker costs a rank, at most and at least."""
_FULL = 0.9
"""Cores that are busy for this share leave processes waiting for them."""
_MODEL_ERROR, _RUN_NOISE = 0.1, 0.02
"""What the model leaves out, as a share of the gain; and what two runs differ by, of the speed."""
_SCALES = np.geomspace(0.25, 4.0, 25)
_MOST_BATCHES = 640
_MOST_AUXILIARY = 128
"""Workers for each rank; more are not simulated, as they would be the device's match anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An edit of the pipeline; what is None, 0 or a factor of 1 stays as it is.

    Attributes:
        workers: So many worker processes.
        prefetch_factor: So many batches ahead, a worker.
        service_factor: Making a batch takes so many times as long: 0.5 for twice as fast.
        wait_factor: So many times what the workers wait, off the CPU, in making a batch.
        capped_share: The share of that waiting that comes to an end: it takes at most
            `capped_ns` a batch. 0 to 1.
        capped_ns: Likewise.
        threads: Threads of each worker.
        rank_threads: Threads of the rank that keep a core busy.
        threads_share: What threads that go did was work, which the others then do; else they
            only cost CPU time.
        consume_saved_ns: So much less a batch in the consumer; below 0: more.
        ranks: Ranks on the host: they share its cores.
        auxiliary_cores: Cores on auxiliary hosts that make batches for each rank. Local workers
            take the batch that is next, as such a loader does; there is at least one.
        auxiliary_ns: What a batch made there takes beyond its making here.
        receive_cpu_ns: CPU time here in receiving it.
        batch_factor: Batches of so many times the samples; fixed costs of a step stay.
        fixed_consume_ns: The part of the consumer's time that does not grow with the batch.
    """

    workers: int | None = None
    prefetch_factor: int | None = None
    service_factor: float = 1.0
    wait_factor: float = 1.0
    capped_share: float = 0.0
    capped_ns: float = 0.0
    threads: int | None = None
    rank_threads: int | None = None
    threads_share: bool = False
    consume_saved_ns: float = 0.0
    ranks: int | None = None
    auxiliary_cores: float = 0.0
    auxiliary_ns: float = 0.0
    receive_cpu_ns: float = 0.0
    batch_factor: float = 1.0
    fixed_consume_ns: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a change would give.

    Attributes:
        speedup: Samples a second with it over those without.
        low: Lower end of the 90 % interval.
        high: Upper end.
        wait_share: The share of step time that would still wait for data, 0 to 1.
    """

    speedup: float
    low: float
    high: float
    wait_share: float


class Simulator:
    """Simulates one measured pipeline under any change.

    Args:
        measured: What was measured.

    Attributes:
        measured: What was measured.
        calibration: Measured time a batch over simulated, before anything was fitted.
        fitted: The factor on the service times that makes both equal; 1 where they do not matter.
        load: The measured costs, drawn again and fitted.
        before_ns: What a batch takes in the pipeline as it is: one a drawing.
    """

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.load = _draw(measured)
        self._measured_ns = float(measured.period_ns.mean())
        simulated = float(batch_period_ns(measured.pipeline, self.load).mean())
        self.calibration = self._measured_ns / simulated
        self.fitted = self._fit()
        self.load = _scaled(self.load, self.fitted)
        self.before_ns = batch_period_ns(measured.pipeline, self.load)

    def at_ranks(self, ranks: int) -> Simulator:
        """Return a simulator of the same pipeline with so many ranks on the host.

        Its predictions are of what a change would give there, against what is foretold for it.

        Args:
            ranks: Ranks on the host.
        """
        measured, other = self.measured, copy.copy(self)
        pipeline = _edited(measured, self.load, Change(ranks=ranks))
        other.before_ns = batch_period_ns(pipeline, self.load)
        slower = other.before_ns.mean() / self.before_ns.mean()
        other.measured = replace(
            measured, pipeline=pipeline, ranks=ranks, period_ns=measured.period_ns * slower
        )
        return other

    def predict(self, change: Change) -> Prediction:
        """Return what one change would give."""
        return self.predict_between(change, change)

    def predict_between(self, least: Change, most: Change) -> Prediction:
        """Return what a change would give whose effect lies between two edits."""
        results = [self._after(change) for change in (least, most)]
        speedups = np.sort(np.concatenate([speedup for speedup, _ in results]))
        low, middle, high = np.percentile(speedups, (_LOWEST_PERCENT, 50, _HIGHEST_PERCENT))
        # A model that did not reproduce the measured time is as unsure of the gain it foretells.
        doubt = min(float(np.hypot(self.calibration - 1.0, _MODEL_ERROR)), 0.5)
        width = float(np.hypot(doubt * (middle - 1.0), _RUN_NOISE * middle))
        return Prediction(
            speedup=float(middle),
            low=max(float(low) - width, 0.0),
            high=float(high) + width,
            wait_share=float(np.mean([share for _, share in results])),
        )

    def wait_share(self) -> float:
        """Return the share of time that waits for data in the pipeline as it is, simulated."""
        return wait_share(self.measured.pipeline, self.load)

    def _after(self, change: Change) -> tuple[Floats, float]:
        pipeline = _edited(self.measured, self.load, change)
        load = _long_enough(_changed(self.load, change), pipeline)
        speedup = self.before_ns / batch_period_ns(pipeline, load) * change.batch_factor
        return speedup, wait_share(pipeline, load)

    def _fit(self) -> float:
        periods = np.array(
            [
                float(batch_period_ns(self.measured.pipeline, _scaled(self.load, scale)).mean())
                for scale in _SCALES
            ]
        )
        error = np.abs(np.log(periods / self._measured_ns))
        # Where the consumer is the limit many scales fit: the one closest to none is taken. Where
        # the cores are, workers waited for those, and without that they need the least that fits.
        fits = np.flatnonzero(error <= error.min() + 0.01)
        closest = int(fits[np.abs(np.log(_SCALES[fits])).argmin()])
        best = int(fits[0]) if self._cores_full() else closest
        if _SCALES[best] == 1.0 or not 0 < best < len(_SCALES) - 1:
            return float(_SCALES[best])
        if periods[best + 1] - periods[best - 1] <= 0:
            return float(_SCALES[best])
        near = slice(best - 1, best + 2)
        return float(np.interp(self._measured_ns, periods[near], _SCALES[near]))

    def _cores_full(self) -> bool:
        load, pipeline = self.load, self.measured.pipeline
        used = float(load.demand_ns.mean() + load.consume_cpu_ns.mean())
        return used >= _FULL * self._measured_ns * pipeline.cores


def predict(measured: Measured, change: Change) -> Prediction:
    """Return what a change to a measured pipeline would give.

    Example:
        predict(measured, Change(workers=8)).speedup
    """
    return Simulator(measured).predict(change)


def with_workers(simulator: Simulator, count: int) -> Prediction:
    """Return what so many workers would give.

    Args:
        simulator: The measured pipeline.
        count: Worker processes.
    """
    if simulator.measured.pipeline.workers:
        return simulator.predict(Change(workers=count))
    # Nobody has handed batches over yet, so what that costs the rank is a guess.
    least, most = (Change(workers=count, consume_saved_ns=-cost) for cost in _HANDING_OVER_NS)
    return simulator.predict_between(least, most)


def enough_workers(
    simulator: Simulator, counts: Sequence[int], *, within: float = 0.03
) -> tuple[int, Prediction] | None:
    """Return the fewest workers that come close to the best of some counts.

    Args:
        simulator: The measured pipeline.
        counts: The worker counts to try.
        within: How far below the best speed-up may stay, as a share.
    """
    tried = [(count, with_workers(simulator, count)) for count in counts]
    if not tried:
        return None
    best = max(prediction.speedup for _, prediction in tried)
    return next(found for found in tried if found[1].speedup >= best * (1.0 - within))


def _draw(measured: Measured) -> Load:
    batches = max(_FEWEST_BATCHES, 4 * measured.pipeline.depth)
    random = np.random.default_rng(_SEED)
    made = random.integers(len(measured.service_ns), size=(_DRAWINGS, batches))
    used = random.integers(len(measured.consume_ns), size=(_DRAWINGS, batches))
    return Load(
        service_ns=measured.service_ns[made],
        service_cpu_ns=measured.service_cpu_ns[made],
        demand_ns=measured.demand_ns[made],
        consume_ns=measured.consume_ns[used],
        consume_cpu_ns=np.full((_DRAWINGS, batches), measured.consume_cpu_ns),
    )


def _scaled(load: Load, scale: float) -> Load:
    """Scale the time that workers wait: CPU time was counted exactly, so it stands."""
    service = np.maximum(load.service_ns * scale, load.service_cpu_ns)
    return replace(load, service_ns=service)


def _edited(measured: Measured, load: Load, change: Change) -> Pipeline:
    now = measured.pipeline
    workers = now.workers if change.workers is None else change.workers
    away = 0
    if change.auxiliary_cores > 0:
        # There a worker gets the cores that its threads use.
        threads = load.demand_ns.sum() / max(load.service_cpu_ns.sum(), 1.0)
        there = change.auxiliary_cores / max(change.threads or threads, 1.0)
        away = max(int(min(there, _MOST_AUXILIARY)), 1)
        workers = max(workers, 1)
    return replace(
        now,
        workers=workers,
        prefetch_factor=(
            # Without workers torch has no prefetch factor; with some, its default is 2.
            (now.prefetch_factor if now.workers else 2)
            if change.prefetch_factor is None
            else change.prefetch_factor
        ),
        takes_next=now.takes_next or away > 0,
        cores=now.cores * measured.ranks / (change.ranks or measured.ranks),
        auxiliary=away,
    )


def _changed(load: Load, change: Change) -> Load:
    load = _with_threads(load, change)
    factor = change.service_factor * change.batch_factor
    waiting = load.service_ns - load.service_cpu_ns
    capped = waiting * change.capped_share
    waiting = waiting - capped + np.minimum(capped, change.capped_ns)
    consume = np.maximum(load.consume_ns - change.consume_saved_ns, 0.0)
    if change.batch_factor != 1.0:
        fixed = np.minimum(change.fixed_consume_ns, consume)
        consume = fixed + (consume - fixed) * change.batch_factor
    return Load(
        service_ns=(load.service_cpu_ns + waiting * change.wait_factor) * factor,
        service_cpu_ns=load.service_cpu_ns * factor,
        demand_ns=load.demand_ns * factor,
        consume_ns=consume,
        consume_cpu_ns=load.consume_cpu_ns * change.batch_factor,
        auxiliary_ns=change.auxiliary_ns * change.batch_factor,
        receive_cpu_ns=change.receive_cpu_ns * change.batch_factor,
    )


def _long_enough(load: Load, pipeline: Pipeline) -> Load:
    """Repeat the drawn batches until what lies in the pipeline is a small part of them."""
    batches = load.service_ns.shape[1]
    times = -(-min(4 * pipeline.depth, _MOST_BATCHES) // batches)
    if times <= 1:
        return load
    return replace(
        load,
        service_ns=np.tile(load.service_ns, times),
        service_cpu_ns=np.tile(load.service_cpu_ns, times),
        demand_ns=np.tile(load.demand_ns, times),
        consume_ns=np.tile(load.consume_ns, times),
        consume_cpu_ns=np.tile(load.consume_cpu_ns, times),
    )


def _with_threads(load: Load, change: Change) -> Load:
    """Limit the threads: those that go only spun, or the work that they did is left to others."""
    if change.threads is not None:
        most = load.service_cpu_ns * change.threads
        if change.threads_share:
            # What is beyond the limit takes the threads that are left so much longer.
            longer = np.maximum(load.demand_ns / change.threads - load.service_cpu_ns, 0.0)
            load = replace(
                load,
                service_ns=np.maximum(load.service_ns, load.service_cpu_ns + longer),
                service_cpu_ns=load.service_cpu_ns + longer,
            )
        else:
            load = replace(load, demand_ns=np.minimum(load.demand_ns, most))
    if change.rank_threads is not None:
        most = load.consume_ns * change.rank_threads
        if change.threads_share:
            longer = np.maximum(load.consume_cpu_ns / change.rank_threads - load.consume_ns, 0.0)
            load = replace(load, consume_ns=load.consume_ns + longer)
        else:
            load = replace(load, consume_cpu_ns=np.minimum(load.consume_cpu_ns, most))
    return load
