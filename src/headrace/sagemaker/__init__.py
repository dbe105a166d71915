"""The names of SageMaker's Python SDK that launch scripts use, importable in the SDK's place.

Each is here, and in the module where the SDK has it: `headrace.sagemaker.pytorch.PyTorch` in place
of `sagemaker.pytorch.PyTorch`. The package holds no logic of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.lazy import importer

if TYPE_CHECKING:
    from headrace.launch.estimator import rule_configs as rule_configs
    from headrace.launch.estimator.debugger import CollectionConfig as CollectionConfig
    from headrace.launch.estimator.debugger import DebuggerHookConfig as DebuggerHookConfig
    from headrace.launch.estimator.debugger import ProfilerRule as ProfilerRule
    from headrace.launch.estimator.debugger import Rule as Rule
    from headrace.launch.estimator.debugger import (
        TensorBoardOutputConfig as TensorBoardOutputConfig,
    )
    from headrace.launch.estimator.estimator import PyTorch as PyTorch
    from headrace.launch.estimator.framework_profile import (
        DataloaderProfilingConfig as DataloaderProfilingConfig,
    )
    from headrace.launch.estimator.framework_profile import (
        DetailedProfilingConfig as DetailedProfilingConfig,
    )
    from headrace.launch.estimator.framework_profile import FrameworkProfile as FrameworkProfile
    from headrace.launch.estimator.framework_profile import (
        HorovodProfilingConfig as HorovodProfilingConfig,
    )
    from headrace.launch.estimator.framework_profile import PythonProfiler as PythonProfiler
    from headrace.launch.estimator.framework_profile import (
        PythonProfilingConfig as PythonProfilingConfig,
    )
    from headrace.launch.estimator.framework_profile import (
        SMDataParallelProfilingConfig as SMDataParallelProfilingConfig,
    )
    from headrace.launch.estimator.framework_profile import cProfileTimer as cProfileTimer
    from headrace.launch.estimator.job_parts import InstanceGroup as InstanceGroup
    from headrace.launch.estimator.job_parts import ProfilerConfig as ProfilerConfig
    from headrace.launch.estimator.training_inputs import FileSystemInput as FileSystemInput
    from headrace.launch.estimator.training_inputs import ShuffleConfig as ShuffleConfig
    from headrace.launch.estimator.training_inputs import TrainingInput as TrainingInput

_HOMES = {
    "CollectionConfig": "headrace.launch.estimator.debugger",
    "DataloaderProfilingConfig": "headrace.launch.estimator.framework_profile",
    "DebuggerHookConfig": "headrace.launch.estimator.debugger",
    "DetailedProfilingConfig": "headrace.launch.estimator.framework_profile",
    "FileSystemInput": "headrace.launch.estimator.training_inputs",
    "FrameworkProfile": "headrace.launch.estimator.framework_profile",
    "HorovodProfilingConfig": "headrace.launch.estimator.framework_profile",
    "InstanceGroup": "headrace.launch.estimator.job_parts",
    "ProfilerConfig": "headrace.launch.estimator.job_parts",
    "ProfilerRule": "headrace.launch.estimator.debugger",
    "PyTorch": "headrace.launch.estimator.estimator",
    "PythonProfiler": "headrace.launch.estimator.framework_profile",
    "PythonProfilingConfig": "headrace.launch.estimator.framework_profile",
    "Rule": "headrace.launch.estimator.debugger",
    "SMDataParallelProfilingConfig": "headrace.launch.estimator.framework_profile",
    "ShuffleConfig": "headrace.launch.estimator.training_inputs",
    "TensorBoardOutputConfig": "headrace.launch.estimator.debugger",
    "TrainingInput": "headrace.launch.estimator.training_inputs",
    "cProfileTimer": "headrace.launch.estimator.framework_profile",
    "rule_configs": "headrace.launch.estimator.debugger",
}

__all__ = [*_HOMES]  # noqa: PLE0604 - the names are strings, and a test lists them


__getattr__ = importer(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
