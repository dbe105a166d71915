"""Remedies that rules propose, with predictions: workers, code, threads, hosts, copies, batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.core.overrides import Override
from headrace.observe.doctor.core_contention import waits_for_cores
from headrace.observe.doctor.evidence import CRITICAL, Evidence
from headrace.observe.doctor.findings import Cause, Remedy
from headrace.observe.doctor.skipped_work import skipped_work
from headrace.observe.doctor.stack_frames import transform_class
from headrace.observe.doctor.stack_samples import (
    Hotspot,
    StackSample,
    find_hotspot,
    is_lock,
    off_cpu_ns,
)
from headrace.observe.doctor.training_loader import TrainingLoader
from headrace.observe.doctor.transform_code import transform_at
from headrace.observe.whatif.loaders_in_turn import speedup_of_all, speedup_of_part
from headrace.observe.whatif.measured_pipeline import BatchWork, MeasuredPipeline, shard_reading_ns
from headrace.observe.whatif.prediction import (
    MAX_SPIN_FACTOR,
    PipelineChange,
    Prediction,
    Simulator,
    enough_workers,
    interval_width,
    with_auxiliary,
)
from headrace.observe.whatif.simulation import Pipeline
from headrace.observe.whatif.tables import Flags, Floats
from headrace.observe.whatif.train_steps import fixed_cost_ns

WORTH_IT = 1.05
"""Least predicted speed-up of a remedy that is proposed."""
_MAX_WORKERS = 32
_LITTLE = 0.05
"""A loader without workers that takes less of a step may stay so."""
_COUNTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32)
_DRAWINGS, _SEED = 200, 21
_DEVICE_FASTER = (20.0, 100.0)
"""Speed of a device at a transform over that of one core, at least and at most."""
_MAX_DRAWN = 10_000
"""Most steps drawn one by one; more are drawn in groups of neighbours to limit memory."""


def predicted_remedy(
    name: str, change: str, prediction: Prediction, how: str, overrides: tuple[Override, ...] = ()
) -> Remedy:
    """Return a remedy with its prediction."""
    return Remedy(
        name=name,
        change=change,
        predicted_speedup=prediction.speedup,
        low=prediction.low,
        high=prediction.high,
        how=how,
        overrides=overrides,
    )


def more_workers_remedy(evidence: Evidence) -> tuple[Remedy, Prediction] | None:
    """Return the fewest workers that give nearly the most, if more workers help at all."""
    simulator, loader = evidence.simulator, evidence.loader
    if simulator is None or loader is None:
        return None
    if lock_wait_share(evidence) >= CRITICAL:  # the simulation does not model locks
        return None
    if evidence.unequal_shares:  # further workers would have no part of the dataset either
        return None
    if skipped_work(evidence) is not None:  # further workers would do the same work again
        return None
    measured = simulator.measured
    # With the CPU time of processes that a batch awaits, such as a pool's.
    on_cpu = float(measured.service_cpu_ns.sum() / max(measured.service_ns.sum(), 1.0))
    waits = evidence.work is not None and max(evidence.work.cpu_share, on_cpu) < 0.5
    waits = waits and not waits_for_cores(evidence)
    pipeline = measured.pipeline
    cores = min(pipeline.cores, pipeline.worker_cores)
    # Workers that wait, but not for a core, may outnumber the cores; others would only share them.
    most = _MAX_WORKERS if waits else min(max(int(np.ceil(min(cores, 1e6))), 1), _MAX_WORKERS)
    counts = [count for count in _COUNTS if loader.workers < count <= most]
    found = enough_workers(simulator, counts)
    if found is None or found[1].speedup < WORTH_IT or found[1].low <= 1.0:
        return None
    count, prediction = found
    before = f" instead of {loader.workers}" if loader.workers else " instead of none"
    plural = "s" if count > 1 else ""
    change = f"{count} worker{plural}{before}"
    changed = [loader, *_next_limits(evidence, count, prediction.speedup)]
    how = " ".join(
        each.advice("num_workers", count) + _stream_split_advice(each, count) for each in changed
    )
    if len(changed) > 1:
        how += " Each step takes batches of them all, so that one alone gives less."
        change = f"{count} worker{plural} for each of {len(changed)} loaders{before}"
    overrides = [each.overridden("num_workers", count) for each in changed]
    together = sum(overrides, ()) if all(overrides) else ()
    return predicted_remedy("workers", change, prediction, how, together), prediction


def _next_limits(evidence: Evidence, workers: int, speedup: float) -> list[TrainingLoader]:
    """Return the other loaders of the steps that would be the limit once the main one is not."""
    assert evidence.simulator is not None  # checked by the caller
    own = speedup_of_part(speedup, evidence.steps.part)
    period_ns = float(evidence.simulator.measured.period_ns.mean()) / own
    return [
        loader
        for loader, each in evidence.joint
        if loader.workers < workers and each.pace_ns > (period_ns if loader.workers else 0.0)
        if loader.workers or each.pace_ns > _LITTLE * period_ns
    ]


def more_workers_remedies(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return the remedy of more workers, if it helps."""
    found = more_workers_remedy(evidence)
    return (found[0],) if found is not None else ()


def _stream_split_advice(loader: TrainingLoader, workers: int) -> str:
    """Return what else an iterable dataset needs, which torch leaves to share itself out."""
    if loader.style != "iterable" or loader.kind != "torch" or workers < 2:
        return ""
    return (
        " Its dataset is a stream, which shares itself out: unless its __iter__ gives each worker a"
        f" part by torch.utils.data.get_worker_info(), every sample comes {workers} times; and with"
        f" fewer than {workers} files or other parts to give, the workers beyond that idle."
    )


def first_loader_remedies(evidence: Evidence, share: float, cpu_share: float) -> tuple[Remedy, ...]:
    """Return what a loader with workers would give a script that makes its data itself.

    It does so in a share of step time, `cpu_share` of that on a CPU.
    """
    wall, host = evidence.steps.wall_ns, evidence.host
    making = wall * min(share, 0.99)
    used = (host.rank_cores or 0.0) / host.ranks * float(wall.mean())
    measured = MeasuredPipeline(
        pipeline=Pipeline(workers=0, cores=host.cores / host.ranks),
        service_ns=making,
        service_cpu_ns=making * min(cpu_share, 1.0),
        demand_ns=making * min(cpu_share, 1.0),
        consume_ns=wall - making,
        consume_cpu_ns=max(used - float(making.mean()) * cpu_share, 0.0),
        period_ns=wall,
        ranks=host.ranks,
        persistent=False,
    )
    found = enough_workers(Simulator(measured), [count for count in _COUNTS if count <= 8])
    if found is None or found[1].speedup < WORTH_IT:
        return ()
    count, prediction = found
    change = f"a DataLoader with {count} worker{'s' if count > 1 else ''}"
    how = (
        "Put the making of one sample into a Dataset's __getitem__, and iterate over "
        f"DataLoader(dataset, num_workers={count})."
    )
    return (predicted_remedy("loader", change, prediction, how),)


def lock_samples(evidence: Evidence) -> tuple[StackSample, ...]:
    """Return the stack samples in which making a batch waits for a lock."""
    return tuple(sample for sample in evidence.making_samples if is_lock(sample))


def lock_wait_share(evidence: Evidence) -> float:
    """Return the share of the time of making batches that waits for locks, 0 to 1.

    Where a lock is taken nothing is computed. But CPU time between two samples counts at the later
    one, also that of code before a lock which is waited for briefly. All time off the CPU is known.
    """
    total = sum(sample.wall_ns for sample in evidence.making_samples)
    there = sum(sample.wall_ns for sample in lock_samples(evidence))
    return min(there, off_cpu_ns(evidence.making_samples)) / max(total, 1.0)


def faster_code_remedies(evidence: Evidence, cause: Cause, name: str = "") -> tuple[Remedy, ...]:
    """Return what faster code in the workers would give, no code, and code on the device."""
    name = name or cause.name or cause.place
    if evidence.simulator is None or cause.share <= 0:
        return ()
    where = f" ({cause.place})" if cause.place else ""
    if cause.library and cause.loader:
        where = f" where the dataset of the loader{cause.loader} is made"
    left = max(1.0 - cause.share, 0.01)
    half = evidence.simulator.predict(PipelineChange(service_factor=1.0 - cause.share / 2))
    none = evidence.simulator.predict(PipelineChange(service_factor=left))
    cheaper = f"Look for a cheaper way to do the same{where}, or do it on smaller data."
    earlier = f"Do it once before training, or leave it out{where}."
    if cause.library and cause.loader:
        cheaper = f"It is code of {cause.library}: choose a cheaper one, or smaller data,{where}."
        earlier = f"Do it once before training and keep what it gives, or leave it out{where}."
    remedies = [
        predicted_remedy("faster-code", f"{name} twice as fast", half, cheaper),
        predicted_remedy("move-code", f"no {name} in the workers", none, earlier),
    ]
    if cause.transform and cause.transform != "collate_fn":
        change = f"{name} on the accelerator"
        how = (
            f"Do it on whole batches after the copy{where}: "
            "headrace.DataLoader(device_transform=...), or in the training loop. The device "
            "is taken to need 1/100 to 1/20 of its CPU time."
        )
        moved = _predict_on_device(evidence.simulator, cause.share)
        remedies.append(predicted_remedy("device-transform", change, moved, how))
    return tuple(remedy for remedy in remedies if (remedy.predicted_speedup or 0.0) >= WORTH_IT)


def _predict_on_device(simulator: Simulator, share: float) -> Prediction:
    """Return what doing a share of the workers' code on the device, in its step, would give."""
    cpu_ns = float(simulator.costs.demand_ns.mean()) * share
    slow, fast = (
        PipelineChange(service_factor=max(1.0 - share, 0.01), consume_saved_ns=-cpu_ns / faster_by)
        for faster_by in _DEVICE_FASTER
    )
    return simulator.predict(slow, fast)


def predict_less_waiting(evidence: Evidence, share: float) -> Prediction | None:
    """Return what it would give if workers waited for only 10 to 50 % of a share of their time."""
    work, simulator = evidence.work, evidence.simulator
    if work is None or simulator is None:
        return None
    part = min(share / max(1.0 - work.cpu_share, 0.01), 1.0)
    return simulator.predict(
        PipelineChange(wait_factor=1.0 - 0.5 * part), PipelineChange(wait_factor=1.0 - 0.9 * part)
    )


def predict_less_reading(evidence: Evidence, share: float) -> Prediction | None:
    """Return what a cache or shards would give for the share of the workers' time in reads."""
    work, simulator = evidence.work, evidence.simulator
    if work is None or simulator is None:
        return None
    part = min(share / max(1.0 - work.cpu_share, 0.01), 1.0)
    least, most = (
        PipelineChange(capped_share=part, capped_ns=left) for left in shard_reading_ns(work, share)
    )
    return simulator.predict(least, most)


def predict_without(
    evidence: Evidence,
    saved_ns: Floats,
    most_ns: Floats | None = None,
    *,
    before_ns: Floats | None = None,
    where: Flags | None = None,
) -> Prediction:
    """Return what it would give if each step took so much less, or up to `most_ns` less.

    Args:
        evidence: Of the run.
        saved_ns: Of each step.
        most_ns: Of each step, at most; None: the same.
        before_ns: What would go of the time before each step, outside of all; None: nothing.
        where: Which steps count; None: all.
    """
    steps, chosen = evidence.steps.wall_ns, slice(None) if where is None else where
    outside = np.zeros(len(steps)) if before_ns is None else before_ns
    steps = (steps + outside)[chosen]
    saves = [(ns + outside)[chosen] for ns in (saved_ns, most_ns) if ns is not None]
    begins = np.arange(min(len(steps), _MAX_DRAWN)) * len(steps) // min(len(steps), _MAX_DRAWN)
    wall = np.add.reduceat(steps, begins)
    bounds = [np.add.reduceat(ns, begins) for ns in saves]
    drawn = np.random.default_rng(_SEED).integers(len(wall), size=(_DRAWINGS, len(wall)))
    before = wall[drawn].sum(axis=1)
    speedups = [before / np.maximum(before - ns[drawn].sum(axis=1), before * 0.01) for ns in bounds]
    low, middle, high = map(float, np.percentile(speedups, (5, 50, 95)))
    waited = float(evidence.steps.data_wait_ns[chosen].sum())
    left = waited / max(float((wall - bounds[0]).sum()), 1.0)
    part = evidence.steps.part
    return Prediction(
        speedup=speedup_of_all(middle, part),
        low=speedup_of_all(max(low - interval_width(low), 0.0), part),
        high=speedup_of_all(high + interval_width(high), part),
        wait_share=min(float(left), 1.0),
    )


def making_cause(
    evidence: Evidence, samples: tuple[StackSample, ...], *, off_cpu_only: bool = False
) -> Cause | None:
    """Return the code in which making batches, or its waiting, spends most time; None if unknown.

    Shares are of all of `evidence.making_samples`; `samples` are those in question.
    """
    total = sum(sample.wall_ns for sample in evidence.making_samples)
    place = find_hotspot(samples, total, off_cpu_only=off_cpu_only)
    if place is not None:
        cause = _cause_at(evidence, place, off_cpu_only=off_cpu_only)
    elif evidence.transforms and not evidence.making_samples:
        cause = evidence.transforms[0].cause()
    else:
        return None
    return cause if evidence.loader is None else evidence.loader.calling(cause)


def _cause_at(evidence: Evidence, place: Hotspot, *, off_cpu_only: bool) -> Cause:
    """Return a place as a cause, with the transform that it belongs to."""
    if not place.frame.is_user:
        is_transform = transform_class(place.frame) != ""
        return place.cause(place.frame.library_name if is_transform else "")
    transform = transform_at(place, evidence.transforms)
    if transform is None or off_cpu_only:
        return place.cause(transform.name if transform else "")
    # The whole transform is named, so its share counts, not that of one of its lines, nor that of a
    # line that calls a library's among others.
    share = transform.share if transform.library else max(place.share, transform.share)
    return replace(place.cause(transform.name), share=share)


_CALM_LIMIT = 0.5
"""If the calmest twentieth of the batches took less than this share of the mean CPU time, the
excess of the others is spinning, not work. In reference case A it took 0.76 and 0.82 of the mean
where each thread had a core, and 0.14 to 0.47 where they shared them."""
_MAX_HOSTS = 4
_LEAST_GAIN = 1.05
"""A further host is proposed only if it gives at least this speed-up."""
_CROWDED_THREADS = 1.5
"""With more running or waiting threads a core than this, threads spin for others that wait."""
_RANK_THREADS = 1.2
"""A rank that keeps more cores busy than this has threads of its own."""


def one_thread_a_worker_remedy(evidence: Evidence) -> Remedy | None:
    """Return what one thread in each worker would give, by `_predict_fewer_threads`."""
    loader, simulator, work = evidence.loader, evidence.simulator, evidence.work
    if loader is None or loader.workers == 0 or simulator is None or work is None:
        return None
    is_torch, calm = loader.kind == "torch", calm_share(work)
    # With more ranks than were measured its threads are assumed to spin for longer.
    threads = max(work.threads / calm, simulator.spin_factor)
    change = PipelineChange(threads=1)
    prediction, basis = _predict_fewer_threads(evidence, simulator, change, threads, calm)
    if prediction.high < WORTH_IT:
        return None
    return predicted_remedy(
        "threads",
        "one thread a worker",
        prediction,
        f"{'headrace run --apply worker_threads=1; or in' if is_torch else 'In'} the DataLoader's "
        "worker_init_fn: cv2.setNumThreads(0), and OMP_NUM_THREADS=1 before the start. "
        f"{basis}",
        (Override("worker_threads", 1),) if is_torch else (),
    )


def calm_share(work: BatchWork) -> float:
    """Return the share of the workers' CPU time that is work, by their calm batches; or 1."""
    return work.calm_share if work.calm_share < _CALM_LIMIT else 1.0


def one_thread_a_rank_remedy(evidence: Evidence) -> Remedy | None:
    """Return what one thread in each rank would give, if ranks use several."""
    host, simulator = evidence.host, evidence.simulator
    if simulator is None or host.rank_cores is None:
        return None
    threads = float(simulator.costs.consume_cpu_ns.mean() / simulator.costs.consume_ns.mean())
    if threads < _RANK_THREADS:
        return None
    change = PipelineChange(rank_threads=1)
    prediction, basis = _predict_fewer_threads(evidence, simulator, change, threads)
    if prediction.speedup < WORTH_IT:
        return None
    return predicted_remedy(
        "rank-threads",
        "one thread a rank",
        prediction,
        "headrace run --apply rank_threads=1, or OMP_NUM_THREADS=1 before the start and "
        f"torch.set_num_threads(1). {basis}",
        (Override("rank_threads", 1),),
    )


def _predict_fewer_threads(
    evidence: Evidence,
    simulator: Simulator,
    change: PipelineChange,
    threads: float,
    calm: float = 1.0,
) -> tuple[Prediction, str]:
    """Return the prediction for fewer threads, where `threads` shared the work, and its basis.

    Threads spin while they wait for each other. All but one may; and if more threads want a core
    than there are, each spins while those it waits for are not on one, so that only one in `threads
    a core` makes progress. Workers whose BLAS had two threads took 6 to 8 times the CPU time of one
    thread where 5 to 10 threads wanted each core.

    At the low end, all of their time is work, or what the calmest batches took (`calm`, a share of
    the mean). On crowded cores next to nothing is at the high end: how much they spin depends on
    how short the work is between two waits, which is not recorded.
    """
    crowd = _threads_a_core(evidence)
    spun = max(threads, crowd, 1.0)
    likely = simulator.predict(replace(change, useful_share=1.0 / spun))
    least = simulator.predict(replace(change, useful_share=calm))
    low, high = min(least.low, likely.low), likely.high
    at_most = spun
    if crowd > _CROWDED_THREADS:
        at_most = max(MAX_SPIN_FACTOR, spun)
        high = max(simulator.predict(replace(change, useful_share=1.0 / at_most)).high, high)
    all_of_it = "all of it" if calm == 1.0 else f"{calm:.0%}, as in the calmest of the batches,"
    basis = (
        f"Of its threads' CPU time {1.0 / spun:.0%} is taken to be work, and the rest waiting for "
        "each other, spinning, as those of BLAS and OpenMP do on full cores; at the low end "
        f"{all_of_it} is work, at the high end {1.0 / at_most:.0%}."
    )
    return replace(likely, low=low, high=high), basis


def _threads_a_core(evidence: Evidence) -> float:
    """Return how many threads ran or waited for each core, with the cores that others used.

    How many threads of others wait is unknown in a container, which sees those of the whole
    machine.
    """
    host = evidence.host
    return (evidence.wanted_threads + min(host.foreign_cores, host.cores)) / host.cores


def auxiliary_hosts_remedy(evidence: Evidence) -> Remedy | None:
    """Return the fewest auxiliary hosts like this one that give nearly the most."""
    if evidence.simulator is None or not np.isfinite(evidence.host.cores):
        return None
    hosts, prediction = 1, _predict_with_hosts(evidence, 1)
    for more in range(2, _MAX_HOSTS + 1):
        better = _predict_with_hosts(evidence, more)
        if better.speedup < _LEAST_GAIN * prediction.speedup:
            break
        hosts, prediction = more, better
    if prediction.speedup < WORTH_IT or prediction.low <= 1.0:
        return None
    plural = "s" if hosts > 1 else ""
    used = evidence.offload.hosts if evidence.offload is not None else 0
    more_word = " more" if used else ""
    return predicted_remedy(
        "auxiliary-hosts",
        f"{hosts}{more_word} auxiliary host{plural} of {evidence.host.cores:g} cores",
        prediction,
        "Have CPU hosts beside this one make batches, an instance group of their own: headrace run "
        f"--engine ray --group gpu=1 --group cpu={used + hosts} --offload cpu (docs/clusters.md). "
        "Where none helped yet, a core there is taken to do four fifths to five fourths of what "
        "one here does.",
    )


def _predict_with_hosts(evidence: Evidence, hosts: int) -> Prediction:
    simulator, host = evidence.simulator, evidence.host
    assert simulator is not None  # checked by the caller
    # Auxiliary cores in use already.
    used = simulator.measured.pipeline.auxiliary * max(simulator.costs.busy_cores, 1.0)
    return with_auxiliary(simulator, used + hosts * host.cores / host.ranks)


_PINNED_SAVES = (1 / 3, 0.8)
"""Share of a copy from pageable memory that pinned memory saves, at least and at most.

Pageable memory goes through a buffer of the driver: 2 to 10 GB/s, where the link alone does 5 (PCIe
2) to 50 (PCIe 5)."""
_OVERLAP_SAVES = (0.5, 1.0)
"""Share of a copy that overlapping it with the step saves: both use the device's memory."""
_TWICE = 2.0


def faster_copies(
    evidence: Evidence, at: str, *, pinned: bool, blocking: bool
) -> tuple[Remedy, ...]:
    """Return what pinned memory would give, and asynchronous copies in addition.

    `at` is where the script copies, as " at train.py:40", or empty; `pinned`: all that it copies
    is pinned already; `blocking`: the script waits for some copies, or that is unknown.
    """
    remedies: list[Remedy] = []
    if not pinned:
        remedies.append(_pinning(evidence, at))
    if blocking:
        remedies.append(
            predicted_remedy(
                "asynchronous-copies",
                "asynchronous copies" if pinned else "pinned, asynchronous copies",
                # At most the rank goes on at once, and the copy is done when it is needed.
                _predict_less_copying(evidence, (0.0 if pinned else _PINNED_SAVES[0], 1.0)),
                f"Copy with .to(device, non_blocking=True){at}, from pinned memory.",
            )
        )
    return tuple(remedies)


def overlapped_copies(evidence: Evidence, at: str) -> Remedy:
    """Return what copying the next batch during the device's work on this one would give."""
    return predicted_remedy(
        "copies-beside",
        "copies beside the step",
        _predict_less_copying(evidence, _OVERLAP_SAVES),
        f"Copy the next batch{at} on a stream of its own while the device is at this one, as "
        "headrace.DataLoader(device=...) does. Half to all of the copy is taken to be hidden.",
    )


def _pinning(evidence: Evidence, at: str) -> Remedy:
    loader = evidence.loader
    if loader is not None and loader.pinned:
        loader = None  # what the script copies is not the loader's pinned batch
    if loader is not None:
        how = loader.advice("pin_memory", "True")
    else:
        how = f"Copy from page-locked memory{at}: .pin_memory() beforehand, in another thread."
    return predicted_remedy(
        "pinning",
        "pinned memory",
        _predict_less_copying(evidence, _PINNED_SAVES),
        f"{how} A copy from pinned memory is taken to last 1/5 to 2/3 as long.",
        loader.overridden("pin_memory", 1) if loader is not None else (),
    )


def bigger_batch_remedy(evidence: Evidence, idle_share: float) -> Remedy:
    """Return what twice the batch size would give a device that is idle for a share of the steps.

    A step's fixed cost is fitted to steps of different sizes, if there are some. Otherwise it is at
    least the time in which the device is idle, for the host's launches do not grow with the batch,
    and at most all of the step, for kernels that do not fill the device take no longer either.
    """
    fixed = fixed_cost_ns(evidence.steps)
    basis = "as steps of different sizes tell"
    if fixed is None:
        own = evidence.steps.wall_ns - evidence.steps.data_wait_ns
        each = float((own / evidence.steps.batches).mean())
        fixed = (each * idle_share, each)
        basis = "from the time in which the device is idle to all of it"
    return predicted_remedy(
        "bigger-batch",
        "twice the batch size",
        predict_twice_the_batch(evidence, fixed),
        "Raise batch_size while memory allows it, or use torch.compile or CUDA graphs. What a step "
        f"costs whatever its batch is taken to be {fixed[0] / 1e6:.1f} to {fixed[1] / 1e6:.1f} ms, "
        f"{basis}.",
    )


def predict_twice_the_batch(evidence: Evidence, fixed_ns: tuple[float, float]) -> Prediction:
    """Return what twice the batch size would give, by a batch's fixed cost, least and most."""
    if evidence.simulator is None:
        # Two batches in one pay the fixed cost once.
        least, most = (evidence.steps.batches * fixed * (1 - 1 / _TWICE) for fixed in fixed_ns)
        return predict_without(evidence, least, most)
    least_change, most_change = (
        PipelineChange(batch_factor=_TWICE, fixed_consume_ns=fixed) for fixed in fixed_ns
    )
    return evidence.simulator.predict(least_change, most_change)


def _predict_less_copying(evidence: Evidence, saved: tuple[float, float]) -> Prediction:
    copy = evidence.steps.copy_ns
    if evidence.simulator is None:
        return predict_without(evidence, copy * saved[0], copy * saved[1])
    copy_ns = float((copy / evidence.steps.batches).mean())
    least, most = (PipelineChange(consume_saved_ns=copy_ns * share) for share in saved)
    return evidence.simulator.predict(least, most)
