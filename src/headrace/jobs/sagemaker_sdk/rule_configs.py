"""The `rule_configs` of SageMaker Debugger: its rules, by the names that scripts use.

`rule_configs.CPUBottleneck()` and similar ones are profiler rules, which Headrace's doctor has;
`rule_configs.loss_not_decreasing()` and similar ones are about tensors, which Headrace does not
read. Names, parameters and defaults are those of smdebug_rulesconfig 1.0.1
(`profiler_rules/rules.py` and `debugger_rules/builtin_rules.py` in
awslabs/sagemaker-debugger-rulesconfig).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.core.errors import UsageError, check_choices, choices_hint

_SCAN = {"scan_interval_us": 60_000_000}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "BatchSize": {
        "cpu_threshold_p95": 70, "gpu_threshold_p95": 70, "gpu_memory_threshold_p95": 70,
        "patience": 1000, "window": 500, **_SCAN,
    },
    "CPUBottleneck": {
        "threshold": 50, "gpu_threshold": 10, "cpu_threshold": 90, "patience": 1000, **_SCAN,
    },
    "Dataloader": {"min_threshold": 70, "max_threshold": 200, **_SCAN},
    "GPUMemoryIncrease": {"increase": 5, "patience": 1000, "window": 10, **_SCAN},
    "IOBottleneck": {
        "threshold": 50, "gpu_threshold": 10, "io_threshold": 50, "patience": 1000, **_SCAN,
    },
    "LoadBalancing": {"threshold": 0.5, "patience": 1000, **_SCAN},
    "LowGPUUtilization": {
        "threshold_p95": 70, "threshold_p5": 10, "window": 500, "patience": 1000, **_SCAN,
    },
    "MaxInitializationTime": {"threshold": 20, **_SCAN},
    "OverallFrameworkMetrics": _SCAN,
    "OverallSystemUsage": _SCAN,
    "StepOutlier": {"stddev": 3, "mode": None, "n_outliers": 10, **_SCAN},
}  # fmt: skip
"""The default parameters of the profiler rules, by rule."""
REPORT = "ProfilerReport"
"""The rule that runs all others."""


@dataclass(frozen=True, slots=True)
class RuleConfig:
    """The configuration of a rule: Debugger's name of it, and the given parameters."""

    rule_name: str
    rule_parameters: Mapping[str, Any] = field(default_factory=dict)


def _of_profiler(rule: str) -> Callable[..., RuleConfig]:
    known = list(DEFAULTS[rule])

    def make(*values: object, **parameters: object) -> RuleConfig:
        given = {**dict(zip(known, values, strict=False)), **parameters}
        check_choices(given, known, f"rule_configs.{rule}: ")
        return RuleConfig(rule, given)

    return make


def _of_tensors(rule: str) -> Callable[..., RuleConfig]:
    return lambda **parameters: RuleConfig(rule, parameters)


def _report(**parameters: object) -> RuleConfig:
    """Return the rule that runs all others; its parameters are `<Rule>_<parameter>`."""
    rules = {rule.lower(): rule for rule in DEFAULTS}
    for name in parameters:
        rule, _, parameter = name.partition("_")
        where = f"rule_configs.{REPORT}: {name}: "
        check_choices([rules.get(rule.lower(), rule)], list(DEFAULTS), where)
        known = list(DEFAULTS[rules[rule.lower()]])
        if parameter.lower() not in known:
            raise UsageError(f"{where}{parameter}{choices_hint(parameter, known)}")
    return RuleConfig(REPORT, parameters)


BatchSize = _of_profiler("BatchSize")
CPUBottleneck = _of_profiler("CPUBottleneck")
Dataloader = _of_profiler("Dataloader")
GPUMemoryIncrease = _of_profiler("GPUMemoryIncrease")
IOBottleneck = _of_profiler("IOBottleneck")
LoadBalancing = _of_profiler("LoadBalancing")
LowGPUUtilization = _of_profiler("LowGPUUtilization")
MaxInitializationTime = _of_profiler("MaxInitializationTime")
OverallFrameworkMetrics = _of_profiler("OverallFrameworkMetrics")
OverallSystemUsage = _of_profiler("OverallSystemUsage")
StepOutlier = _of_profiler("StepOutlier")
ProfilerReport = _report

all_zero = _of_tensors("AllZero")
check_input_images = _of_tensors("CheckInputImages")
class_imbalance = _of_tensors("ClassImbalance")
confusion = _of_tensors("Confusion")
create_xgboost_report = _of_tensors("CreateXgboostReport")
dead_relu = _of_tensors("DeadRelu")
exploding_tensor = _of_tensors("ExplodingTensor")
feature_importance_overweight = _of_tensors("FeatureImportanceOverweight")
loss_not_decreasing = _of_tensors("LossNotDecreasing")
nlp_sequence_ratio = _of_tensors("NLPSequenceRatio")
overfit = _of_tensors("Overfit")
overtraining = _of_tensors("Overtraining")
poor_weight_initialization = _of_tensors("PoorWeightInitialization")
saturated_activation = _of_tensors("SaturatedActivation")
similar_across_runs = _of_tensors("SimilarAcrossRuns")
stalled_training_rule = _of_tensors("StalledTrainingRule")
tensor_variance = _of_tensors("TensorVariance")
tree_depth = _of_tensors("TreeDepth")
unchanged_tensor = _of_tensors("UnchangedTensor")
vanishing_gradient = _of_tensors("VanishingGradient")
weight_update_ratio = _of_tensors("WeightUpdateRatio")
