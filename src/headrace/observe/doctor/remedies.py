"""Remedies that several rules propose, with predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.core.overrides import Override
from headrace.observe.doctor.evidence import CRITICAL, Evidence, TrainingLoader
from headrace.observe.doctor.findings import Cause, Remedy
from headrace.observe.doctor.stack_activity import is_lock
from headrace.observe.doctor.stack_samples import StackSample, find_hotspot, off_cpu_ns
from headrace.observe.doctor.transform_shares import transform_at
from headrace.observe.whatif.measured_pipeline import MeasuredPipeline, shard_reading_ns
from headrace.observe.whatif.prediction import (
    PipelineChange,
    Prediction,
    Simulator,
    enough_workers,
    interval_width,
)
from headrace.observe.whatif.simulation import Pipeline
from headrace.observe.whatif.tables import Floats

WORTH_IT = 1.05
"""Least predicted speed-up of a remedy that is proposed."""
_MAX_WORKERS = 32
_COUNTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32)
COLLATE_NAME = "collate_fn"
"""Name of collating in the table `transforms`."""
_DRAWINGS, _SEED = 200, 21
_DEVICE_FASTER = (20.0, 100.0)
"""Speed of a device at a transform over that of one core, at least and at most."""
_MAX_DRAWN = 10_000
"""Most steps drawn one by one; more are drawn in groups of neighbours to limit memory."""


def predicted_remedy(
    name: str,
    change: str,
    prediction: Prediction,
    how: str,
    overrides: tuple[Override, ...] = (),
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
    waits = evidence.work is not None and evidence.work.cpu_share < 0.5
    cores = simulator.measured.pipeline.cores
    # Workers that wait may outnumber the cores; those that compute would only share them.
    most = _MAX_WORKERS if waits else min(max(int(np.ceil(min(cores, 1e6))), 1), _MAX_WORKERS)
    counts = [count for count in _COUNTS if loader.workers < count <= most]
    found = enough_workers(simulator, counts)
    if found is None or found[1].speedup < WORTH_IT or found[1].low <= 1.0:
        return None
    count, prediction = found
    before = f" instead of {loader.workers}" if loader.workers else " instead of none"
    plural = "s" if count > 1 else ""
    return (
        predicted_remedy(
            "workers",
            f"{count} worker{plural}{before}",
            prediction,
            f"Give the DataLoader{loader.place} "
            f"num_workers={count}.{_stream_split_advice(loader, count)}",
            loader.overridden("num_workers", count),
        ),
        prediction,
    )


def more_workers_remedies(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return the remedy of more workers, if it helps."""
    found = more_workers_remedy(evidence)
    return (found[0],) if found is not None else ()


def _stream_split_advice(loader: TrainingLoader, workers: int) -> str:
    """Return what else an iterable dataset needs, since each torch worker iterates all of it."""
    if loader.style != "iterable" or loader.kind != "torch" or workers < 2:
        return ""
    return (
        " Its dataset is a stream: each worker iterates over all of it, so every sample comes "
        f"{workers} times, unless its __iter__ gives each a part by "
        "torch.utils.data.get_worker_info()."
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
    return (
        predicted_remedy(
            "loader",
            f"a DataLoader with {count} worker{'s' if count > 1 else ''}",
            prediction,
            "Put the making of one sample into a Dataset's __getitem__, and iterate over "
            f"DataLoader(dataset, num_workers={count}).",
        ),
    )


def lock_samples(evidence: Evidence) -> tuple[StackSample, ...]:
    """Return the stack samples in which making a batch waits for a lock."""
    return tuple(sample for sample in evidence.making_samples if is_lock(sample))


def lock_wait_share(evidence: Evidence) -> float:
    """Return the share of the time of making batches that waits for locks, 0 to 1."""
    total = sum(sample.wall_ns for sample in evidence.making_samples)
    return off_cpu_ns(lock_samples(evidence)) / max(total, 1.0)


def faster_code_remedies(evidence: Evidence, cause: Cause, name: str = "") -> tuple[Remedy, ...]:
    """Return what faster code in the workers would give, no code, and code on the device."""
    name = name or cause.name or cause.place
    if evidence.simulator is None or cause.share <= 0:
        return ()
    where = f" ({cause.place})" if cause.place else ""
    left = max(1.0 - cause.share, 0.01)
    half = evidence.simulator.predict(PipelineChange(service_factor=1.0 - cause.share / 2))
    none = evidence.simulator.predict(PipelineChange(service_factor=left))
    remedies = [
        predicted_remedy(
            "faster-code",
            f"{name} twice as fast",
            half,
            f"Look for a cheaper way to do the same{where}, or do it on smaller data.",
        ),
        predicted_remedy(
            "move-code",
            f"no {name} in the workers",
            none,
            f"Do it once before training, or leave it out{where}.",
        ),
    ]
    if cause.transform and cause.transform != COLLATE_NAME:
        remedies.append(
            predicted_remedy(
                "device-transform",
                f"{name} on the accelerator",
                _predict_on_device(evidence.simulator, cause.share),
                f"Do it on whole batches after the copy{where}: "
                "headrace.DataLoader(device_transform=...), or in the training loop. The device "
                "is taken to need 1/100 to 1/20 of its CPU time.",
            )
        )
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
    evidence: Evidence, saved_ns: Floats, most_ns: Floats | None = None
) -> Prediction:
    """Return what it would give if each step took so much less, or up to `most_ns` less."""
    steps = evidence.steps.wall_ns
    begins = np.arange(min(len(steps), _MAX_DRAWN)) * len(steps) // min(len(steps), _MAX_DRAWN)
    wall, saved_ns = np.add.reduceat(steps, begins), np.add.reduceat(saved_ns, begins)
    bounds = [saved_ns] if most_ns is None else [saved_ns, np.add.reduceat(most_ns, begins)]
    drawn = np.random.default_rng(_SEED).integers(len(wall), size=(_DRAWINGS, len(wall)))
    before = wall[drawn].sum(axis=1)
    speedups = np.sort(
        np.concatenate(
            [before / np.maximum(before - ns[drawn].sum(axis=1), before * 0.01) for ns in bounds]
        )
    )
    low, middle, high = np.percentile(speedups, (5, 50, 95))
    left = evidence.steps.data_wait_ns.sum() / max(float((wall - saved_ns).sum()), 1.0)
    return Prediction(
        speedup=float(middle),
        low=max(float(low) - interval_width(float(low)), 0.0),
        high=float(high) + interval_width(float(high)),
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
        transform = transform_at(place, evidence.transforms)
        if transform is None or off_cpu_only:
            return place.cause(transform.name if transform else "")
        # The whole transform is named, so its share counts, not that of one of its lines.
        return replace(place.cause(transform.name), share=max(place.share, transform.share))
    if evidence.transforms and not evidence.making_samples:
        return evidence.transforms[0].cause()
    return None
