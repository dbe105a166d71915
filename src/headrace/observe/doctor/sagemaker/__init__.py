"""SageMaker Debugger's profiler rules: their registry, and their evaluation as by ProfilerReport.

Names, thresholds and meanings are Debugger's, so that its users get the same alarms: parameters of
`smdebug_rulesconfig/profiler_rules/rules.py` in awslabs/sagemaker-debugger-rulesconfig, conditions
of the rules' sources as published with `smdebug`. Where records differ from Debugger's samples, the
docstring of the check says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headrace.observe.doctor.findings import Diagnosis, Finding, NotEvaluated, Verdict
from headrace.observe.doctor.sagemaker import (  # noqa: F401 - each registers its rules
    framework_rules,
    system_rules,
)
from headrace.observe.doctor.sagemaker.debugger_metrics import (
    REGISTERED,
    DebuggerRuleCheck,
    read_debugger_metrics,
)
from headrace.observe.whatif.tables import Tables

_REPORTS = ("OverallSystemUsage", "OverallFrameworkMetrics")
_ALARMS = sorted(REGISTERED.keys() - _REPORTS)
SAGEMAKER_RULES: Mapping[str, DebuggerRuleCheck] = MappingProxyType(
    {name: REGISTERED[name] for name in (*_ALARMS, *_REPORTS)}
)
"""Every rule's check by its name, those that only report last. None: nothing was found."""


def evaluate(tables: Tables, verdict: Verdict) -> Diagnosis:
    """Return the results of Debugger's rules for a run: alarms first, then reports."""
    recorded = read_debugger_metrics(tables)
    outcomes = {rule: check(recorded) for rule, check in SAGEMAKER_RULES.items()}
    findings = [outcome for outcome in outcomes.values() if isinstance(outcome, Finding)]
    return Diagnosis(
        verdict=verdict,
        findings=tuple(sorted(findings, key=lambda finding: finding.severity == "info")),
        rules="sagemaker",
        quiet=tuple(rule for rule, outcome in outcomes.items() if outcome is None),
        not_evaluated=tuple(
            outcome for outcome in outcomes.values() if isinstance(outcome, NotEvaluated)
        ),
    )
