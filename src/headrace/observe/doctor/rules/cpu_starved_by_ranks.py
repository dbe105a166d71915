"""The rule cpu-starved-by-ranks: the ranks of a host want more cores than it has."""

from __future__ import annotations

from dataclasses import replace

from headrace.observe.doctor.cpu_remedies import calm_share
from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.findings import Finding
from headrace.observe.doctor.remedies import making_cause
from headrace.observe.doctor.rule import rule
from headrace.observe.doctor.scaling_forecast import (
    ScalingForecast,
    evidence_at_ranks,
    feeding_remedies,
    forecast_ranks,
    likely_ranks,
)
from headrace.observe.whatif.prediction import PipelineChange, Simulator
from headrace.observe.whatif.scaling import THREADED_FACTOR, are_threads_crowded


@rule
def check_cpu_starved_by_ranks(evidence: Evidence) -> Finding | None:
    """The ranks of a host together ask for more cores than it has; one alone would be fed.

    Fires where data wait is at least 5 % of step time, two or more ranks share a host whose
    cores are full, and the simulation of one rank alone on it waits for less than half of that.
    Where workers run several threads, and those of one rank alone each have a core, its workers
    are assumed to need the CPU time of the calmest batches, in which no thread spins.

    It is also predicted from a run of one rank that waits for less than 5 %: where the
    simulation of as many ranks as the host has accelerators (2, 4 or 8, but no more than cores,
    where it has none) waits for at least 10 %, and its 90 % interval lies above 5 %. Where
    threads of the workers would outnumber the cores, and so may spin, the interval is wide:
    then it "may starve" from 10 % on. Either costs nothing yet, so its severity is "info".
    Fires only where the rank's own use of the cores was recorded.
    """
    if evidence.host.ranks < 2:
        return _forecast_from_one_rank(evidence)
    host, simulator = evidence.host, evidence.simulator
    if not evidence.starved or simulator is None or not evidence.cores_full:
        return None
    alone = simulator.predict(_one_rank(evidence, simulator))
    if alone.wait_share > simulator.before.wait_share / 2:
        return None
    cause = making_cause(evidence, evidence.making_samples)
    seconds = evidence.waits_solved(alone)
    return evidence.finding(
        f"{host.ranks} ranks starve on {host.cores:g} cores, where one alone would be fed",
        seconds,
        {
            "ranks": host.ranks,
            "cores": host.cores,
            "busy_cores": host.busy_cores,
            "data_wait_share": evidence.steady_steps.data_wait_share,
            "data_wait_share_alone": alone.wait_share,
            "cpu_ms_a_batch": float(simulator.measured.demand_ns.mean() / 1e6),
        },
        cause=cause,
        remedies=feeding_remedies(evidence, cause),
    )


def _one_rank(evidence: Evidence, simulator: Simulator) -> PipelineChange:
    """Return the change to one rank alone, whose workers' threads may have no reason to spin.

    Threads spin as long as others have the cores that they wait for. If workers have one thread
    each, batches with more CPU time are larger ones.
    """
    alone, work = PipelineChange(ranks=1), evidence.work
    if work is None or work.threads < THREADED_FACTOR:
        return alone
    calm = PipelineChange(ranks=1, spin_factor=calm_share(work))
    return alone if are_threads_crowded(simulator.changed(calm)) else calm


def _forecast_from_one_rank(evidence: Evidence) -> Finding | None:
    """Return the forecast finding for more ranks from the run of one rank."""
    if evidence.others_fill_cores:
        return None
    for ranks in likely_ranks(evidence):
        forecast = forecast_ranks(evidence, ranks, remedies=False)
        if forecast is None:
            return None
        if forecast.starves or forecast.may_starve:
            remedies = feeding_remedies(evidence_at_ranks(evidence, ranks), forecast.cause)
            return _forecast_finding(evidence, replace(forecast, remedies=remedies))
    return None


def _forecast_finding(evidence: Evidence, forecast: ScalingForecast) -> Finding:
    now, then = forecast.now.wait_share, forecast.then.wait_share
    likely = "starve" if forecast.starves else "may starve"
    interval = "" if forecast.starves else f" ({then.low:.0%} to {then.high:.0%})"
    return evidence.finding(
        f"at {forecast.then.ranks} ranks this host's {forecast.cores:g} cores {likely}: "
        f"data wait {now.value:.0%} -> {then.value:.0%}{interval}",
        0.0,
        {
            "ranks": forecast.then.ranks,
            "cores": forecast.cores,
            "data_wait_share": now.value,
            "data_wait_share_then": then.value,
            "data_wait_share_then_low": then.low,
            "data_wait_share_then_high": then.high,
            "scaling_efficiency_then": forecast.then.efficiency.value,
            "cpu_ms_a_batch": forecast.cpu_ms_a_batch,
        },
        cause=forecast.cause,
        remedies=forecast.remedies,
        severity="info",
        forecast=True,
    )
