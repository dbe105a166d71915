"""What was measured as the simulation plays it: drawn again, and fitted to the measured time.

CPU time was counted exactly. What else the workers wait for is scaled until the simulation gives
the measured time; how far it was off before says how much a prediction is to be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from headrace.observe.whatif.measured import Measured
from headrace.observe.whatif.simulation import FULL, Load, simulate
from headrace.observe.whatif.tables import Floats

_DRAWINGS, _FEWEST_BATCHES, _SEED = 40, 160, 20
_SCALES = np.geomspace(0.25, 4.0, 25)
_UNSCALED = len(_SCALES) // 2
_AS_GOOD = 0.01
"""Scales that come so close to the measured time as the best one fit as well."""
_CALM_PERCENT = 10
"""On full cores so many of the steps are taken not to have waited for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Measured costs with which the simulation gives the measured time.

    Attributes:
        load: The costs.
        calibration: Measured time a batch over simulated, before anything was fitted.
    """

    load: Load
    calibration: float


def fit(measured: Measured) -> Fitted:
    """Return the costs of what was measured, drawn again and fitted."""
    drawn, pipeline = _draw(measured), measured.pipeline
    measured_ns = float(measured.period_ns.mean())
    used_ns = float(drawn.demand_ns.mean() + drawn.consume_cpu_ns.mean())
    full = used_ns >= FULL * measured_ns * pipeline.cores
    periods = [simulate(pipeline, _scaled(drawn, scale)).period_ns.mean() for scale in _SCALES]
    ratios = np.array(periods) / measured_ns
    load = _scaled(drawn, _best_scale(ratios, full=full))
    if full:  # the rank too waited for a core: in what steps took beyond the calmest
        calm_ns = float(np.percentile(measured.consume_ns, _CALM_PERCENT))
        load = replace(load, queue_ns=np.maximum(load.consume_ns - calm_ns, 0.0))
    return Fitted(load=load, calibration=float(1.0 / ratios[_UNSCALED]))


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
        auxiliary_factor=measured.auxiliary_factor,
    )


def _scaled(load: Load, scale: float) -> Load:
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
    fits = np.flatnonzero(error <= error.min() + _AS_GOOD)
    closest = int(fits[np.abs(np.log(_SCALES[fits])).argmin()])
    best = int(fits[0]) if full else closest
    if best in {0, _UNSCALED, len(_SCALES) - 1} or ratios[best + 1] <= ratios[best - 1]:
        return float(_SCALES[best])
    near = slice(best - 1, best + 2)
    return float(np.interp(1.0, ratios[near], _SCALES[near]))
