"""SageMaker Debugger's profiler rules: their registry, and their evaluation as by ProfilerReport.

Names, thresholds and meanings are Debugger's, so that its users get the same alarms: parameters of
`smdebug_rulesconfig/profiler_rules/rules.py` in awslabs/sagemaker-debugger-rulesconfig, conditions
of the rules' sources as published with `smdebug`. Where records differ from Debugger's samples, the
docstring of the check says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from headrace.observe.doctor.findings import Diagnosis, Finding, NotEvaluated, Verdict
from headrace.observe.doctor.sagemaker.debugger_metrics import (
    DebuggerMetrics,
    read_debugger_metrics,
)
from headrace.observe.doctor.sagemaker.framework_rules import (
    DATALOADER,
    MAX_INITIALIZATION_TIME,
    OVERALL_FRAMEWORK_METRICS,
    STEP_OUTLIER,
    check_dataloader,
    check_max_initialization_time,
    check_overall_framework_metrics,
    check_step_outlier,
)
from headrace.observe.doctor.sagemaker.system_rules import (
    BATCH_SIZE,
    CPU_BOTTLENECK,
    GPU_MEMORY_INCREASE,
    IO_BOTTLENECK,
    LOAD_BALANCING,
    LOW_GPU_UTILIZATION,
    OVERALL_SYSTEM_USAGE,
    check_batch_size,
    check_cpu_bottleneck,
    check_gpu_memory_increase,
    check_io_bottleneck,
    check_load_balancing,
    check_low_gpu_utilization,
    check_overall_system_usage,
)
from headrace.observe.whatif.tables import Tables

DebuggerRuleCheck: TypeAlias = Callable[[DebuggerMetrics], Finding | NotEvaluated | None]

SAGEMAKER_RULES: Mapping[str, DebuggerRuleCheck] = MappingProxyType(
    {
        BATCH_SIZE: check_batch_size,
        CPU_BOTTLENECK: check_cpu_bottleneck,
        DATALOADER: check_dataloader,
        GPU_MEMORY_INCREASE: check_gpu_memory_increase,
        IO_BOTTLENECK: check_io_bottleneck,
        LOAD_BALANCING: check_load_balancing,
        LOW_GPU_UTILIZATION: check_low_gpu_utilization,
        MAX_INITIALIZATION_TIME: check_max_initialization_time,
        STEP_OUTLIER: check_step_outlier,
        OVERALL_SYSTEM_USAGE: check_overall_system_usage,
        OVERALL_FRAMEWORK_METRICS: check_overall_framework_metrics,
    }
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
