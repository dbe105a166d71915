"""Forecast of a run with more ranks on its host, and of remedies there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace.observe.doctor.evidence import SERIOUS, WARNING, Evidence
from headrace.observe.doctor.findings import Cause, Remedy, as_json, rounded
from headrace.observe.doctor.remedies import (
    auxiliary_hosts_remedy,
    faster_code_remedies,
    making_cause,
    more_workers_remedies,
    one_thread_a_rank_remedy,
    one_thread_a_worker_remedy,
)
from headrace.observe.whatif.prediction import (
    THREADED_FACTOR,
    Estimate,
    ScaledRun,
    scale_ranks,
    with_ranks,
)

_USUAL_RANKS = (2, 4, 8)
"""Numbers of ranks for which a host without accelerators may be intended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingForecast:
    """A run as measured, and predicted with another number of ranks on its host."""

    now: ScaledRun  # the measured run, by the same arithmetic
    then: ScaledRun
    cores: float
    foreign_cores: float  # used by other jobs: assumed to be taken then, too
    cpu_ms_a_batch: float  # for making it, and of the rank's step with it
    samples_a_batch: float | None  # None if not recorded
    cause: Cause | None  # where making batches spends most time; None if not sampled
    remedies: tuple[Remedy, ...]  # each relative to `then`

    @property
    def starves(self) -> bool:
        """Whether the loader keeps up now, and would not then by the whole interval."""
        return self._would_starve and self.then.wait_share.low >= WARNING

    @property
    def may_starve(self) -> bool:
        """Whether it might not then, with a wide interval because threads may spin."""
        return self._would_starve and self.spins

    @property
    def spins(self) -> bool:
        """Whether workers' threads would outnumber the cores, and did not when measured."""
        return self.then.spin_factor.high > 1

    @property
    def _would_starve(self) -> bool:
        return self.now.wait_share.value < WARNING and self.then.wait_share.value >= SERIOUS

    def samples_per_s(self, scale: ScaledRun) -> Estimate | None:
        """Return the samples a second of all ranks together; None if they were not counted."""
        if self.samples_a_batch is None:
            return None
        return scale.batches_per_s.times(self.samples_a_batch)

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as JSON, described by docs/forecast.schema.json."""
        return {
            "cores": rounded(self.cores),
            "foreign_cores": rounded(self.foreign_cores),
            "cpu_ms_a_batch": rounded(self.cpu_ms_a_batch),
            "now": self._scaled_json(self.now),
            "then": self._scaled_json(self.then),
            "remedies": as_json(self.remedies),
        }

    def _scaled_json(self, scale: ScaledRun) -> Any:
        return as_json(
            {
                "ranks": scale.ranks,
                "samples_per_s": self.samples_per_s(scale),
                "batches_per_s": scale.batches_per_s,
                "scaling_efficiency": scale.efficiency,
                "data_wait_share": scale.wait_share,
                "worker_cpu_factor": scale.spin_factor,
            }
        )


def forecast_ranks(
    evidence: Evidence, ranks: int, *, remedies: bool = True
) -> ScalingForecast | None:
    """Return the forecast for a number of ranks on the host; None with too few records."""
    simulator, work = evidence.simulator, evidence.work
    if not evidence.enough or simulator is None or work is None or not work.cpu_measured:
        return None
    if evidence.host.rank_cores is None:  # all other use of the host would be taken for the rank's
        return None
    wait_share = evidence.steady_steps.data_wait_share
    costs, cause = simulator.costs, making_cause(evidence, evidence.making_samples)
    samples = evidence.steps.rows["samples"].astype(np.float64)
    each = (samples / evidence.steps.batches)[samples > 0]
    return ScalingForecast(
        now=scale_ranks(simulator, evidence.host.ranks, wait_share),
        then=scale_ranks(simulator, ranks, wait_share),
        cores=evidence.host.cores,
        foreign_cores=evidence.host.foreign_cores,
        cpu_ms_a_batch=float(costs.demand_ns.mean() + costs.consume_cpu_ns.mean()) / 1e6,
        samples_a_batch=float(each.mean()) if len(each) else None,
        cause=cause,
        remedies=feeding_remedies(evidence_at_ranks(evidence, ranks), cause) if remedies else (),
    )


def evidence_at_ranks(evidence: Evidence, ranks: int) -> Evidence:
    """Return the evidence as it would be with a number of ranks on the host."""
    simulator, host = evidence.simulator, evidence.host
    assert simulator is not None  # checked by the caller
    other = with_ranks(simulator, ranks)
    each = float(other.costs.demand_ns.mean() + other.costs.consume_cpu_ns.mean())
    used = each * ranks / float(other.before.period_ns.mean()) + host.foreign_cores
    return replace(
        evidence,
        simulator=other,
        host=replace(host, ranks=ranks, busy_cores=min(used, host.cores)),
        # That of others does not change.
        wanted_threads=evidence.wanted_threads * ranks / host.ranks,
    )


def feeding_remedies(evidence: Evidence, cause: Cause | None) -> tuple[Remedy, ...]:
    """Return what would feed a host's ranks better, first the changes without code edits."""
    threaded = evidence.work is not None and evidence.work.threads >= THREADED_FACTOR
    found = (
        *more_workers_remedies(evidence),
        one_thread_a_worker_remedy(evidence) if threaded else None,
        one_thread_a_rank_remedy(evidence),
        *(faster_code_remedies(evidence, cause) if cause is not None else ()),
        auxiliary_hosts_remedy(evidence) if evidence.cores_short else None,
    )
    return tuple(remedy for remedy in found if remedy is not None)


def likely_ranks(evidence: Evidence) -> tuple[int, ...]:
    """Return the likely numbers of ranks on the host: one for each accelerator."""
    host = evidence.host
    if host.accelerators:
        return (host.accelerators,) if host.accelerators > host.ranks else ()
    return tuple(ranks for ranks in _USUAL_RANKS if host.ranks < ranks <= host.cores)
