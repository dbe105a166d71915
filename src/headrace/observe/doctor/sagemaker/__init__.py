"""SageMaker Debugger's profiler rules: a file each, named after the rule, with `check(recorded)`.

Names, thresholds and what they mean are those of Debugger, so that who leaves it keeps the alarms:
parameters of `smdebug_rulesconfig/profiler_rules/rules.py` in
awslabs/sagemaker-debugger-rulesconfig, conditions of the rules' sources as they were published with
`smdebug`. Where records differ from what Debugger sampled, the rule's file says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from headrace.observe.doctor.model import Finding, NotEvaluated
from headrace.observe.doctor.sagemaker import (
    batch_size,
    cpu_bottleneck,
    dataloader,
    gpu_memory_increase,
    io_bottleneck,
    load_balancing,
    low_gpu_utilization,
    max_initialization_time,
    overall_framework_metrics,
    overall_system_usage,
    step_outlier,
)
from headrace.observe.doctor.sagemaker.recorded import Recorded

Check: TypeAlias = Callable[[Recorded], Finding | NotEvaluated | None]

SAGEMAKER_RULES: Mapping[str, Check] = MappingProxyType(
    {
        module.RULE: module.check
        for module in (
            batch_size,
            cpu_bottleneck,
            dataloader,
            gpu_memory_increase,
            io_bottleneck,
            load_balancing,
            low_gpu_utilization,
            max_initialization_time,
            step_outlier,
            overall_system_usage,
            overall_framework_metrics,
        )
    }
)
"""Every rule by its name; those that only report are last. None: nothing was found."""
