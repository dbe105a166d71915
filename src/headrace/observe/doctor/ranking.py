"""The order of findings: by severity and seconds lost, the specific cause before the general."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import SEVERITIES, Finding

DATA_RULES = frozenset(
    {
        "cpu-bound-worker",
        "slow-storage",
        "lock-contention",
        "too-few-workers",
        "oversubscribed-threads",
        "workers-restarted",
        "shallow-prefetch",
        "slow-collate",
        "slow-transfer",
        "cpu-starved-by-ranks",
    }
)
"""Rules that say why data is late: `data-wait` says no more than they do."""
_DOMINATES = 0.5
"""A piece of code with this share of the workers' time is the cause rather than their number."""

_LITTLE = 0.01
"""What explains less of step time than this is not told."""

_SPECIFIC_FIRST = (
    ("cpu-starved-by-ranks", "cpu-bound-worker"),
    ("cpu-starved-by-ranks", "too-few-workers"),
    ("oversubscribed-threads", "cpu-bound-worker"),
    ("slow-storage", "too-few-workers"),
    ("slow-collate", "too-few-workers"),
    ("lock-contention", "too-few-workers"),
    ("lock-contention", "slow-storage"),
    ("shallow-prefetch", "too-few-workers"),
    ("slow-transfer", "too-few-workers"),
    ("cpu-starved-by-ranks", "sync-bound"),  # ranks whose data is late by turns wait in the sync
    ("slow-rank", "sync-bound"),
    ("slow-rank", "cpu-bound-worker"),
    ("device-sync", "step-outliers"),
)
"""Pairs: where both are found, the first explains the second."""


def rank(findings: Sequence[Finding], evidence: Evidence) -> tuple[Finding, ...]:
    """Return the findings worth telling, worst first.

    Args:
        findings: What the rules found, in any order.
        evidence: What they found it in.
    """
    rules = {finding.rule for finding in findings if not finding.foretold}
    kept = [
        finding
        for finding in findings
        if not (finding.rule == "data-wait" and (rules & DATA_RULES or _one_rank_waits(findings)))
        and not (finding.rule == "compute-bound" and _something_wrong(findings))
        and not (finding.rule in DATA_RULES and _is_little(finding, evidence))
    ]
    # Severity follows from seconds, but for what costs none yet, as memory that grows, and for what
    # is paid once, as a slow start.
    kept.sort(key=lambda each: (-SEVERITIES.index(each.severity), -each.seconds_lost, each.rule))
    pairs = (*_SPECIFIC_FIRST, *_conditional(kept, evidence))
    for _ in kept:  # a move may undo another pair's order, so go on until all hold
        for first, second in pairs:
            _move_before(kept, first, second)
    return tuple(kept)


def _is_little(finding: Finding, evidence: Evidence) -> bool:
    if finding.foretold:
        return False
    return finding.seconds_lost < _LITTLE * evidence.steps.total_seconds


def _one_rank_waits(findings: Sequence[Finding]) -> bool:
    """Whether one rank's wait for data is told already."""
    return any(
        finding.rule == "slow-rank" and finding.evidence["phase"] == "data_wait"
        for finding in findings
    )


def _something_wrong(findings: Sequence[Finding]) -> bool:
    return any(finding.severity != "info" for finding in findings)


def _conditional(findings: Sequence[Finding], evidence: Evidence) -> list[tuple[str, str]]:
    by_rule = {finding.rule: finding for finding in findings}
    pairs: list[tuple[str, str]] = []
    worker, few = by_rule.get("cpu-bound-worker"), by_rule.get("too-few-workers")
    if worker is not None and few is not None:
        dominates = worker.cause is not None and worker.cause.share >= _DOMINATES
        helpless = evidence.loader is not None and evidence.loader.workers <= 1
        solves = few.seconds_lost >= 0.8 * evidence.flow_wait_seconds
        # Where nobody helps the rank yet and cores are free, that is what is wrong first.
        few_first = not evidence.cores_full and ((helpless and solves) or not dominates)
        pair = ("too-few-workers", "cpu-bound-worker")
        pairs.append(pair if few_first else (pair[1], pair[0]))
    if evidence.work is not None and evidence.work.hands_over_slowly:
        pairs.append(("slow-transfer", "cpu-bound-worker"))
    collate = by_rule.get("slow-collate")
    if worker is not None and collate is not None:
        same = worker.cause is not None and "collate" in worker.cause.function.lower()
        larger = worker.cause is None or collate.evidence["collate_share"] >= worker.cause.share  # type: ignore[operator]
        if same or larger:
            pairs.append(("slow-collate", "cpu-bound-worker"))
    return pairs


def _move_before(findings: list[Finding], first: str, second: str) -> None:
    places = {finding.rule: place for place, finding in enumerate(findings)}
    if first in places and second in places and places[first] > places[second]:
        findings.insert(places[second], findings.pop(places[first]))
