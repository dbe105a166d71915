"""Findings are ranked by seconds lost, a cause before its symptom, with three exceptions."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest

from headrace.observe.doctor.diagnosis import main_remedy, make_verdict, rank_findings
from headrace.observe.doctor.evidence import Evidence, gather_evidence
from headrace.observe.doctor.findings import Fact, Finding, Remedy, Severity
from run_tables import MS, Run, play


def finding(rule: str, seconds: float, severity: Severity = "warning", **evidence: Fact) -> Finding:
    return Finding(
        rule=rule, severity=severity, title=rule, seconds_lost=seconds, evidence=evidence
    )


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return gather_evidence(play(Run(workers=2, service_ms=30, batches=400, busy_cores=3)))


def with_remedy(found: Finding, *speedups: float | None) -> Finding:
    """A finding with a remedy for each predicted speed-up; None: it is not predicted."""
    remedies = tuple(
        Remedy(name="other", change="another way", predicted_speedup=each, how="")
        for each in speedups
    )
    return replace(found, remedies=remedies)


def order(evidence: Evidence, *findings: Finding) -> list[str]:
    return [each.rule for each in rank_findings(findings, evidence)]


def test_seconds_decide_and_not_what_a_rule_calls_them(evidence: Evidence):
    ranked = order(
        evidence,
        finding("sync-bound", 1.0, "serious"),
        finding("unequal-steps", 3.0),
        finding("step-outliers", 2.0, "critical"),
    )
    assert ranked == ["unequal-steps", "step-outliers", "sync-bound"]


@pytest.mark.parametrize(
    ("cause", "symptom"),
    [
        ("device-sync", "small-batch"),
        ("blocking-copy", "small-batch"),
        ("small-files", "too-few-workers"),
        ("lock-contention", "small-files"),
        ("cpu-starved-by-ranks", "cpu-bound-worker"),
    ],
)
def test_a_cause_comes_before_a_symptom_that_costs_more(
    evidence: Evidence, cause: str, symptom: str
):
    found = [finding(symptom, 5.0), finding(cause, 1.0, phase="forward")]
    assert order(evidence, *found) == [cause, symptom]


@pytest.mark.parametrize(
    ("phase", "first"), [("data_wait", "cpu-starved-by-ranks"), ("forward", "slow-rank")]
)
def test_ranks_that_starve_wait_unequally_long(evidence: Evidence, phase: str, first: str):
    found = finding("slow-rank", 4.0, phase=phase), finding("cpu-starved-by-ranks", 3.0)
    assert order(evidence, *found)[0] == first


@pytest.mark.parametrize(("slow_s", "first"), [(4.0, "slow-rank"), (1.0, "sync-bound")])
def test_a_slow_rank_explains_no_more_sync_than_it_costs(
    evidence: Evidence, slow_s: float, first: str
):
    slow = finding("slow-rank", slow_s, phase="forward")
    assert order(evidence, finding("sync-bound", 5.0), slow)[0] == first


def test_small_files_say_why_storage_is_slow(evidence: Evidence):
    found = [finding("slow-storage", 5.0, "critical"), finding("small-files", 4.0, "critical")]
    assert order(evidence, *found) == ["small-files"]


def test_memory_that_grows_stands_among_what_is_serious(evidence: Evidence):
    total = evidence.steps.total_seconds
    ranked = order(
        evidence,
        finding("step-outliers", 0.09 * total),
        finding("memory-growth", 0.0, "serious"),
        finding("sync-bound", 0.11 * total, "serious"),
    )
    assert ranked == ["sync-bound", "memory-growth", "step-outliers"]


def test_what_is_paid_once_is_never_before_what_is_serious(evidence: Evidence):
    total = evidence.steps.total_seconds
    ranked = order(
        evidence,
        finding("step-outliers", 0.09 * total),
        finding("slow-start", 3.0 * total),
        finding("sync-bound", 0.11 * total, "serious"),
    )
    assert ranked == ["sync-bound", "slow-start", "step-outliers"]
    for share, first in ((0.2, "slow-start"), (0.6, "sync-bound")):
        late = finding("slow-start", 3.0 * total, "serious", share_of_all_time=0.75)
        step = finding("sync-bound", share * total, evidence.severity(share * total))
        assert order(evidence, late, step)[0] == first


def test_what_others_on_the_host_cause_comes_after_what_the_script_does():
    tables = play(Run(workers=2, service_ms=3, ready_ms=4.0, worker_cpu=0.8, cores=2, busy_cores=2))
    for pid, percent in ((100, 20.0), (1000, 5.0), (1001, 5.0)):
        for t_ms in range(0, 4000, 500):
            tables.add("process_usage", t_ns=t_ms * MS + pid, pid=pid, cpu_percent=percent)
    crowded = gather_evidence(tables)
    assert crowded.others_fill_cores
    assert crowded.core_pressure == {}
    tables.system["cpu_pressure_percent"] = [math.nan] * len(tables.system["t_ns"])
    with warnings.catch_warnings(action="error"):  # such as that of a mean of nothing
        assert gather_evidence(tables).core_pressure == {}
    for percent, waits in ((2.0, False), (60.0, True)):  # as the kernel says
        tables.system["cpu_pressure_percent"] = [percent] * len(tables.system["t_ns"])
        measured = gather_evidence(tables)
        assert measured.others_fill_cores == waits
        assert measured.core_pressure["share_of_time_short_of_cores"] == pytest.approx(
            percent / 100
        )
    assert order(crowded, finding("data-wait", 5.0), finding("step-outliers", 1.0)) == [
        "step-outliers",
        "data-wait",
    ]


def test_what_gives_less_than_5_percent_is_listed_last_and_is_no_headline(evidence: Evidence):
    little = with_remedy(finding("step-outliers", 9.0, "critical"), 1.02, 1.04)
    more = with_remedy(finding("blocking-copy", 2.0, "serious"), 1.01, 1.2)
    assert order(evidence, little, more) == ["blocking-copy", "step-outliers"]
    verdict = make_verdict(evidence, rank_findings([little, more], evidence))
    assert verdict.sentence.startswith("Blocking-copy")
    verdict = make_verdict(evidence, rank_findings([little], evidence))
    assert verdict.sentence.startswith("Nothing is worth fixing:")
    assert verdict.bound == "other"
    assert main_remedy([little]) is None
    unknown = with_remedy(finding("slow-start", 9.0, "critical"), None)
    assert make_verdict(evidence, [unknown]).sentence.startswith("Slow-start")


@pytest.mark.parametrize("speedups", [(), (None,), (1.01, None)])
@pytest.mark.parametrize("rule", ["unequal-steps", "lock-contention", "between-epochs"])
def test_what_costs_less_than_5_percent_can_give_no_more(
    evidence: Evidence, rule: str, speedups: tuple[float | None, ...]
):
    whole_s = evidence.steps.total_seconds
    for share, is_headline in ((0.04, False), (0.06, True)):
        cheap = with_remedy(finding(rule, share * whole_s), *speedups)
        ranked = rank_findings([cheap, finding("compute-bound", 0.0, "info")], evidence)
        sentence = make_verdict(evidence, ranked).sentence
        assert (rule in sentence.lower()) == is_headline


def test_what_costs_no_time_may_be_worth_fixing(evidence: Evidence):
    for rule in ("memory-growth", "open-wait"):
        ranked = rank_findings([finding(rule, 0.0, "serious")], evidence)
        assert make_verdict(evidence, ranked).sentence.startswith(rule.capitalize())
    for share, sentence in ((0.03, "Nothing is worth fixing"), (0.2, "Slow-start")):
        late = finding("slow-start", 60.0, share_of_all_time=share)
        ranked = rank_findings([late], evidence)
        assert make_verdict(evidence, ranked).sentence.startswith(sentence)


def test_a_run_that_its_accelerator_limits_is_told_so_beside_what_is_not_worth_fixing(
    evidence: Evidence,
):
    little = with_remedy(finding("step-outliers", 0.5), 1.02)
    ranked = rank_findings([little, finding("compute-bound", 0.0, "info")], evidence)
    assert {each.rule for each in ranked} == {"compute-bound", "step-outliers"}
    assert "nothing to fix" in make_verdict(evidence, ranked).sentence
