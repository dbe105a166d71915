"""The ranks of a host together ask for more cores than it has; one alone would be fed.

Fires where data wait is at least 5 % of step time, two or more ranks share a host whose cores are
full, and the simulation of one rank alone on it waits for less than half of that.
"""

from __future__ import annotations

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Finding
from headrace.observe.doctor.remedies import faster, making_cause
from headrace.observe.whatif.prediction import Change

RULE = "cpu-starved-by-ranks"


def check(evidence: Evidence) -> Finding | None:
    """Return the finding, where the rule fires."""
    host, simulator = evidence.host, evidence.simulator
    if not evidence.starved or simulator is None or host.ranks < 2 or not evidence.cores_full:
        return None
    alone = simulator.predict(Change(ranks=1))
    if alone.wait_share > simulator.wait_share() / 2:
        return None
    cause = making_cause(evidence, evidence.making)
    seconds = evidence.waits_solved(alone.wait_share)
    return Finding(
        rule=RULE,
        severity=evidence.severity(seconds),
        title=f"{host.ranks} ranks starve on {host.cores:g} cores, where one alone would be fed",
        seconds_lost=seconds,
        evidence={
            "ranks": host.ranks,
            "cores": host.cores,
            "busy_cores": host.busy_cores,
            "data_wait_share": evidence.flowing.share("data_wait"),
            "data_wait_share_alone": alone.wait_share,
            "cpu_ms_a_batch": float(simulator.measured.demand_ns.mean() / 1e6),
        },
        cause=cause,
        remedies=faster(evidence, cause, cause.name or cause.place) if cause else (),
    )
