"""Prediction of a pipeline change's speed-up, with a 90 % interval.

The measured costs are resampled, calibrated so that the simulation reproduces the measured time,
and simulated in the pipeline as it was and as changed, with the same drawings. CPU time is measured
exactly; other waiting of the workers is scaled. Where a change has the rank or its workers wait for
a core at more moments than they did, their work takes longer by that. The error of the uncalibrated
simulation widens the interval. So does what no drawing shows: the model ignores caches, memory
bandwidth and clock speeds, which change with the load, so a gain may be a tenth more or less than
predicted; and the same script run twice differs by 2 %.

More ranks on the host share its cores. One rank's CPU time was measured, in its workers and in the
rank itself; N ranks need N times that of the same cores.

Threads of a worker need more where they outnumber the cores: they mostly spin while they wait for
each other, for as long as those they wait for are not on a core. How much depends on how short the
work is between two waits, which one rank's run does not show, as its threads had a core each. So
the estimate is a range from nothing to the most that was seen, with its geometric mean as value.

Not counted is what a run with fewer ranks does not show: gradient sync, memory bandwidth, storage
shared by the ranks, and moments at which all want a core. The interval's lower end allows for it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.observe.whatif.core_waits import core_waits
from headrace.observe.whatif.loaders_in_turn import speedup_of_all
from headrace.observe.whatif.measured_pipeline import MeasuredPipeline
from headrace.observe.whatif.simulation import (
    FULL,
    BatchCosts,
    Pipeline,
    SimulationResult,
    simulate,
    simulate_each,
)
from headrace.observe.whatif.tables import Floats

_DRAWINGS, _FEWEST_BATCHES, _SEED = 40, 160, 20
_SCALES = np.geomspace(0.25, 4.0, 25)
_UNSCALED = len(_SCALES) // 2
_FIT_TOLERANCE = 0.01
"""Scales whose error exceeds the best one's by no more than this fit as well."""
_CALM_PERCENT = 10
"""On full cores, the share of steps assumed not to have waited for a core."""


def calibrate(measured: MeasuredPipeline) -> tuple[BatchCosts, float]:
    """Return measured costs, resampled and fitted, and measured over simulated time before that."""
    drawn, pipeline = _draw_costs(measured), measured.pipeline
    measured_ns = float(measured.period_ns.mean())
    used_ns = float(drawn.demand_ns.mean() + drawn.consume_cpu_ns.mean())
    full = used_ns >= FULL * measured_ns * pipeline.cores
    simulated = simulate_each(pipeline, [_scale_waiting(drawn, scale) for scale in _SCALES])
    periods = [result.period_ns.mean() for result in simulated]
    ratios = np.array(periods) / measured_ns
    costs = _scale_waiting(drawn, _best_scale(ratios, full=full))
    if full:  # the rank waited for a core, too: all beyond the calmest steps' time
        calm_ns = float(np.percentile(measured.consume_ns, _CALM_PERCENT))
        costs = replace(costs, queue_ns=np.maximum(costs.consume_ns - calm_ns, 0.0))
    return costs, float(1.0 / ratios[_UNSCALED])


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


def _scale_waiting(costs: BatchCosts, scale: float) -> BatchCosts:
    """Scale the time for which workers wait; CPU time was measured exactly and stays."""
    return replace(costs, service_ns=np.maximum(costs.service_ns * scale, costs.service_cpu_ns))


def _best_scale(ratios: Floats, *, full: bool) -> float:
    """Return the scale with which the simulated time equals the measured one, by their ratios."""
    error = np.abs(np.log(ratios))
    # If the consumer is the limit, many scales fit: the one closest to 1 is taken. If the cores
    # are, workers waited for a core, so the smallest scale that fits is taken.
    fits = np.flatnonzero(error <= error.min() + _FIT_TOLERANCE)
    closest = int(fits[np.abs(np.log(_SCALES[fits])).argmin()])
    best = int(fits[0]) if full else closest
    if best in {0, _UNSCALED, len(_SCALES) - 1} or ratios[best + 1] <= ratios[best - 1]:
        return float(_SCALES[best])
    near = slice(best - 1, best + 2)
    return float(np.interp(1.0, ratios[near], _SCALES[near]))


_HANDOFF_NS = (2e6, 0.2e6)
"""CPU time of reading a batch of tensors from a worker in a rank, at most and at least. Where
workers kept all cores busy it took 1.9 to 3.5 ms, elsewhere half that, or less."""
_START_NS = (60e6, 5e6)
"""Time by which a forked worker's first batch is later than its others, at most and at least: it
took 6 ms where the rank had imported all that it needs, and 58 ms where it had not."""
_BESIDE_THREAD = 0.3
"""The share of a step for which it waits for the interpreter, at most, if a thread beside it makes
batches in Python. Steps that slept for 10 ms took 13.2 ms beside one, and 10.5 beside workers."""
_RECEIVE_NS = 3e6
"""CPU time here for a batch from another host: a proxy process took 3.2 ms for 9.6 MB."""
_AUXILIARY_SPEED, _MEASURED_AUXILIARY_SPEED = (0.8, 1.25), (0.9, 1.1)
"""Speed of a core of an auxiliary host over one here, at least and at most: assumed, and relative
to what was measured."""
_MODEL_ERROR, _RUN_NOISE = 0.1, 0.02
"""Error of the model, as a share of the gain; difference of two runs, as a share of the speed."""
_WAIT_ROUNDS, _LEAST_WAIT = 2, 0.01
"""How often the added waits for a core are estimated anew; less of them is nothing."""
_MAX_BATCHES = 640
_MAX_AUXILIARY = 128
"""Workers for each rank; more are not simulated, as they would keep up with any device."""
_NO_CORES = 1e-6
"""So few that no batch is made on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineChange:
    """A change of the pipeline; fields that are None, 0 or a factor of 1 change nothing.

    With `threads` or `rank_threads`, a `useful_share` of all threads' CPU time is work, which the
    remaining ones do; in the rest they spin, waiting for each other. `auxiliary_cores` on other
    hosts make batches for each rank, in place of those measured; local workers, at least one, then
    take the next batch.
    """

    workers: int | None = None
    is_of_all_loaders: bool = False  # of the steps, so that none of the others is the limit then
    prefetch_factor: int | None = None  # batches ahead, a worker
    service_factor: float = 1.0  # on the time of making a batch: 0.5 for twice as fast
    wait_factor: float = 1.0  # on the workers' waiting, off the CPU, in making a batch
    capped_share: float = 0.0  # of that waiting, which is limited to `capped_ns` a batch, 0 to 1
    capped_ns: float = 0.0
    threads: int | None = None  # of each worker
    rank_threads: int | None = None  # of the rank, that keep a core busy
    useful_share: float = 1.0
    cpu_factor: float = 1.0  # on the CPU time of the workers: of threads that spin, other cores
    consume_saved_ns: float = 0.0  # a batch, in the consumer; negative: added
    consume_cpu_added_ns: float = 0.0  # CPU time a batch, in the consumer; negative: saved
    sending_saved: float = 0.0  # of the CPU time of the workers' other threads, which send: 0 to 1
    ranks: int | None = None  # on the host: they share its cores
    cores: float | None = None  # of the host
    auxiliary_cores: float = 0.0
    auxiliary_factor: float = 1.0  # on the time of making a batch there
    receive_cpu_ns: float = 0.0  # CPU time here for receiving it
    batch_factor: float = 1.0  # on the samples of a batch; fixed costs of a step stay
    fixed_consume_ns: float = 0.0  # the consumer's time that does not grow with the batch
    start_ns: float = 0.0  # of workers where there were none, at each begin of an epoch


NO_CHANGE = PipelineChange()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted effect of a change."""

    speedup: float  # of all steps: samples a second with the change over those without
    low: float  # lower end of the 90 % interval
    high: float
    wait_share: float  # of the loader's step time that would still wait for data, 0 to 1


class Simulator:
    """Simulates one measured pipeline with any change.

    Attributes:
        calibration: Measured over simulated time a batch, before fitting.
        costs: The measured ones, resampled and fitted.
        before: The simulation without a change.
        spin_factor: `cpu_factor` of a changed pipeline, as in `PipelineChange`.
    """

    def __init__(self, measured: MeasuredPipeline) -> None:
        self.measured = measured
        self.costs, self.calibration = calibrate(measured)
        self.before = simulate(measured.pipeline, self.costs)
        # These waits are in the costs, as they were measured with them.
        self._waits = core_waits(measured.pipeline, self.costs, self.before, measured.ranks)
        self.spin_factor = 1.0
        self._known: dict[tuple[PipelineChange, ...], Prediction] = {}  # several rules ask alike

    def changed(self, change: PipelineChange) -> Simulator:
        """Return a simulator of the changed pipeline with the same batches.

        Its predictions are of a further change, relative to the prediction of this one.
        """
        other, now = copy.copy(self), self.measured
        other._known = {}  # noqa: SLF001 - a copy of this simulator
        pipeline, other.costs, other.before = self._simulate(change)
        slower = other.before.period_ns.mean() / self.before.period_ns.mean()
        ranks, period_ns = change.ranks or now.ranks, now.period_ns * slower
        part = now.part * slower * speedup_of_all(1.0 / slower, now.part)
        other.measured = replace(
            now, pipeline=pipeline, ranks=ranks, period_ns=period_ns, part=float(part)
        )
        other._waits = core_waits(pipeline, other.costs, other.before, ranks)  # noqa: SLF001
        other.spin_factor = self.spin_factor * change.cpu_factor
        return other

    def predict(self, *changes: PipelineChange) -> Prediction:
        """Return the predicted effect of a change, or of one that lies between several."""
        if changes not in self._known:
            self._known[changes] = self._predicted(changes)
        return self._known[changes]

    def _predicted(self, changes: Sequence[PipelineChange]) -> Prediction:
        before_ns = self.before.period_ns + self._begins_ns(self.costs)
        simulated, speedups = [], []
        for change in changes:
            _, costs, after = self._simulate(change)
            simulated.append(after)
            own_ns = after.period_ns / change.batch_factor
            if not change.is_of_all_loaders:
                least_ns = np.minimum(self.measured.least_period_ns, self.before.period_ns)
                own_ns = np.maximum(own_ns, least_ns)
            speedups.append(before_ns / (own_ns + self._begins_ns(costs, change)))
        low, middle, high = map(float, np.percentile(speedups, (5, 50, 95)))
        width, part = interval_width(middle, self.calibration), self.measured.part
        return Prediction(
            speedup=speedup_of_all(middle, part),
            low=speedup_of_all(max(low - width, 0.0), part),
            high=speedup_of_all(high + width, part),
            wait_share=float(np.mean([after.wait_share for after in simulated])),
        )

    def _begins_ns(self, costs: BatchCosts, change: PipelineChange = NO_CHANGE) -> float:
        """Return what the begins of epochs add to a batch of the measured size.

        No change but one of the time of making a batch is known to shorten them. A rank that makes
        its batches itself waits for no more at an epoch's begin; with workers it does.
        """
        begins, service_ns = self.measured.begins, float(self.costs.service_ns.mean())
        longer = float(costs.service_ns.mean()) / max(service_ns, 1.0)
        making_ns, starting_ns = begins.making_ns, begins.starting_ns
        if change.workers and not self.measured.pipeline.workers:
            making_ns += service_ns * begins.count
        if change.workers and (self.measured.by_thread or not self.measured.pipeline.workers):
            starting_ns += change.start_ns * begins.count
        return starting_ns + making_ns * longer / change.batch_factor

    def _simulate(self, change: PipelineChange) -> tuple[Pipeline, BatchCosts, SimulationResult]:
        """Return the changed pipeline, its costs, and their simulation."""
        pipeline = _changed_pipeline(self.measured, self.costs, change)
        costs = _changed_costs(self.costs, change)
        # The batches in flight must be a small part of all.
        needed = min(4 * pipeline.depth, _MAX_BATCHES)
        costs = costs.repeated(-(-needed // costs.service_ns.shape[1]))
        result = simulate(pipeline, costs)
        if change.ranks is None and change.cores is None:  # estimates of these allow for it apart
            result = self._with_waits(pipeline, costs, result)
        return pipeline, costs, result

    def _with_waits(
        self, pipeline: Pipeline, costs: BatchCosts, result: SimulationResult
    ) -> SimulationResult:
        """Return a simulation with what processes wait for cores beyond what they did so far."""
        # A worker's thread that answers the rank, which takes a batch, waits for a core, too.
        answered_ns = self.measured.taking_ns - self.measured.taking_cpu_ns
        own_ns = np.minimum(costs.consume_cpu_ns + answered_ns, costs.consume_ns)
        for _ in range(_WAIT_ROUNDS):  # the longer they wait, the less of the time they run
            waits = core_waits(pipeline, costs, result, self.measured.ranks)
            more = waits.beyond(self._waits)
            if max(more.consumer.max(), more.workers.max()) <= _LEAST_WAIT:
                break
            longer = replace(
                costs,
                service_ns=costs.service_ns + costs.service_cpu_ns * more.workers[:, None],
                consume_ns=costs.consume_ns + own_ns * more.consumer[:, None],
            )
            result = simulate(pipeline, longer)
        return result


def interval_width(speedup: float, calibration: float = 1.0) -> float:
    """Return how far a speed-up may be off beyond the spread of the drawings.

    A model that is off before fitting, by its `calibration`, is as uncertain of the gain.
    """
    doubt = min(float(np.hypot(calibration - 1.0, _MODEL_ERROR)), 0.5)
    return float(np.hypot(doubt * (speedup - 1.0), _RUN_NOISE * speedup))


def with_workers(
    simulator: Simulator, count: int, *, cores: float | None = None, ranks: int | None = None,
    core_speed: float = 1.0,
) -> Prediction:  # fmt: skip
    """Return the predicted effect of a number of workers, also of other loaders of the steps.

    On a host with other cores, so many times as fast, or with other ranks, if these are given.
    """
    change = PipelineChange(
        workers=count, is_of_all_loaders=True, cores=cores, ranks=ranks, cpu_factor=1.0 / core_speed
    )
    if simulator.measured.pipeline.workers and not simulator.measured.by_thread:
        return simulator.predict(change)
    # Without workers so far, the costs of starting them and of reading batches are assumptions.
    least, most = (
        replace(change, consume_saved_ns=-handoff, consume_cpu_added_ns=handoff, start_ns=start)
        for handoff, start in zip(_HANDOFF_NS, _START_NS, strict=True)
    )
    if simulator.measured.by_thread:
        beside_ns = _BESIDE_THREAD * float(simulator.measured.consume_ns.mean())
        most = replace(most, consume_saved_ns=most.consume_saved_ns + beside_ns)
    return simulator.predict(least, most)


def with_auxiliary(
    simulator: Simulator, cores: float, speeds: tuple[float, float] | None = None
) -> Prediction:
    """Return the predicted effect of auxiliary cores for each rank, in place of any measured.

    Hosts and network were not measured. Sending overlaps with making batches, so it costs a worker
    nothing while the network keeps up. A core there is assumed to be between two `speeds` of one
    here: 0.8 to 1.25 by default, or, if some hosts were measured, as fast as theirs within a tenth.
    Their geometric mean counts as likely as both: near the device's limit more speed gives less
    than as much less takes. Workers make whole batches: between two numbers of them, as where ranks
    share a core, it gives that part of what the next one would.
    """
    each = max(simulator.costs.busy_cores, 1.0)
    workers, part = divmod(cores / each, 1.0)
    if workers and not part:
        return _with_auxiliary_workers(simulator, cores, speeds)
    fewer = _with_auxiliary_workers(simulator, workers * each or _NO_CORES, speeds)
    more = _with_auxiliary_workers(simulator, (workers + 1) * each, speeds)

    def between(of: Callable[[Prediction], float]) -> float:
        return (1.0 - part) * of(fewer) + part * of(more)

    return Prediction(
        speedup=between(lambda found: found.speedup),
        low=between(lambda found: found.low),
        high=between(lambda found: found.high),
        wait_share=between(lambda found: found.wait_share),
    )


def _with_auxiliary_workers(
    simulator: Simulator, cores: float, speeds: tuple[float, float] | None
) -> Prediction:
    is_used, measured = simulator.measured.pipeline.auxiliary > 0, simulator.costs.auxiliary_factor
    if speeds is None or is_used:
        speeds = _MEASURED_AUXILIARY_SPEED if is_used else _AUXILIARY_SPEED
    slow, fast = speeds
    changes = (
        PipelineChange(
            auxiliary_cores=cores, auxiliary_factor=measured / speed, receive_cpu_ns=_RECEIVE_NS
        )
        for speed in (slow, (slow * fast) ** 0.5, fast)
    )
    return simulator.predict(*changes)


def enough_workers(
    simulator: Simulator, counts: Sequence[int], *, within: float = 0.03
) -> tuple[int, Prediction] | None:
    """Return the fewest workers, of some counts, whose speed-up is `within` a share of the best."""
    tried = [(count, with_workers(simulator, count)) for count in counts]
    if not tried:
        return None
    best = max(prediction.speedup for _, prediction in tried)
    return next(found for found in tried if found[1].speedup >= best * (1.0 - within))


def _changed_pipeline(
    measured: MeasuredPipeline, costs: BatchCosts, change: PipelineChange
) -> Pipeline:
    now = measured.pipeline
    workers = now.workers if change.workers is None else change.workers
    prefetch_factor = change.prefetch_factor
    if prefetch_factor is None:  # torch has none without workers; with some, its default is 2
        is_known = now.workers > 0 and (change.workers is None or not measured.by_thread)
        prefetch_factor = now.prefetch_factor if is_known else 2
    auxiliary = now.auxiliary
    if change.auxiliary_cores > 0:
        auxiliary = max(int(_auxiliary_workers(costs, change)), 1)
        workers = max(workers, 1)
    cores, worker_cores = now.cores, now.worker_cores
    if change.cores is not None:
        cores, worker_cores = change.cores / measured.ranks, float("inf")
    share = measured.ranks / (change.ranks or measured.ranks)
    return replace(
        now,
        workers=workers,
        prefetch_factor=prefetch_factor,
        takes_next=now.takes_next or auxiliary > 0,
        cores=cores * share,
        worker_cores=worker_cores * share,
        auxiliary=auxiliary,
        busiest_share=now.busiest_share if change.workers is None else 0.0,
    )


def _auxiliary_workers(costs: BatchCosts, change: PipelineChange) -> float:
    """Return the workers on a rank's auxiliary cores; less than one is one that is so much slower.

    That is one for each core, or for as many cores as its threads keep busy.
    """
    count = change.auxiliary_cores / max(change.threads or costs.busy_cores, 1.0)
    return min(count, _MAX_AUXILIARY)


def _changed_costs(costs: BatchCosts, change: PipelineChange) -> BatchCosts:
    auxiliary_factor = costs.auxiliary_factor
    if change.auxiliary_cores > 0:
        auxiliary_factor = change.auxiliary_factor / min(_auxiliary_workers(costs, change), 1.0)
    costs = _with_threads(_with_cpu(costs, change.cpu_factor), change)
    factor = change.service_factor * change.batch_factor
    waiting = costs.service_ns - costs.service_cpu_ns
    sending = costs.demand_ns - costs.service_cpu_ns  # CPU time of other threads
    capped = waiting * change.capped_share
    waiting = waiting - capped + np.minimum(capped, change.capped_ns)
    consume = np.maximum(costs.consume_ns - change.consume_saved_ns, 0.0)
    fixed = np.minimum(change.fixed_consume_ns, consume)
    consumed = fixed + (consume - fixed) * change.batch_factor
    queued = costs.queue_ns
    if queued is not None:  # it grows with the batch as the consumer's time does
        queued = np.minimum(queued, consume) * (consumed / np.maximum(consume, 1.0))
    return BatchCosts(
        service_ns=(costs.service_cpu_ns + waiting * change.wait_factor) * factor,
        service_cpu_ns=costs.service_cpu_ns * factor,
        demand_ns=(costs.demand_ns - sending * change.sending_saved) * factor,
        consume_ns=consumed,
        consume_cpu_ns=np.maximum(costs.consume_cpu_ns + change.consume_cpu_added_ns, 0.0)
        * change.batch_factor,
        queue_ns=queued,
        auxiliary_factor=auxiliary_factor,
        receive_cpu_ns=change.receive_cpu_ns * change.batch_factor,
    )


def _with_cpu(costs: BatchCosts, factor: float) -> BatchCosts:
    """Multiply the CPU time of the workers: threads spin, or cores are slower or faster."""
    cpu = costs.service_cpu_ns * factor
    service = costs.service_ns - costs.service_cpu_ns + cpu
    return replace(
        costs, service_ns=service, service_cpu_ns=cpu, demand_ns=costs.demand_ns * factor
    )


def _with_threads(costs: BatchCosts, change: PipelineChange) -> BatchCosts:
    """Limit the threads: the remaining ones do all the work, and none spins."""
    useful = change.useful_share
    if change.threads is not None:
        work = costs.demand_ns * useful
        cpu = np.maximum(work / change.threads, costs.service_cpu_ns * useful)
        waiting = costs.service_ns - costs.service_cpu_ns
        # A main thread with more to do waits less for the others.
        service = np.where(
            cpu > costs.service_cpu_ns, np.maximum(costs.service_ns, cpu), cpu + waiting
        )
        costs = replace(costs, service_ns=service, service_cpu_ns=cpu, demand_ns=work)
    if change.rank_threads is not None:
        work = costs.consume_cpu_ns * useful
        longer = np.maximum(work / change.rank_threads - costs.consume_ns, 0.0)
        costs = replace(costs, consume_ns=costs.consume_ns + longer, consume_cpu_ns=work)
    return costs


MAX_SPIN_FACTOR = 20.0
"""Most CPU time of threads that outnumber the cores, over that of their work.

There is no natural bound: a thread spins until the one waited for had its turn on a core, some
milliseconds, however short the work between two waits. Two threads in each of two workers took 9
times for elementwise operations on two cores, those of BLAS 6 to 8 times, and operations of a
millisecond 15 times; this is a third more."""
THREADED_FACTOR = 1.5
"""Workers whose CPU time is so many times that of their main threads are multithreaded."""
_MORE_THREADS, _MORE_SHARE = 0.5, 0.05
"""Threads outnumber the cores if they are more by so many, or by such a share of the cores, because
their number is a ratio of CPU times."""
_FREE_CORES_SHARE = 0.1
"""If no more than this share of the cores is used, threads are assumed not to spin. They did at
0.13, 0.2 and 0.46 in reference case A, with 12, 2.7 and 13 times the CPU time of one rank's: a
thread that finds another's core taken keeps its own by spinning, and so on."""
_UNCOUNTED_SHARE = 0.35
"""The largest reduction of the predicted speed of more ranks by what is not counted, times the
share of the cores that they use: gradient sync, and moments at which all want a core although there
are enough on average. Two ranks on two cores reached 0.80 to 0.96 of the prediction in nine cases
of ten (benchmarks/remedies/ranks.py)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 90 % interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """Return the estimate with all three multiplied."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def within(self, lowest: float, highest: float) -> Estimate:
        """Return the estimate with all three clipped to a range."""
        value, low, high = np.clip((self.value, self.low, self.high), lowest, highest)
        return Estimate(float(value), float(low), float(high))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRun:
    """A run with a given number of ranks on its host."""

    ranks: int
    batches_per_s: Estimate  # of all ranks together
    efficiency: Estimate  # a rank's speed over that of one rank alone, 0 to 1
    wait_share: Estimate  # data wait over step time, 0 to 1
    spin_factor: Estimate  # workers' CPU time over that measured: 1 if each thread has a core


def spin_estimate(simulator: Simulator, ranks: int) -> Estimate:
    """Return the factor on the CPU time of workers, due to spinning, with a number of ranks."""
    more = ranks / simulator.measured.ranks
    if more <= 1.0 or not are_threads_crowded(simulator, more):
        return Estimate(1.0, 1.0, 1.0)
    # On full cores, spinning was measured already: it grows at most with the ranks.
    most = more if _busy(simulator) >= FULL else MAX_SPIN_FACTOR
    return Estimate(float(np.sqrt(most)), 1.0, most)


def are_threads_crowded(simulator: Simulator, more: float = 1.0) -> bool:
    """Return whether workers' threads outnumber the cores at `more` times the ranks: may spin."""
    threads, pipeline = simulator.costs.threads, simulator.measured.pipeline
    spare = max(_MORE_THREADS / simulator.measured.ranks, _MORE_SHARE * pipeline.cores)
    outnumbered = pipeline.workers * threads * more > pipeline.cores + spare
    return (
        threads >= THREADED_FACTOR and outnumbered and _busy(simulator) * more > _FREE_CORES_SHARE
    )


def _busy(simulator: Simulator) -> float:
    """Return the share of its cores that a pipeline uses."""
    used_ns = float((simulator.costs.demand_ns + simulator.costs.consume_cpu_ns).mean())
    return used_ns / (float(simulator.before.period_ns.mean()) * simulator.measured.pipeline.cores)


def with_ranks(simulator: Simulator, ranks: int) -> Simulator:
    """Return a simulator of the same pipeline with a number of ranks on the host."""
    spin = spin_estimate(simulator, ranks)
    return simulator.changed(PipelineChange(ranks=ranks, cpu_factor=spin.value))


def scale_ranks(simulator: Simulator, ranks: int, wait_share: float) -> ScaledRun:
    """Return the predicted run with a number of ranks; for the measured one, what was measured."""
    spin = spin_estimate(simulator, ranks)
    predictions = [
        simulator.predict(PipelineChange(ranks=ranks, cpu_factor=factor))
        for factor in sorted({spin.low, spin.value, spin.high})
    ]
    likely = predictions[len(predictions) // 2]
    alone = simulator.predict(PipelineChange(ranks=1)).speedup
    more = ranks / simulator.measured.ranks
    margin = 1.0 - _UNCOUNTED_SHARE * min(_busy(simulator) * more, 1.0) if more > 1.0 else 1.0
    # The end with most spinning is an extreme already: no margin is added to it.
    speed = Estimate(
        likely.speedup,
        min(likely.low * margin, predictions[-1].speedup),
        max(predictions[0].high, likely.high),
    )
    one_rank = 1e9 / float(simulator.measured.period_ns.mean())
    # Reading a ready batch counts as the rank's own time in the simulation, but as data wait in the
    # measurement: it costs the same for each batch, however many ranks there are.
    extra = wait_share - simulator.before.wait_share
    waits = likely.wait_share + extra * speed.value
    # The rank's own time in a step stays: the faster the steps, the less of them is wait.
    own = (1.0 - waits) / max(speed.value, 1e-9)
    return ScaledRun(
        ranks=ranks,
        batches_per_s=speed.times(one_rank * ranks),
        efficiency=speed.times(1.0 / max(alone, 1e-9)).within(0.0, 1.0),
        wait_share=Estimate(waits, 1.0 - own * speed.high, 1.0 - own * speed.low).within(0.0, 1.0),
        spin_factor=spin,
    )
