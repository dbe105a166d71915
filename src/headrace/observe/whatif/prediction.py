"""Prediction of what a change of the pipeline would give, with a 90 % interval.

The measured costs are drawn again, calibrated so that the simulation gives the measured time, and
played through the pipeline as it was and as it would be, with the same drawings. CPU time was
counted exactly; what else the workers wait for is scaled. How far the simulation was off before
widens the interval. So does what no drawing shows: the model knows nothing of caches, memory
bandwidth and clock speeds, which change with the load, so a gain may be a tenth more or less than
predicted; and the same script run twice differs by 2 %.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.observe.whatif.measured_pipeline import MeasuredPipeline
from headrace.observe.whatif.simulation import (
    FULL,
    BatchCosts,
    Pipeline,
    SimulationResult,
    simulate,
)
from headrace.observe.whatif.tables import Floats

_DRAWINGS, _FEWEST_BATCHES, _SEED = 40, 160, 20
_SCALES = np.geomspace(0.25, 4.0, 25)
_UNSCALED = len(_SCALES) // 2
_FIT_TOLERANCE = 0.01
"""Scales that come so close to the measured time as the best one fit as well."""
_CALM_PERCENT = 10
"""On full cores so many of the steps are taken not to have waited for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedCosts:
    """Measured costs with which the simulation gives the measured time.

    Attributes:
        load: The costs.
        calibration: Measured time a batch over simulated, before anything was fitted.
    """

    load: BatchCosts
    calibration: float


def calibrate(measured: MeasuredPipeline) -> CalibratedCosts:
    """Return the costs of what was measured, drawn again and fitted."""
    drawn, pipeline = _draw_costs(measured), measured.pipeline
    measured_ns = float(measured.period_ns.mean())
    used_ns = float(drawn.demand_ns.mean() + drawn.consume_cpu_ns.mean())
    full = used_ns >= FULL * measured_ns * pipeline.cores
    periods = [
        simulate(pipeline, _scale_waiting(drawn, scale)).period_ns.mean() for scale in _SCALES
    ]
    ratios = np.array(periods) / measured_ns
    load = _scale_waiting(drawn, _best_scale(ratios, full=full))
    if full:  # the rank too waited for a core: in what steps took beyond the calmest
        calm_ns = float(np.percentile(measured.consume_ns, _CALM_PERCENT))
        load = replace(load, queue_ns=np.maximum(load.consume_ns - calm_ns, 0.0))
    return CalibratedCosts(load=load, calibration=float(1.0 / ratios[_UNSCALED]))


def _draw_costs(measured: MeasuredPipeline) -> BatchCosts:
    batches = max(_FEWEST_BATCHES, 4 * measured.pipeline.depth)
    random = np.random.default_rng(_SEED)
    made = random.integers(len(measured.service_ns), size=(_DRAWINGS, batches))
    used = random.integers(len(measured.consume_ns), size=(_DRAWINGS, batches))
    return BatchCosts(
        service_ns=measured.service_ns[made],
        service_cpu_ns=measured.service_cpu_ns[made],
        demand_ns=measured.demand_ns[made],
        consume_ns=measured.consume_ns[used],
        consume_cpu_ns=np.full((_DRAWINGS, batches), measured.consume_cpu_ns),
        auxiliary_factor=measured.auxiliary_factor,
    )


def _scale_waiting(load: BatchCosts, scale: float) -> BatchCosts:
    """Scale the time that workers wait: CPU time was counted exactly, so it stands."""
    service = np.maximum(load.service_ns * scale, load.service_cpu_ns)
    return replace(load, service_ns=service)


def _best_scale(ratios: Floats, *, full: bool) -> float:
    """Return the scale with which the simulated time is the measured one.

    Args:
        ratios: Simulated over measured time, of each of `_SCALES`.
        full: Whether the cores were.
    """
    error = np.abs(np.log(ratios))
    # Where the consumer is the limit many scales fit: the one closest to none is taken. Where
    # the cores are, workers waited for those, and without that they need the least that fits.
    fits = np.flatnonzero(error <= error.min() + _FIT_TOLERANCE)
    closest = int(fits[np.abs(np.log(_SCALES[fits])).argmin()])
    best = int(fits[0]) if full else closest
    if best in {0, _UNSCALED, len(_SCALES) - 1} or ratios[best + 1] <= ratios[best - 1]:
        return float(_SCALES[best])
    near = slice(best - 1, best + 2)
    return float(np.interp(1.0, ratios[near], _SCALES[near]))


_LOWEST_PERCENT, _HIGHEST_PERCENT = 5, 95
_HANDOFF_NS = (2e6, 0.2e6)
"""What taking a batch of tensors from a worker costs a rank, at most and at least: most of it CPU
time. Where workers kept all cores busy it took 1.9 to 3.5 ms, elsewhere half that, or less."""
_RECEIVE_NS = 3e6
"""CPU time of this host for a batch from another: its receiver process took 3.2 ms for 9.6 MB."""
_AUXILIARY_SPEED, _MEASURED_AUXILIARY_SPEED = (0.8, 1.25), (0.9, 1.1)
"""What a core of another host does, at least and at most, of what one here does; and of what those
did that helped."""
_MODEL_ERROR, _RUN_NOISE = 0.1, 0.02
"""What the model leaves out, as a share of the gain; and what two runs differ by, of the speed."""
_MAX_BATCHES = 640
_MAX_AUXILIARY = 128
"""Workers for each rank; more are not simulated, as they would be the device's match anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineChange:
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
        useful_share: With `threads` or `rank_threads`: the share of all threads' CPU time that
            is work, which those that are left do; in the rest they waited for each other, spinning.
        spin_factor: So many times the CPU time of the workers, whose threads wait for each other.
        consume_saved_ns: So much less a batch in the consumer; below 0: more.
        consume_cpu_added_ns: CPU time that is added to a batch in the consumer.
        ranks: Ranks on the host: they share its cores.
        auxiliary_cores: Cores on auxiliary hosts that make batches for each rank, in place of those
            that did. Local workers take the batch that is next, as such a loader does; there is at
            least one.
        auxiliary_factor: Making a batch takes so many times as long there as here.
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
    useful_share: float = 1.0
    spin_factor: float = 1.0
    consume_saved_ns: float = 0.0
    consume_cpu_added_ns: float = 0.0
    ranks: int | None = None
    auxiliary_cores: float = 0.0
    auxiliary_factor: float = 1.0
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
        load: The measured costs, drawn again and fitted.
        before: The pipeline as it is, played.
        spin_factor: Where it is a changed one: as in `PipelineChange`.
    """

    def __init__(self, measured: MeasuredPipeline) -> None:
        fitted = calibrate(measured)
        self.measured = measured
        self.calibration = fitted.calibration
        self.load = fitted.load
        self.before = simulate(measured.pipeline, fitted.load)
        self.spin_factor = 1.0

    def changed(self, change: PipelineChange) -> Simulator:
        """Return a simulator of the changed pipeline, of the same batches.

        Its predictions are of what a further change would give, against what is foretold for this.
        """
        other, now = copy.copy(self), self.measured
        pipeline, other.load, other.before = self._played(change)
        slower = other.before.period_ns.mean() / self.before.period_ns.mean()
        other.measured = replace(
            now,
            pipeline=pipeline,
            ranks=change.ranks or now.ranks,
            period_ns=now.period_ns * slower,
        )
        other.spin_factor = self.spin_factor * change.spin_factor
        return other

    def predict(self, change: PipelineChange) -> Prediction:
        """Return what one change would give."""
        return self._predicted(change)

    def predict_between(self, least: PipelineChange, most: PipelineChange) -> Prediction:
        """Return what a change would give whose effect lies between two edits."""
        return self._predicted(least, most)

    def wait_share(self) -> float:
        """Return the share of time that waits for data in the pipeline as it is, simulated."""
        return self.before.wait_share

    def _predicted(self, *changes: PipelineChange) -> Prediction:
        played = [self._played(change)[2] for change in changes]
        speedups = [
            self.before.period_ns / after.period_ns * change.batch_factor
            for after, change in zip(played, changes, strict=True)
        ]
        low, middle, high = np.percentile(speedups, (_LOWEST_PERCENT, 50, _HIGHEST_PERCENT))
        width = interval_width(float(middle), self.calibration)
        return Prediction(
            speedup=float(middle),
            low=max(float(low) - width, 0.0),
            high=float(high) + width,
            wait_share=float(np.mean([after.wait_share for after in played])),
        )

    def _played(self, change: PipelineChange) -> tuple[Pipeline, BatchCosts, SimulationResult]:
        """Return the changed pipeline, its costs, and both played."""
        pipeline = _changed_pipeline(self.measured, self.load, change)
        load = _changed_costs(self.load, change)
        # What lies in the pipeline is to be a small part of the batches.
        needed = min(4 * pipeline.depth, _MAX_BATCHES)
        load = load.repeated(-(-needed // load.service_ns.shape[1]))
        return pipeline, load, simulate(pipeline, load)


def interval_width(speedup: float, calibration: float = 1.0) -> float:
    """Return by how much more a speed-up may be off than drawings of what was measured show.

    Args:
        speedup: What is foretold.
        calibration: Measured time over that of the model, before it was fitted: one that did not
            reproduce it is as unsure of the gain it foretells.
    """
    doubt = min(float(np.hypot(calibration - 1.0, _MODEL_ERROR)), 0.5)
    return float(np.hypot(doubt * (speedup - 1.0), _RUN_NOISE * speedup))


def predict(measured: MeasuredPipeline, change: PipelineChange) -> Prediction:
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
        return simulator.predict(PipelineChange(workers=count))
    # Nobody has handed batches over yet, so what that costs the rank is a guess.
    least, most = (
        PipelineChange(workers=count, consume_saved_ns=-cost, consume_cpu_added_ns=cost)
        for cost in _HANDOFF_NS
    )
    return simulator.predict_between(least, most)


def with_auxiliary(simulator: Simulator, cores: float) -> Prediction:
    """Return what auxiliary hosts would give, in place of those that helped where some did.

    Hosts and their network were not measured. Batches are on their way while others are made, so
    that the way costs a worker nothing while the network keeps up. A core there is taken to do four
    fifths to five fourths of what one here does; or, where some helped, what theirs did, give or
    take a tenth.

    Args:
        simulator: The measured pipeline.
        cores: Their cores for each rank.
    """
    helped, measured = simulator.measured.pipeline.auxiliary > 0, simulator.load.auxiliary_factor
    least, most = (
        PipelineChange(
            auxiliary_cores=cores, auxiliary_factor=measured / speed, receive_cpu_ns=_RECEIVE_NS
        )
        for speed in (_MEASURED_AUXILIARY_SPEED if helped else _AUXILIARY_SPEED)
    )
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


def _changed_pipeline(
    measured: MeasuredPipeline, load: BatchCosts, change: PipelineChange
) -> Pipeline:
    now = measured.pipeline
    workers = now.workers if change.workers is None else change.workers
    away = now.auxiliary
    if change.auxiliary_cores > 0:
        # There is a worker for each core; where its threads keep more of them busy, one for these.
        there = change.auxiliary_cores / max(change.threads or load.busy_cores, 1.0)
        away = max(int(min(there, _MAX_AUXILIARY)), 1)
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


def _changed_costs(load: BatchCosts, change: PipelineChange) -> BatchCosts:
    there = change.auxiliary_factor if change.auxiliary_cores else load.auxiliary_factor
    load = _with_threads(_with_spinning(load, change.spin_factor), change)
    factor = change.service_factor * change.batch_factor
    waiting = load.service_ns - load.service_cpu_ns
    capped = waiting * change.capped_share
    waiting = waiting - capped + np.minimum(capped, change.capped_ns)
    consume = np.maximum(load.consume_ns - change.consume_saved_ns, 0.0)
    fixed = np.minimum(change.fixed_consume_ns, consume)
    consumed = fixed + (consume - fixed) * change.batch_factor
    queued = load.queue_ns
    if queued is not None:  # it grows with the batch as the time does that it is part of
        queued = np.minimum(queued, consume) * (consumed / np.maximum(consume, 1.0))
    return BatchCosts(
        service_ns=(load.service_cpu_ns + waiting * change.wait_factor) * factor,
        service_cpu_ns=load.service_cpu_ns * factor,
        demand_ns=load.demand_ns * factor,
        consume_ns=consumed,
        consume_cpu_ns=(load.consume_cpu_ns + change.consume_cpu_added_ns) * change.batch_factor,
        queue_ns=queued,
        auxiliary_factor=there,
        receive_cpu_ns=change.receive_cpu_ns * change.batch_factor,
    )


def _with_spinning(load: BatchCosts, factor: float) -> BatchCosts:
    """Let the workers' threads take so many times the CPU time, waiting for each other."""
    cpu = load.service_cpu_ns * factor
    service = load.service_ns - load.service_cpu_ns + cpu
    return replace(load, service_ns=service, service_cpu_ns=cpu, demand_ns=load.demand_ns * factor)


def _with_threads(load: BatchCosts, change: PipelineChange) -> BatchCosts:
    """Limit the threads: what they did of use is left to fewer, and nobody spins."""
    useful = change.useful_share
    if change.threads is not None:
        work = load.demand_ns * useful
        cpu = np.maximum(work / change.threads, load.service_cpu_ns * useful)
        waiting = load.service_ns - load.service_cpu_ns
        # A main thread with more to do waits less for the others.
        service = np.where(
            cpu > load.service_cpu_ns, np.maximum(load.service_ns, cpu), cpu + waiting
        )
        load = replace(load, service_ns=service, service_cpu_ns=cpu, demand_ns=work)
    if change.rank_threads is not None:
        work = load.consume_cpu_ns * useful
        longer = np.maximum(work / change.rank_threads - load.consume_ns, 0.0)
        load = replace(load, consume_ns=load.consume_ns + longer, consume_cpu_ns=work)
    return load
