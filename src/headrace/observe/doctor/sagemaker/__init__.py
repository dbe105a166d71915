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
from headrace.observe.doctor.sagemaker.batch_size import RULE as BATCH_SIZE
from headrace.observe.doctor.sagemaker.batch_size import check as check_batch_size
from headrace.observe.doctor.sagemaker.cpu_bottleneck import RULE as CPU_BOTTLENECK
from headrace.observe.doctor.sagemaker.cpu_bottleneck import check as check_cpu_bottleneck
from headrace.observe.doctor.sagemaker.dataloader import RULE as DATALOADER
from headrace.observe.doctor.sagemaker.dataloader import check as check_dataloader
from headrace.observe.doctor.sagemaker.gpu_memory_increase import RULE as GPU_MEMORY_INCREASE
from headrace.observe.doctor.sagemaker.gpu_memory_increase import check as check_gpu_memory_increase
from headrace.observe.doctor.sagemaker.io_bottleneck import RULE as IO_BOTTLENECK
from headrace.observe.doctor.sagemaker.io_bottleneck import check as check_io_bottleneck
from headrace.observe.doctor.sagemaker.load_balancing import RULE as LOAD_BALANCING
from headrace.observe.doctor.sagemaker.load_balancing import check as check_load_balancing
from headrace.observe.doctor.sagemaker.low_gpu_utilization import RULE as LOW_GPU_UTILIZATION
from headrace.observe.doctor.sagemaker.low_gpu_utilization import check as check_low_gpu_utilization
from headrace.observe.doctor.sagemaker.max_initialization_time import (
    RULE as MAX_INITIALIZATION_TIME,
)
from headrace.observe.doctor.sagemaker.max_initialization_time import (
    check as check_max_initialization_time,
)
from headrace.observe.doctor.sagemaker.overall_framework_metrics import (
    RULE as OVERALL_FRAMEWORK_METRICS,
)
from headrace.observe.doctor.sagemaker.overall_framework_metrics import (
    check as check_overall_framework_metrics,
)
from headrace.observe.doctor.sagemaker.overall_system_usage import RULE as OVERALL_SYSTEM_USAGE
from headrace.observe.doctor.sagemaker.overall_system_usage import (
    check as check_overall_system_usage,
)
from headrace.observe.doctor.sagemaker.recorded import Recorded
from headrace.observe.doctor.sagemaker.step_outlier import RULE as STEP_OUTLIER
from headrace.observe.doctor.sagemaker.step_outlier import check as check_step_outlier

Check: TypeAlias = Callable[[Recorded], Finding | NotEvaluated | None]

SAGEMAKER_RULES: Mapping[str, Check] = MappingProxyType(
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
"""Every rule by its name; those that only report are last. None: nothing was found."""
