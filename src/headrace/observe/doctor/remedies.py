"""Remedies that several rules propose, with what they would give."""

from __future__ import annotations

import numpy as np

from headrace.core.overrides import Override
from headrace.observe.doctor.evidence import CRITICAL, Evidence
from headrace.observe.doctor.model import Cause, Remedy
from headrace.observe.doctor.places import is_lock
from headrace.observe.doctor.stacks import Sighting, hottest, waiting_ns
from headrace.observe.doctor.transforms import transform_at
from headrace.observe.whatif.prediction import Change, Prediction, enough_workers
from headrace.observe.whatif.tables import Floats

WORTH_IT = 1.05
"""A remedy that promises less is not proposed."""
_MOST_WORKERS = 32
_COUNTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32)
_DRAWINGS, _SEED = 200, 21
_MOST_DRAWN = 10_000
"""More steps than this are drawn in groups of neighbours, or a day of them would not fit."""


def predicted(
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


def more_workers(evidence: Evidence) -> tuple[Remedy, Prediction] | None:
    """Return the fewest workers that give nearly the most, where more give anything."""
    simulator, loader = evidence.simulator, evidence.loader
    if simulator is None or loader is None:
        return None
    if lock_wait_share(evidence) >= CRITICAL:  # the simulation knows of no locks
        return None
    waits = evidence.work is not None and evidence.work.cpu_share < 0.5
    cores = simulator.measured.pipeline.cores
    # Workers that wait may outnumber the cores; those that compute only take them from each other.
    most = _MOST_WORKERS if waits else min(max(int(np.ceil(min(cores, 1e6))), 1), _MOST_WORKERS)
    counts = [count for count in _COUNTS if loader.workers < count <= most]
    found = enough_workers(simulator, counts)
    if found is None or found[1].speedup < WORTH_IT or found[1].low <= 1.0:
        return None
    count, prediction = found
    before = f" instead of {loader.workers}" if loader.workers else " instead of none"
    plural = "s" if count > 1 else ""
    return (
        predicted(
            "workers",
            f"{count} worker{plural}{before}",
            prediction,
            f"Give the DataLoader{loader.place} num_workers={count}.",
            loader.overridden("num_workers", count),
        ),
        prediction,
    )


def taking_locks(evidence: Evidence) -> tuple[Sighting, ...]:
    """Return where the making of batches takes a lock."""
    return tuple(sighting for sighting in evidence.making if is_lock(sighting))


def lock_wait_share(evidence: Evidence) -> float:
    """Return the share of the time of making batches that waits for locks, 0 to 1."""
    total = sum(sighting.wall_ns for sighting in evidence.making)
    return waiting_ns(taking_locks(evidence)) / max(total, 1.0)


def faster(evidence: Evidence, cause: Cause, name: str) -> tuple[Remedy, ...]:
    """Return what a faster piece of the workers' code would give, and its absence."""
    if evidence.simulator is None or cause.share <= 0:
        return ()
    where = f" ({cause.place})" if cause.place else ""
    half = evidence.simulator.predict(Change(service_factor=1.0 - cause.share / 2))
    none = evidence.simulator.predict(Change(service_factor=max(1.0 - cause.share, 0.01)))
    remedies = (
        predicted(
            "faster-code",
            f"{name} twice as fast",
            half,
            f"Look for a cheaper way to do the same{where}, or do it on smaller data.",
        ),
        predicted(
            "move-code",
            f"no {name} in the workers",
            none,
            f"Do it once before training, or on the accelerator in batches{where}.",
        ),
    )
    return tuple(
        remedy
        for remedy in remedies
        if remedy.predicted_speedup is not None and remedy.predicted_speedup >= WORTH_IT
    )


def less_waiting(evidence: Evidence, share: float) -> Prediction | None:
    """Return what it would give if workers waited only for 10 to 50 % of a share of their time."""
    work, simulator = evidence.work, evidence.simulator
    if work is None or simulator is None:
        return None
    all_waiting = max(1.0 - work.cpu_share, 0.01)
    part = min(share / all_waiting, 1.0)
    return simulator.predict_between(
        Change(wait_factor=1.0 - 0.5 * part), Change(wait_factor=1.0 - 0.9 * part)
    )


def without(evidence: Evidence, saved_ns: Floats) -> Prediction:
    """Return what it would give if each step took so much less; the steps drawn again.

    Args:
        evidence: What is known.
        saved_ns: Of each step that counts.
    """
    steps = evidence.steps.wall_ns
    begins = np.arange(min(len(steps), _MOST_DRAWN)) * len(steps) // min(len(steps), _MOST_DRAWN)
    wall, saved_ns = np.add.reduceat(steps, begins), np.add.reduceat(saved_ns, begins)
    drawn = np.random.default_rng(_SEED).integers(len(wall), size=(_DRAWINGS, len(wall)))
    before, saved = wall[drawn].sum(axis=1), saved_ns[drawn].sum(axis=1)
    speedups = before / np.maximum(before - saved, before * 0.01)
    low, middle, high = np.percentile(speedups, (5, 50, 95))
    left = evidence.steps.phase_ns("data_wait").sum() / max(float((wall - saved_ns).sum()), 1.0)
    return Prediction(
        speedup=float(middle), low=float(low), high=float(high), wait_share=min(float(left), 1.0)
    )


def making_cause(
    evidence: Evidence, sightings: tuple[Sighting, ...], *, weigh_waiting: bool = False
) -> Cause | None:
    """Return the code in which the making of batches, or its waiting, spends most time.

    Args:
        evidence: What is known.
        sightings: Those of `evidence.making` that are in question; shares are of all of them.
        weigh_waiting: Count time off the CPU alone.
    """
    total = sum(sighting.wall_ns for sighting in evidence.making)
    place = hottest(sightings, total, weigh_waiting=weigh_waiting)
    if place is not None:
        return place.cause(transform_at(place, evidence.transforms))
    if evidence.transforms and not evidence.making:
        return evidence.transforms[0].cause()
    return None
