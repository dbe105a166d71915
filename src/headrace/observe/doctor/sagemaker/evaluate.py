"""The evaluation of SageMaker Debugger's rules: what its ProfilerReport rule did."""

from __future__ import annotations

from headrace.observe.doctor.model import Diagnosis, Finding, NotEvaluated, Verdict
from headrace.observe.doctor.sagemaker import SAGEMAKER_RULES
from headrace.observe.doctor.sagemaker.recorded import read_recorded
from headrace.observe.whatif.tables import Tables


def evaluate(tables: Tables, verdict: Verdict) -> Diagnosis:
    """Return what Debugger's rules say of a run: alarms first, then what they only report.

    Args:
        tables: The run's records.
        verdict: What is said of the run in one sentence.
    """
    recorded = read_recorded(tables)
    outcomes = {rule: check(recorded) for rule, check in SAGEMAKER_RULES.items()}
    findings = [outcome for outcome in outcomes.values() if isinstance(outcome, Finding)]
    return Diagnosis(
        verdict=verdict,
        findings=tuple(sorted(findings, key=lambda each: each.severity == "info")),
        rules="sagemaker",
        quiet=tuple(rule for rule, outcome in outcomes.items() if outcome is None),
        not_evaluated=tuple(
            outcome for outcome in outcomes.values() if isinstance(outcome, NotEvaluated)
        ),
    )
